"""The local files that hold encoded chunks of a plan, for the compiled loops, which read what they decode."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np

from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.selection import Column
from xarray_gpuzarr.process.records import record

_BLOCK_NBYTES = 512
"""What is in memory of a file is whole blocks of this size, but for its end."""
_ROOM_NBYTES = 256 * 1024
"""Of neighbours that are read at once; they stay in a core's cache."""


@record
class Files:
    """Local files that hold the encoded chunks of some consecutive rows."""

    paths: bytes
    """Each with its zero byte."""
    path_at: Column | None
    """Per row, from row `first_row` on: where its path begins; None if one file has them all."""
    first_row: int
    offset: Column | None
    """Per row: its first byte; None if each is a file."""
    room_nbytes: int
    """Memory that a thread reads into: the longest chunk, or neighbours that are read at once."""
    max_gap_nbytes: int
    """Unwanted bytes that are read between neighbours of one file."""


def local_files(plan: ReadPlan, rows: range, path_of: Callable[[str], str], rule: CoalesceRule) -> Files | None:
    """Return the files that hold rows of a plan; None if there can be no such files.

    Parameters
    ----------
    plan : ReadPlan
    rows : range
    path_of : callable
        Returns the path of a key.
    rule : CoalesceRule
    """
    offset: Column | None = None
    if plan.spec.index is None:
        found = joined_paths([path_of(key) for key in plan.keys[rows.start : rows.stop]])
        room_nbytes = -(-plan.spec.most_nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES
    else:
        found, offset = joined_paths([path_of(plan.keys[0])]), plan.offset
        longest = int(plan.nbytes[rows.start : rows.stop].max())
        room_nbytes = max(longest, min(_ROOM_NBYTES, rule.max_nbytes))
    if found is None:
        return None
    return Files(
        paths=found[0],
        path_at=found[1] if plan.spec.index is None else None,
        first_row=rows.start,
        offset=offset,
        room_nbytes=room_nbytes,
        max_gap_nbytes=rule.max_gap_nbytes,
    )


def joined_paths(paths: Sequence[str]) -> tuple[bytes, Column] | None:
    """Return paths one after another, each with its zero byte, and where each begins; None if one has such a byte."""
    names = [os.fsencode(path) for path in paths]
    joined = b"\0".join([*names, b""])
    if joined.count(b"\0") > len(names):
        return None
    return joined, np.array([0, *map(len, names)][:-1], np.int64).cumsum() + np.arange(len(names))
