"""Automatic chunks are whole shards; other chunks are taken as they are.

dask limits automatic chunks to its ``array.chunk-size`` and cuts larger shards along every axis, so that several tasks
decode the same inner chunks. `xarray.open_dataset` replaces ``"auto"`` by dask's lengths before it chunks a variable,
so exactly these lengths count as ``"auto"``. Called by `backend.chunking`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.array.core import normalize_chunks

Chunks = tuple[tuple[int, ...], ...]
"""Lengths of blocks along every axis."""


def chunks_of_whole_shards(
    chunks: Any, *, shape: tuple[int, ...], dtype: np.dtype[Any], shard: tuple[int, ...] | None
) -> Chunks:
    """Return `chunks` as dask normalizes them, but whole shards along axes that are ``"auto"``.

    `shard` is the shape of a shard; None if there is none to keep whole.
    """
    is_one_for_each = isinstance(chunks, Sequence) and not isinstance(chunks, str)
    of_axes = chunks if is_one_for_each else [chunks] * len(shape)
    auto = {axis for axis, lengths in enumerate(of_axes) if isinstance(lengths, str) and lengths == "auto"}
    if auto and 0 in shape:
        chunks = shape
    normal: Chunks = normalize_chunks(chunks, shape=shape, dtype=dtype, previous_chunks=shard if auto else None)
    if shard is None or 0 in shape:
        return normal
    if chunks == normal and _is_of_dask(normal, shape, dtype, shard):
        auto = set(range(len(shape)))
    if not auto:
        return normal
    uncut = tuple(
        max(1, lengths[0] // edge) * edge if axis in auto and _cuts(lengths, edge) else lengths
        for axis, (lengths, edge) in enumerate(zip(normal, shard, strict=True))
    )
    whole: Chunks = normalize_chunks(uncut, shape=shape)
    return whole


def _is_of_dask(chunks: Chunks, shape: tuple[int, ...], dtype: np.dtype[Any], shard: tuple[int, ...]) -> bool:
    """Whether chunks are those of dask for ``"auto"``, and cut shards along two axes or more.

    Along one axis a user may choose the same length, and few inner chunks are decoded twice.
    """
    n_cut = sum(_cuts(lengths, edge) for lengths, edge in zip(chunks, shard, strict=True))
    return n_cut > 1 and chunks == normalize_chunks("auto", shape=shape, dtype=dtype, previous_chunks=shard)


def _cuts(lengths: tuple[int, ...], shard: int) -> bool:
    return any(length % shard for length in lengths[:-1])
