"""``gpuzarr bench``: xarray's own engine and this one read an array of a user's store in turns; print a table.

The first read of each warms up, and its values are compared with the first reader's. Those that follow are timed: files
of a local store are in the page cache by then, so decoding and copying are measured, not a disk.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np
import xarray as xr
import zarr
from rich.console import Console

from xarray_gpuzarr.backend.accessor.explain import lazy_array_of
from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.backend.open_errors import listed
from xarray_gpuzarr.cli.contents import Contents, groups_below, open_contents
from xarray_gpuzarr.cli.failures import Address, naming_failures
from xarray_gpuzarr.cli.terminal import StatusLine, address_of, say, table_of
from xarray_gpuzarr.decoders.choice import missing_for_cuda
from xarray_gpuzarr.decoders.host.chunk_cache import kept_chunks
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.errors import OptionError, masked, perhaps
from xarray_gpuzarr.process.settings import parse_nbytes
from xarray_gpuzarr.read import read_array

Box = tuple[slice, ...]
"""One slice of elements per axis, step 1."""
_Read = Callable[[], Any]
"""Reads everything anew, from the stored bytes."""
_STOCK_PIPELINE = {"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
"""Pipeline of zarr-python that stock readers decode with, whatever this user has chosen."""
_COLUMNS = ("reader", "ms", "min-max", "GB/s", "speed")


_NO_DASK, _OF_SHARDS = "no dask", "chunks=shards"


def run(options: argparse.Namespace) -> int:
    """Measure and print; return 1 if a reader failed or gave other values than the first, else 0."""
    tried = f"--nbytes {options.nbytes!r}"
    most_nbytes = parse_nbytes(options.nbytes, "unusable size", tried=tried, do="leave it out, or give a size")
    for name, value in (("rounds", options.rounds), ("nbytes", most_nbytes)):
        if value < 1:
            raise OptionError(f"--{name} must be at least 1", tried=f"{value}", found="less than 1", do="give more")
    address = address_of(options)
    contents = open_contents(address, "host")
    group, variable = _location(address, contents, options.variable)
    path = f"{group}/{variable}".lstrip("/")
    with naming_failures(address, f"zarr.open_array({address.store!r}, path={path!r})"):
        array = zarr.open_array(address.store, path=path, mode="r", **address.given)
    box = corner_box(array.shape, array.shards or array.chunks, array.dtype.itemsize, most_nbytes)
    shape, whole = ("\N{MULTIPLICATION SIGN}".join(map(str, n)) for n in ([part.stop for part in box], array.shape))
    nbytes = int(math.prod(part.stop for part in box) * array.dtype.itemsize)
    of = "" if shape == whole else f" of {whole}"
    say(f"{path or address.store}: {shape}{of} {array.dtype}, {format_nbytes(nbytes)} uncompressed")
    line = StatusLine()
    try:
        with warnings.catch_warnings(), zarr.config.set(_STOCK_PIPELINE):
            warnings.simplefilter("ignore")  # every reader would say the same
            if contents.why_apart:
                stored = zarr.open_array(address.store, path=path, mode="r", **address.given)
                reads: dict[str, _Read] = {"zarr-python": lambda: stored[box]}
                reads |= {name: partial(read_array, stored, box, device=device) for name, device in _devices()}
            else:
                reads = reads_of(address, group, variable, box, array.shards)
            times, wrong = _measure(reads, options.rounds, line.show)
    finally:
        line.clear()
    _print(times, wrong, nbytes)
    say("", kept_chunks() or "Only whole chunks were read: none was kept decoded for the next read.")
    if contents.why_apart:
        say("", f"{contents.why_apart}. So zarr-python and this package read the array itself.")
    return int(bool(wrong))


def _location(address: Address, contents: Contents, name: str | None) -> tuple[str, str]:
    """Return group and name of the array to read: the one asked for, else the largest."""
    ours = {str(k): v for k, v in contents.variables.items() if lazy_array_of(v) is not None and v.size}
    if name is None and ours:
        name = max(ours, key=lambda k: ours[k].nbytes)
    if name not in ours:
        known = ", ".join(sorted(ours)) or "none"
        below = groups_below(contents.node, is_local=address.is_local) if isinstance(contents.node, zarr.Group) else ()
        groups = f": {listed([group.path for group in below])}" if below else ""
        raise OptionError(
            "nothing to read",
            tried=f"variable {name!r}" if name else "the largest variable that this engine reads",
            found=f"variables that this engine reads: {known}",
            do=f"choose one with --variable{perhaps(name or '', ours)}, and its group with --group{groups}",
        )
    group = address.group
    if isinstance(contents.node, zarr.Array):
        group, _, name = address.group.rpartition("/")
    return group, name


def reads_of(
    address: Address, group: str, variable: str, box: Box, shards: Sequence[int] | None = None
) -> dict[str, _Read]:
    """Return reads of a variable by both engines, decoded, by name; the first one is xarray's.

    `shards` is the shape of a shard. With ``chunks={}``, xarray's engine makes a task of each inner chunk, so there is
    also a read by whole shards.
    """
    engines = {"zarr": {"engine": "zarr"}, **{name: {"engine": "gpuzarr", "device": d} for name, d in _devices()}}

    @cache
    def opened(name: str, chunks: str) -> xr.Variable:
        options = {"group": group or None, "chunks": _chunks(chunks), **address.given, **engines[name]}
        dataset = xr.open_dataset(address.store, cache=False, **options)  # a lazy variable would keep what it has read
        return dataset[variable].variable

    def _chunks(chunks: str) -> dict[Any, int] | None:
        if chunks == _OF_SHARDS and shards is not None:
            return dict(zip(opened("zarr", _NO_DASK).dims, shards, strict=True))
        return None if chunks == _NO_DASK else {}

    def read(name: str, chunks: str) -> Any:
        return opened(name, chunks)[box].compute().data

    asked = [(name, chunks) for chunks in (_NO_DASK, "chunks={}") for name in engines]
    if shards is not None:
        asked.insert(len(engines) + 1, ("zarr", _OF_SHARDS))
    return {f"{name}, {chunks}": partial(read, name, chunks) for name, chunks in asked}


def _devices() -> list[tuple[str, Device]]:
    """Return what this package's rows are called, and where they read to."""
    return [("gpuzarr", "host"), *([] if missing_for_cuda() else [("gpuzarr cuda", "cuda")])]


def _measure(
    reads: Mapping[str, _Read], n_rounds: int, progress: Callable[[str], None]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Let readers take turns; return the seconds of each one's rounds, and why others have none."""
    times: dict[str, list[float]] = {name: [] for name in reads}
    wrong: dict[str, str] = {}
    expected: dict[str, np.ndarray[Any, Any]] = {}
    for n in range(n_rounds + 1):
        for name in list(times)[:: -1 if n % 2 else 1]:
            progress(f"{f'round {n} of {n_rounds}' if n else 'first read'}: {name}")
            try:
                start = time.perf_counter()
                values = reads[name]()
                if hasattr(getattr(values, "device", None), "synchronize"):  # of a GPU, which may still be at work
                    values.device.synchronize()
                times[name].append(time.perf_counter() - start)
                if n == 0:
                    _require_same(values.get() if hasattr(values, "get") else values, expected, name)
            except Exception as error:  # noqa: BLE001  # codecs and stores raise anything; the table names it
                wrong[name] = masked(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
                del times[name]
    return {name: seconds[1:] for name, seconds in times.items()}, wrong


def _require_same(values: np.ndarray[Any, Any], expected: dict[str, np.ndarray[Any, Any]], name: str) -> None:
    """Keep the first reader's values; raise `ValueError` if another one's differ."""
    first, right = next(iter(expected.items() or ((name, values),)))
    same_dtype = values.dtype.newbyteorder("=") == right.dtype.newbyteorder("=")
    if not (same_dtype and np.array_equal(values, right, equal_nan=values.dtype.kind in "fc")):
        raise ValueError(f"other values than {first}: {values.dtype.str} {values.shape}")
    expected.setdefault(first, values)


def _print(times: Mapping[str, Sequence[float]], wrong: Mapping[str, str], nbytes: int) -> None:
    if times:
        n = len(next(iter(times.values())))
        say("", f"median of {n} round{'s'[: n > 1]}; speed relative to the best without this package")
        best = min((median(times[name]) for name in times if name.startswith("zarr")), default=None)
        rows = [
            (
                name,
                f"{median(seconds) * 1e3:.1f}",
                f"{min(seconds) * 1e3:.0f}-{max(seconds) * 1e3:.0f}",
                f"{nbytes / median(seconds) / 1e9:.2f}",
                f"{best / median(seconds):.2f}x" if best else "",
            )
            for name, seconds in times.items()
        ]
        Console().print(table_of(_COLUMNS, rows, gap=1), crop=False)
    if wrong:
        say(*(f"{name}: {why}" for name, why in wrong.items()))


def corner_box(shape: Sequence[int], whole: Sequence[int], itemsize: int, most_nbytes: int) -> Box:
    """Return whole shards from the first one on that hold at most `most_nbytes`, at least one shard.

    `whole` is the shape of a shard, or of a chunk where there are none, and `itemsize` the bytes of an element.
    """
    counts = [max(1, math.ceil(n / w)) for n, w in zip(shape, whole, strict=True)]
    while True:
        box = tuple(slice(0, min(n, c * w)) for n, c, w in zip(shape, counts, whole, strict=True))
        nbytes = itemsize * math.prod(part.stop for part in box)
        if max(counts, default=1) <= 1 or nbytes <= most_nbytes:
            return box
        longest = counts.index(max(counts))
        # Never below what fits, but at least by half: few steps, and the box stays compact.
        counts[longest] = max(1, int(counts[longest] * most_nbytes / nbytes), counts[longest] // 2)
