"""Chunks of axes for which the word ``"auto"`` was said are whole shards; what else was asked for is taken as it is.

dask limits automatic chunks to its ``array.chunk-size`` and cuts larger shards, which then are read once for each part.
xarray writes numbers for words before it chunks a variable that `open_dataset` opens, and anyone may ask for the same
numbers; so what was said has to be looked up. Called by `backend.chunking`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
from dask.array.core import normalize_chunks
from xarray.backends import api

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of blocks along every axis."""

_OF_OPEN = getattr(getattr(api, "_chunk_ds", None), "__code__", None)
"""What xarray runs to chunk a dataset that it has just opened; its local ``chunks`` are what the user gave."""
_OF_ONE = getattr(getattr(api, "_dataset_from_backend_dataset", None), "__code__", None)
"""What calls it for a dataset rather than a tree."""
_N_FRAMES = 3
"""Calls from there to `chunk` of a variable, at most."""


def said_at_open(frame: FrameType | None) -> tuple[Any, Collection[Hashable] | None]:
    """Return the ``chunks`` that `open_dataset` was given, and the dataset's dimensions, if it is what chunks now.

    Parameters
    ----------
    frame : frame that calls `chunk` of a variable

    Returns
    -------
    chunks, dimensions
        None where something else chunks; for groups of a tree, whose chunks may be those of other groups, only the
        dimensions are None.
    """
    for _ in range(_N_FRAMES):
        if frame is None or frame.f_code is _OF_OPEN:
            break
        frame = frame.f_back
    if frame is None or frame.f_code is not _OF_OPEN:
        return None, None
    is_alone = frame.f_back is not None and frame.f_back.f_code is _OF_ONE
    dataset = frame.f_locals.get("backend_ds") if is_alone else None
    return frame.f_locals.get("chunks"), getattr(dataset, "sizes", None)


def auto_axes(said: Any, dims: Sequence[Hashable]) -> frozenset[int]:
    """Return the axes for which ``"auto"`` was said.

    Parameters
    ----------
    said : anything that dask and xarray take for chunks
    dims : sequence of hashable
        What a mapping among them is keyed by, for every axis.
    """
    if isinstance(said, Mapping):
        said = [said.get(dim) for dim in dims]
    elif isinstance(said, str) or not isinstance(said, Sequence):
        said = [said] * len(dims)
    return frozenset(axis for axis, word in enumerate(said) if isinstance(word, str) and word == "auto")


def chunks_of_whole_shards(
    chunks: Any, auto: frozenset[int], *, shape: tuple[int, ...], dtype: np.dtype[Any], shard: tuple[int, ...] | None
) -> Chunks:
    """Return what dask makes of `chunks`, where it is not automatic; whole shards elsewhere.

    Parameters
    ----------
    chunks : as for `dask.array.from_array`
    auto : frozenset of int
        Axes whose chunks are automatic.
    shape : tuple of int
    dtype : numpy.dtype
    shard : tuple of int or None
        Shape of a shard; None if there is none to keep whole.
    """
    if auto and 0 in shape:
        chunks = shape
    normal: Chunks = normalize_chunks(chunks, shape=shape, dtype=dtype, previous_chunks=shard if auto else None)
    if shard is None or not auto or 0 in shape:
        return normal
    uncut = tuple(_uncut(normal[axis], shard[axis]) if axis in auto else normal[axis] for axis in range(len(shape)))
    whole: Chunks = normalize_chunks(uncut, shape=shape)
    return whole


def _uncut(lengths: tuple[int, ...], shard: int) -> tuple[int, ...] | int:
    """Return lengths along one axis that cut no shard: the same, if they cut none."""
    if not any(length % shard for length in lengths[:-1]):
        return lengths
    return max(1, lengths[0] // shard) * shard
