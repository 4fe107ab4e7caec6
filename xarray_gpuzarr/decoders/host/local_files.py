"""The local files that hold encoded chunks of a plan, for the compiled loops, which read what they decode."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from xarray_gpuzarr.fetch import ByteSource
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
    """Local files that hold encoded chunks."""

    paths: bytes
    """Each with its zero byte."""
    path_at: Column
    """shape (n_files,): where each path begins."""
    version: Column | None
    """shape (n_files * 5,): what each file must be, as `fetch.local` tells it; None: anything."""
    file: Column
    """shape (n,): number of the file that holds each chunk."""
    offset: Column | None
    """shape (n,): first byte of each chunk; None if each is a file."""
    room_nbytes: int
    """Memory that a thread reads into: the longest chunk, or neighbours that are read at once."""
    max_gap_nbytes: int
    """Unwanted bytes that are read between neighbours of one file."""


def local_files(plan: ReadPlan, source: ByteSource, rule: CoalesceRule) -> Files | None:
    """Return the files that hold the chunks of a plan, one at least; None if there can be no such files.

    Parameters
    ----------
    plan : ReadPlan
    source : ByteSource
        Local.
    rule : CoalesceRule
    """
    found = [source.local_file(key) for key in plan.keys]
    names = [os.fsencode(file.path) for file in found]
    paths = b"\0".join([*names, b""])
    if paths.count(b"\0") > len(names):
        return None
    version: Column | None = None
    if plan.spec.index is None:
        room_nbytes = -(-plan.spec.most_nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES
    else:
        numbers = [number for file in found for number in file.version or ()]  # up to 2**64
        version = np.frombuffer((ctypes.c_int64 * len(numbers))(*numbers), np.int64)
        room_nbytes = max(int(plan.nbytes.max()), min(_ROOM_NBYTES, rule.max_nbytes))
    return Files(
        paths=paths,
        path_at=np.cumsum([0, *[len(name) + 1 for name in names[:-1]]]),
        version=version,
        file=plan.object,
        offset=None if plan.spec.index is None else plan.offset,
        room_nbytes=room_nbytes,
        max_gap_nbytes=rule.max_gap_nbytes,
    )
