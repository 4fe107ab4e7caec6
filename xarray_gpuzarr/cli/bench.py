"""``gpuzarr bench``: measures how fast xarray's own engine and this one read an array of a user's store.

Readers take turns. The first read of each is a warm-up, and its values are compared with those of the first reader. All
later reads are timed. The files of a local store are in the page cache by then, so these reads measure decoding and
copying, not the disk.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import zarr
from rich.console import Console

from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.backend.accessor.variable_rows import lazy_array_of
from xarray_gpuzarr.backend.open_errors import listed
from xarray_gpuzarr.cli.byte_ranges import sends_whole_objects
from xarray_gpuzarr.cli.contents import Contents, GroupBelow, groups_below, larger_group, open_contents
from xarray_gpuzarr.cli.failures import Address, naming_failures
from xarray_gpuzarr.cli.readers import Box, Read, reads_of, reads_of_array
from xarray_gpuzarr.cli.terminal import StatusLine, address_of, counted, say, table_of
from xarray_gpuzarr.decoders.host.chunk_cache import describe_cache
from xarray_gpuzarr.errors import OptionError, masked, similar_name_hint
from xarray_gpuzarr.process.settings import parse_nbytes

_STOCK_PIPELINE = {"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
"""Setting with which readers without this package use zarr-python's default pipeline, whatever the user has set."""
_COLUMNS = ("reader", "ms", "min-max", "GB/s", "speed")
_MOST_ERROR_CHARACTERS = 300
"""Largest number of characters that are printed of an error, so that long ones do not hide the table."""


def run(options: argparse.Namespace) -> int:
    """Run the command. Return 1 if a reader failed or read other values than the first reader, otherwise 0.

    Failures of readers without this package do not count if the server gives no byte ranges.
    """
    most_nbytes = _parse_most_nbytes(options)
    address = address_of(options)
    contents = open_contents(address, "host")
    group, variable = _location(address, contents, options.variable)
    path = f"{group}/{variable}".lstrip("/")
    with naming_failures(address, f"zarr.open_array({address.store!r}, path={path!r})"):
        array = zarr.open_array(address.store, path=path, mode="r", **address.keywords)
    box = corner_box(array.shape, array.shards or array.chunks, array.dtype.itemsize, most_nbytes)
    box_shape = tuple(part.stop for part in box)
    nbytes = int(math.prod(box_shape) * array.dtype.itemsize)
    size = _format_shape(box_shape)
    if box_shape != array.shape:
        size += f" of {_format_shape(array.shape)}"
    say(f"{path or address.store}: {size} {array.dtype}, {format_nbytes(nbytes)} uncompressed")
    if options.variable is None and array.nbytes < most_nbytes:  # the array is so small that its times say little
        _say_larger_group(address, contents, array.nbytes)
    line = StatusLine()
    try:
        with warnings.catch_warnings(), zarr.config.set(_STOCK_PIPELINE):
            warnings.simplefilter("ignore")  # each reader would emit the same warnings
            if contents.why_no_dataset:
                reads = reads_of_array(address, path, box)
            else:
                reads = reads_of(address, group, variable, box, array.shards)
            times, failures = _measure(reads, options.rounds, line.show)
    finally:
        line.clear()
    _print(times, failures, nbytes)
    lacks_ranges = bool(failures) and not address.is_local and sends_whole_objects(array)
    if lacks_ranges:
        say("", "This server gives no byte ranges: it sends whole objects, which zarr-python takes for parts of them.")
    say("", describe_cache() or "Only whole chunks were read: none was kept decoded for the next read.")
    if contents.why_no_dataset:
        say("", f"{contents.why_no_dataset}. So zarr-python and this package read the array itself.")
    # On a server without byte ranges, readers without this package are expected to fail.
    unexpected_failures = [name for name in failures if name.startswith("gpuzarr") or not lacks_ranges]
    return 1 if unexpected_failures else 0


def _parse_most_nbytes(options: argparse.Namespace) -> int:
    """Return the bytes that ``--nbytes`` gives. Raises `OptionError` if these or ``--rounds`` are less than 1."""
    tried = f"--nbytes {options.nbytes!r}"
    most_nbytes = parse_nbytes(options.nbytes, "unusable size", tried=tried, do="leave it out, or give a size")
    for name, value in (("rounds", options.rounds), ("nbytes", most_nbytes)):
        if value < 1:
            headline = f"--{name} must be at least 1"
            raise OptionError(headline, tried=f"--{name} {value}", found="less than 1", do="give a larger number")
    return most_nbytes


def _say_larger_group(address: Address, contents: Contents, nbytes: int) -> None:
    """Name the option for the largest group below, if it holds more than `nbytes` bytes, or for one of unknown size."""
    larger = larger_group(groups_below(address, contents), nbytes)
    if larger is None:
        return
    held_nbytes = larger.decompressed_nbytes
    # A group whose members were not listed has no size.
    hold = "may hold more" if held_nbytes is None else f"hold up to {format_nbytes(held_nbytes)} each"
    say(f"There are groups below that {hold}: gpuzarr bench STORE {larger.option}")


def _format_shape(shape: Sequence[int]) -> str:
    return "\N{MULTIPLICATION SIGN}".join(map(str, shape))


def _location(address: Address, contents: Contents, name: str | None) -> tuple[str, str]:
    """Return the group and the name of the array to read: the one that was asked for, or the largest.

    Raises `OptionError` if this engine reads no such variable.
    """
    readable = {}
    for key, variable in contents.variables.items():
        if lazy_array_of(variable) is not None and variable.size:
            readable[str(key)] = variable
    if name is None and readable:
        name = max(readable, key=lambda key: readable[key].nbytes)
    if name not in readable:
        raise _nothing_to_read(name, readable, groups_below(address, contents))
    group = address.group
    if isinstance(contents.node, zarr.Array):  # the path at the address is that of the array, not of its group
        group, _, name = address.group.rpartition("/")
    return group, name


def _nothing_to_read(name: str | None, readable: Collection[str], below: Sequence[GroupBelow]) -> OptionError:
    """Return the error for a group that has no readable variable of the name, or none at all if `name` is None.

    Parameters
    ----------
    name : str, optional
        The variable that was asked for.
    readable : collection of str
        Names of the group's variables that this engine reads.
    below : sequence of GroupBelow
        Groups below the group.
    """
    groups = listed([group.path for group in below])
    fullest = larger_group(below, 0)  # None if they have no elements, as far as they could be listed
    if readable:
        do = f"choose one with --variable{similar_name_hint(name or '', readable)}, and its group with --group"
        if below:
            do += f": {groups}"
    elif fullest is not None:
        do = f"choose a group, such as {fullest.option}; there are {groups}"
    else:
        do = "give a store with an array of numbers; gpuzarr info shows what is in this one"
    known = ", ".join(sorted(readable)) or "none"
    return OptionError(
        "nothing to read",
        tried=f"variable {name!r}" if name else "the largest variable that this engine reads",
        found=f"variables that this engine reads: {known}",
        do=do,
    )


def _measure(
    reads: Mapping[str, Read], n_rounds: int, progress: Callable[[str], None]
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Let readers take turns, in the opposite order every other round, and time their reads.

    Round 0 is the warm-up, whose times are not returned. A reader that fails is left out from then on.

    Parameters
    ----------
    reads : mapping of str to callable
        Name of each reader -> function that reads.
    n_rounds : int
        Number of timed reads of each reader.
    progress : callable
        Called before each read, with a text that names it.

    Returns
    -------
    times : dict of str to list of float
        Seconds of the timed reads of each reader that did not fail.
    failures : dict of str to str
        Why each of the other readers failed, or in which way its values differ.
    """
    times: dict[str, list[float]] = {name: [] for name in reads}
    failures: dict[str, str] = {}
    reference: tuple[str, np.ndarray[Any, Any]] | None = None  # first reader that did not fail, and its values
    for number in range(n_rounds + 1):
        names = list(times)
        if number % 2:
            names.reverse()
        for name in names:
            progress(f"round {number} of {n_rounds}: {name}" if number else f"first read: {name}")
            try:
                start = time.perf_counter()
                values = reads[name]()
                if hasattr(getattr(values, "device", None), "synchronize"):  # a GPU may still be at work
                    values.device.synchronize()
                times[name].append(time.perf_counter() - start)
                if number == 0:
                    host_values = values.get() if hasattr(values, "get") else values
                    if reference is None:
                        reference = (name, host_values)
                    _require_same(host_values, *reference)
            except Exception as error:  # noqa: BLE001  # codecs and stores raise anything, and it is printed
                one_line = " ".join(f"{type(error).__name__}: {error}".split())
                failures[name] = masked(one_line)[:_MOST_ERROR_CHARACTERS]
                del times[name]
    return {name: seconds[1:] for name, seconds in times.items()}, failures


def _require_same(values: np.ndarray[Any, Any], other_name: str, other_values: np.ndarray[Any, Any]) -> None:
    """Raise a `ValueError` if a reader has read other values or another dtype than the first one."""
    has_same_dtype = values.dtype.newbyteorder("=") == other_values.dtype.newbyteorder("=")
    if not (has_same_dtype and np.array_equal(values, other_values, equal_nan=values.dtype.kind in "fc")):
        raise ValueError(f"other values than {other_name}: {values.dtype.str} {values.shape}")


def _print(times: Mapping[str, Sequence[float]], failures: Mapping[str, str], nbytes: int) -> None:
    """Print a table of the readers' times for `nbytes` bytes, and why readers failed."""
    if times:
        n_rounds = len(next(iter(times.values())))
        say("", f"median of {counted(n_rounds, 'round')}; speed relative to the best without this package")
        # The names of readers without this package begin with "zarr"; see `readers`.
        stock_medians = [median(times[name]) for name in times if name.startswith("zarr")]
        rows = []
        for name, seconds in times.items():
            typical = median(seconds)
            rows.append(
                (
                    name,
                    f"{typical * 1e3:.1f}",
                    f"{min(seconds) * 1e3:.1f}-{max(seconds) * 1e3:.1f}",
                    f"{nbytes / typical / 1e9:.2f}",
                    f"{min(stock_medians) / typical:.2f}x" if stock_medians else "",
                )
            )
        Console().print(table_of(_COLUMNS, rows, gap=1), crop=False)
    if failures:
        say(*(f"{name}: {why}" for name, why in failures.items()))


def corner_box(shape: Sequence[int], shard: Sequence[int], itemsize: int, most_nbytes: int) -> Box:
    """Return a box of whole shards that begins at the first element of the array.

    A shard that extends beyond the array is cut off at its end.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array.
    shard : sequence of int
        Shape of a shard, or of a chunk if there are no shards.
    itemsize : int
        Size of an element in bytes.
    most_nbytes : int
        Largest size of the box in bytes, decoded. It is exceeded only if a single shard is larger.
    """
    # Number of shards along each axis.
    counts = [max(1, math.ceil(n / length)) for n, length in zip(shape, shard, strict=True)]
    while True:
        box = tuple(slice(0, min(n, c * length)) for n, c, length in zip(shape, counts, shard, strict=True))
        nbytes = itemsize * math.prod(part.stop for part in box)
        if max(counts, default=1) <= 1 or nbytes <= most_nbytes:
            return box
        axis = counts.index(max(counts))
        # Shrink the axis with the most shards to what fits, but at most by half, so that the box stays compact.
        counts[axis] = max(1, int(counts[axis] * most_nbytes / nbytes), counts[axis] // 2)
