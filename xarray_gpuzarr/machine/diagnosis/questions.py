"""What the docs assume of nvCOMP and of memory without having seen a GPU, asked of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numcodecs
import numpy as np

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.nvcomp import Format, quickest, zstd_temp_nbytes
from xarray_gpuzarr.machine.diagnosis.clock import seconds_of
from xarray_gpuzarr.machine.diagnosis.report import Section
from xarray_gpuzarr.machine.diagnosis.resident import FORMATS, Workspace, resident_streams
from xarray_gpuzarr.machine.diagnosis.samples import WRITERS, series

_MIB = 2**20
_SHIFTS = (0, 1, 3, 7, 4)
_ASKED = ((1, 65_536), (400, 1_024_000), (24, 4 * _MIB), (6400, 65_536))
"""Chunks of a batch, and their decoded bytes."""

Fact = tuple[str, str, str]
"""A question, its answer, and what is wrong with that; empty if nothing is."""


def questions_section(api: DeviceApi, scale: float = 1.0) -> Section:
    """Ask about streams at odd addresses, unusual zstd frames, scratch memory and allocation.

    Parameters
    ----------
    api : DeviceApi
    scale : float
        Below 1: fewer and shorter chunks, to see that it runs.
    """
    with api.activate():
        found = [*_alignments(api, scale), *_frames(api, scale), _scratch(api), *_allocations(api, scale)]
    return Section(
        name="questions",
        title="Is what the docs assume of nvCOMP true?",
        rows=[(question, f"WRONG: {wrong}" if wrong else answer) for question, answer, wrong in found],
        failures=[f"{question}: {wrong}" for question, _, wrong in found if wrong],
        facts={question: wrong or answer for question, answer, wrong in found},
    )


def _alignments(api: DeviceApi, scale: float) -> Iterator[Fact]:
    """Ask for batches whose streams start at odd addresses; those that nvCOMP refuses are asked where it takes them."""
    values, n = series(max(64, round(16_384 * min(1.0, scale)))), max(4, round(1000 * scale))
    for codec, (fmt, head, tail) in FORMATS.items():
        encoded = WRITERS[codec].encode(values)
        stream = encoded[head : len(encoded) - tail]
        least = api.nvcomp.alignment(quickest(fmt, values.nbytes)).source
        for shift in (s for s in _SHIFTS if s % least == 0):
            wrong = _decoded(api, fmt, [stream] * n, values.tobytes(), shift)
            yield f"{fmt}, streams at offset {shift}", f"{n} decoded correctly", wrong


def _decoded(api: DeviceApi, fmt: Format, streams: list[bytes], expected: bytes, shift: int = 0) -> str:
    with closing(Workspace(api)) as space:
        return resident_streams(space, fmt, streams, len(expected), shift=shift).what_is_wrong(expected)


def _frames(api: DeviceApi, scale: float) -> Iterator[Fact]:
    smooth = series(max(256, round(65_536 * min(1.0, scale)))).tobytes()
    noise = np.random.default_rng(0).bytes(len(smooth))
    far = noise * 2
    frames = {
        "with a content checksum": (smooth, numcodecs.Zstd(level=3, checksum=True)),
        "level 19": (smooth, numcodecs.Zstd(level=19)),
        "level -5": (smooth, numcodecs.Zstd(level=-5)),
        "nothing to compress": (noise, numcodecs.Zstd(level=1)),
        "matches farther back than a block": (far, numcodecs.Zstd(level=19)),
    }
    for name, (content, codec) in frames.items():
        wrong = _decoded(api, "zstd", [bytes(codec.encode(content))] * 8, content)
        yield f"zstd frame, {name}", "decoded correctly", wrong


def _scratch(api: DeviceApi) -> Fact:
    more = []
    for n, nbytes in _ASKED:
        said = api.nvcomp.temp_nbytes("zstd", n_chunks=n, max_nbytes=nbytes, total_nbytes=n * nbytes)
        if said > zstd_temp_nbytes(n, n * nbytes):
            more.append(f"{n} of {nbytes} bytes: {said}")
    wrong = f"more than the formula says: {'; '.join(more)}" if more else ""
    return "scratch memory for zstd", f"no more than the formula says, asked {len(_ASKED)} times", wrong


def _allocations(api: DeviceApi, scale: float) -> Iterator[Fact]:
    for mebibytes in (1, 400):
        nbytes = max(4096, round(mebibytes * _MIB * scale))
        with closing(Workspace(api)) as space:
            seconds = seconds_of(partial(_allocate, space, nbytes))
        yield f"{mebibytes} MiB of device memory", f"allocated and freed in {seconds * 1e6:.0f} us", ""


def _allocate(space: Workspace, nbytes: int) -> None:
    space.api.allocate(nbytes, space.stream).free()
