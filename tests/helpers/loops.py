"""Reads with the compiled loops and without them."""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from helpers.kernels.on_host import built
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.decoders.host.loop_table import LoopTable
from xarray_gpuzarr.native import library
from xarray_gpuzarr.native.library import Loops
from xarray_gpuzarr.native.naming import SOURCES

_SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Werror")
_HEADERS = SOURCES[1:]
_FLAGS = ("-std=gnu11", "-ffp-contract=off", "-shared", "-fPIC", "-pthread", "-x", "c", "-")


def without_loops(patch: pytest.MonkeyPatch) -> None:
    """Let reads do without the compiled loops."""
    patch.setattr(library, "find", lambda: "a test does without them")


def set_costs(patch: pytest.MonkeyPatch, **costs: float) -> None:
    """Let handing over work cost something else."""
    patch.setattr(HostDecoder, "costs", replace(HostDecoder.costs, **costs))


def without_short_reads(patch: pytest.MonkeyPatch) -> None:
    """Let every read be planned."""
    patch.setattr(HostDecoder, "read_without_plan", lambda *_: None)


def leaving_all(patch: pytest.MonkeyPatch) -> None:
    """Let the compiled loops leave all chunks of local files, as they do if these are not in memory."""
    without_short_reads(patch)
    patch.setattr(LoopTable, "read", lambda _self, rows, _shared: rows)


def require_loops() -> Loops:
    """Return the compiled loops, where sanitizers are asked for with them; skip the test if there are none."""
    if os.environ.get("XARRAY_GPUZARR_SANITIZE") == "1":
        library.find = _sanitized
    found = library.loops()
    if found is None:
        missing = pytest.fail if os.environ.get("XARRAY_GPUZARR_REQUIRE_COMPILER") == "1" else pytest.skip
        missing(f"no compiled loops: {library.why_absent()}")
    return found


@functools.cache
def _sanitized() -> Loops:
    """Build the loops so that they end the process at any access outside of an allocation."""
    headers = [library.SOURCE.with_name(name) for name in _HEADERS]
    return Loops(built("loops.so", (*_SANITIZED, *_FLAGS), library.SOURCE.read_text(), headers))


@functools.cache
def changed(changes: tuple[tuple[str, str], ...]) -> Loops:
    """Build the loops with some of their source replaced, each piece of which is there once."""
    source = library.SOURCE.read_text()
    for name in _HEADERS:
        source = source.replace(f'#include "{name}"', library.SOURCE.with_name(name).read_text())
    for old, new in changes:
        assert source.count(old) == 1, f"the loops have {source.count(old)} times {old!r}"
        source = source.replace(old, new)
    return Loops(built("changed.so", ("-O0", *_FLAGS), source, ()))


class Taken:
    """What the loops were given, and what they took of it."""

    def __init__(self) -> None:
        self.n_rows = 0
        """Rows that were decoded and placed."""
        self.given: list[int] = []
        """Rows of each call."""


@contextmanager
def rows_taken() -> Iterator[Taken]:
    """Count the chunks that the loops decode and place within a block."""
    taken, place_rows, read_rows = Taken(), LoopOutput.place_rows, LoopOutput.read_rows
    read_without_plan = HostDecoder.read_without_plan

    def counted(row: int, end: int, n_left: int) -> int:
        taken.given.append(end - row)
        taken.n_rows += end - row - n_left
        return n_left

    def place(output: LoopOutput, rows: int, row: int, end: int, *more: int) -> int:
        return counted(row, end, place_rows(output, rows, row, end, *more))

    def read(output: LoopOutput, rows: int, files: int, row: int, end: int, *more: int) -> int:
        return counted(row, end, read_rows(output, rows, files, row, end, *more))

    def at_once(decoder: HostDecoder, source: Any, spec: Any, target: Any, cast: Any, out: Any) -> Any:
        result = read_without_plan(decoder, source, spec, target, cast, out)
        if result is not None:
            counted(0, target.n_chunks, 0)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HostDecoder, "read_without_plan", at_once)
        patch.setattr(LoopOutput, "place_rows", place)
        patch.setattr(LoopOutput, "read_rows", read)
        yield taken
