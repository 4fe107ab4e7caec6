"""The trunk: index -> plan -> fetch -> decode.

`StoredArray` is everything needed to read one array again later, in another thread or process; `read` reads a selection
of it with one decoder. Indexes of the next shards are asked for while earlier shards are decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from xarray_gpuzarr.cf import Cast
from xarray_gpuzarr.decoders import Decoder, Route, decoder_for
from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch import ByteSource, PendingEdge, byte_source
from xarray_gpuzarr.grid import group_points, outer_selection
from xarray_gpuzarr.metadata import ArraySpec, Unplanned, parse_array
from xarray_gpuzarr.plan import (
    Block,
    PointTarget,
    ReadPlan,
    Target,
    box_target,
    plan_blocks,
    plan_read,
)
from xarray_gpuzarr.shard_index import ShardIndex, decode_shard_index


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """One array of a store: picklable, holds no open file."""

    shape: tuple[int, ...]
    spec: ArraySpec | Unplanned
    source: ByteSource | None
    """Where planned reads fetch from; None if `zarr_array` is asked instead."""
    zarr_array: zarr.Array[Any] | None
    """The array itself, if it cannot be planned."""
    cast: Cast

    def route(self, decoder: Decoder) -> Route:
        """Say where this array is decoded and why."""
        if isinstance(self.spec, Unplanned):
            return Route(where="host, by zarr-python", why=self.spec.reason)
        return decoder.route(self.spec, self.cast)


def stored_array(array: zarr.Array[Any], cast: Cast | None = None) -> StoredArray:
    """Describe an open zarr array so that `read` can read it.

    Parameters
    ----------
    array : zarr.Array
    cast : Cast or None
        None keeps the stored values and the dtype that zarr-python gives them.
    """
    spec = parse_array(array)
    planned = isinstance(spec, ArraySpec)
    return StoredArray(
        shape=tuple(array.shape),
        spec=spec,
        source=byte_source(array.store) if planned else None,
        zarr_array=None if planned else array,
        cast=cast or Cast(dtype=array.dtype.str),
    )


def read(stored: StoredArray, selection: Any, decoder: Decoder) -> Any:
    """Read an outer (orthogonal) selection.

    Parameters
    ----------
    stored : StoredArray
    selection : int, slice, Ellipsis, 1-D array of int or bool, or a tuple of them
    decoder : Decoder

    Returns
    -------
    array of dtype `stored.cast.dtype` on the decoder's device

    Raises
    ------
    SelectionError, ShardIndexError, CorruptChunkError, StoreReadError
    """
    outer = outer_selection(selection, stored.shape)
    if isinstance(stored.spec, Unplanned):
        block = _read_by_zarr(stored, lambda array: array.oindex[outer.wanted] if array.ndim else array[()])
        return outer.restore(decoder.upload(block, stored.cast))
    target = box_target(outer, stored.spec.grid)
    return outer.restore(_read_target(stored, stored.spec, target, decoder))


def read_points(stored: StoredArray, points: tuple[Any, ...], decoder: Decoder) -> Any:
    """Read single elements: one integer array per axis, broadcast against each other.

    Returns
    -------
    array of the broadcast shape and dtype `stored.cast.dtype` on the decoder's device

    Raises
    ------
    SelectionError, ShardIndexError, CorruptChunkError, StoreReadError
    """
    arrays = np.broadcast_arrays(*points)
    flat = [a.reshape(-1) for a in arrays]
    if isinstance(stored.spec, Unplanned):
        block = _read_by_zarr(stored, lambda array: array.vindex[tuple(flat)])
        return decoder.upload(block, stored.cast).reshape(arrays[0].shape)
    target = PointTarget(groups=group_points(flat, stored.spec.grid))
    return _read_target(stored, stored.spec, target, decoder).reshape(arrays[0].shape)


def _read_target(stored: StoredArray, spec: ArraySpec, target: Target, decoder: Decoder) -> Any:
    assert stored.source is not None
    plans = _plans(spec, target, stored.source)
    return decoder.decode(plans, stored.source, spec=spec, target=target, cast=stored.cast)


def _plans(spec: ArraySpec, target: Target, source: ByteSource) -> Iterator[ReadPlan]:
    """Plan block after block, with the next blocks' indexes already asked for."""
    waiting: deque[tuple[Block, PendingEdge | None]] = deque()
    for block in plan_blocks(spec, target):
        waiting.append((block, _start_index(spec, block, source)))
        if len(waiting) > source.lookahead:
            yield _plan(spec, target, source, *waiting.popleft())
    while waiting:
        yield _plan(spec, target, source, *waiting.popleft())


def _start_index(spec: ArraySpec, block: Block, source: ByteSource) -> PendingEdge | None:
    if spec.index is None or block.key is None:
        return None
    return source.start_edge(block.key, spec.index.location, spec.index.nbytes)


def _plan(spec: ArraySpec, target: Target, source: ByteSource, block: Block, edge: PendingEdge | None) -> ReadPlan:
    return plan_read(spec, target, block, _index(spec, block, edge), source.rule)


def _index(spec: ArraySpec, block: Block, pending: PendingEdge | None) -> ShardIndex | None:
    edge = pending() if pending is not None else None
    if edge is None or spec.index is None:
        return None
    where = f"'{block.key}' of array '{spec.path}'"
    return decode_shard_index(edge.data, spec.index, shard_nbytes=edge.object_nbytes, where=where)


def _read_by_zarr(stored: StoredArray, pick: Callable[[zarr.Array[Any]], Any]) -> np.ndarray[Any, Any]:
    """Let zarr-python read a selection of an array that cannot be planned."""
    array = stored.zarr_array
    assert array is not None
    try:
        return np.asarray(pick(array))
    except Exception as err:  # stores and codecs of any kind; whatever they raise is named
        raise StoreReadError(
            f"zarr-python cannot read array '/{array.path}'",
            tried=f"a selection of it, by zarr-python: {stored.route(decoder_for('host')).why}",
            found=f"{type(err).__name__}: {err}",
            do="check the store and the codecs it names; zarr.open_array(...)[...] shows the same error",
        ) from err


def read_array(array: zarr.Array[Any], selection: Any = None, *, device: str = "auto") -> Any:
    """Read a zarr array, or a selection of it, with the engine that ``engine="gpuzarr"`` uses.

    Parameters
    ----------
    array : zarr.Array
        Format 2 or 3, sharded or not, in any store.
    selection : int, slice, Ellipsis, 1-D array of int or bool, or a tuple of them, optional
        Applied axis by axis (orthogonally). Everything if left out.
    device : "auto", "cuda" or "host"
        Where to decode and where the result lives.

    Returns
    -------
    numpy.ndarray or cupy.ndarray
        Stored values, the fill value where chunks are missing. C order if the selection goes forwards on every axis.
        A CuPy array has the machine's byte order; times and text, which CuPy lacks, come as NumPy arrays.

    Raises
    ------
    GpuZarrError
        `SelectionError`, `DeviceUnavailableError`, `StoreReadError`, `ShardIndexError`, `CorruptChunkError`.

    Examples
    --------
    >>> import numpy as np, zarr
    >>> array = zarr.create_array({}, data=np.arange(12).reshape(3, 4), chunks=(1, 2), shards=(2, 4))
    >>> read_array(array, (slice(None), [0, 3]), device="host")
    array([[ 0,  3],
           [ 4,  7],
           [ 8, 11]])
    """
    return read(stored_array(array), ... if selection is None else selection, decoder_for(device))
