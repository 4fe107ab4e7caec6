"""`Source`: how the samples of one variable are read: by this engine, by dask, by xarray, or from memory.

`source_of` finds out how, without I/O. `read_sources` reads the samples of several variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import dask.array as da
import dask.base
import numpy as np
import numpy.typing as npt
from xarray import IndexVariable, Variable
from xarray.core import indexing

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.lazy_array import data_of
from xarray_gpuzarr.decoders.protocol import Decoder
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.process.side_by_side import side_by_side
from xarray_gpuzarr.read.stopping import Stop, StoppableDecoder
from xarray_gpuzarr.stored.array_spec import Unplanned
from xarray_gpuzarr.training.blocks import find_parts
from xarray_gpuzarr.training.parts import Part, Parts, UnresolvedError
from xarray_gpuzarr.training.stacks import Boxes, read_crops

Way = Literal["one plan", "crop by crop", "dask", "memory"]
"""How samples are read: together, with each chunk decoded once; one after another; by dask; or from memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSource:
    """A variable that this engine reads."""

    parts: Parts
    """The selections of stored arrays that the variable is made of."""

    @property
    def way(self) -> Way:
        """How samples are read."""
        return "crop by crop" if self.why else "one plan"

    @property
    def why(self) -> str:
        """Why samples are not read with one plan: zarr-python decodes an array. Empty if they are read with one."""
        for part in self.parts.grid.flat:
            spec = part.lazy.stored.spec
            if isinstance(spec, Unplanned):
                return f"zarr-python decodes it: {spec.reason}"
        return ""

    @property
    def is_slow(self) -> bool:
        """Whether reads to the host mostly wait for a slow store."""
        lazy = self.parts.lazy
        return lazy.device == "host" and lazy.takes_long

    @property
    def shard_numbers(self) -> tuple[Column, ...]:
        """For each axis, the number of the shard along it that each element is in; shape (length of the axis,).

        Shards of different stores have different numbers.
        """
        return tuple(map(self._shard_numbers_along, range(len(self.parts.bounds))))

    def _shard_numbers_along(self, axis: int) -> Column:
        # Parts at the same place along `axis` usually have the same shard borders. One of them is enough, since the
        # numbers only decide which samples are read together.
        parts = np.moveaxis(self.parts.grid, axis, 0).reshape(self.parts.grid.shape[axis], -1)[:, 0]
        numbers = []
        n_earlier_shards = 0
        for part in parts:
            shard = _shards_in_part(part, axis)
            numbers.append(shard + n_earlier_shards)
            n_earlier_shards += int(shard.max(initial=0)) + 1
        return np.concatenate(numbers)

    def read(self, boxes: Boxes, stop: Stop, out: Any = None) -> Any:
        """Read boxes to the device that the dataset was opened for. The host reads them into `out` if possible."""
        parts = self.parts

        def read(decoder: Decoder) -> Any:
            host_out = out if decoder.device == "host" else None
            return read_crops(parts, boxes, StoppableDecoder(decoder, stop), host_out)

        return parts.lazy.by_decoder(read)


def _shards_in_part(part: Part, axis: int) -> Column:
    """Return the number of the shard, along an axis of its stored array, that each element of a part is in."""
    elements = np.asarray(part.selection(axis), np.int64)
    stored_axis = part.axes[axis]
    spec = part.lazy.stored.spec
    shard_shape: Sequence[int]
    if isinstance(spec, Unplanned):
        array: Any = part.lazy.stored.zarr_array
        try:
            shard_shape = array.shards or array.chunks
        except NotImplementedError:  # a rectilinear grid, whose shards differ in length
            ends = np.cumsum(array.write_chunk_sizes[stored_axis])
            shards: Column = np.searchsorted(ends, elements, side="right")
            return shards
    else:
        shard_shape = spec.grid.shard_shape
    return elements // max(1, shard_shape[stored_axis])  # the length may be 0 if the axis has no elements


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskSource:
    """A variable that dask computes."""

    array: Any
    """The dask array."""
    why: str
    """Why this engine does not read it."""
    way: Way = "dask"

    @property
    def shard_numbers(self) -> tuple[Column, ...]:
        """For each axis, the number of dask's chunk along it that each element is in; shape (length of the axis,)."""
        return tuple(np.repeat(np.arange(len(lengths)), np.asarray(lengths, np.int64)) for lengths in self.array.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySource:
    """A variable in memory."""

    array: Any
    """Its values, on the host or on a GPU."""
    why: str = ""
    way: Way = "memory"
    shard_numbers: None = None

    def read(self, boxes: Boxes, stop: Stop, out: Any = None) -> Any:  # noqa: ARG002
        """Return a copy of the boxes."""
        return _stack([self.array[box] for box in boxes.slices()], self.array.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class XarraySource:
    """A variable that xarray reads: it is text or times, for example, or was indexed pointwise."""

    variable: Variable
    why: str
    """Why this engine does not read it."""
    is_rounded: bool = False
    """Whether values are rounded to float32."""
    way: Way = "crop by crop"
    shard_numbers: None = None

    def read(self, boxes: Boxes, stop: Stop, out: Any = None) -> Any:  # noqa: ARG002
        """Read one box after another."""
        blocks = []
        for box in boxes.slices():
            stop.check()
            blocks.append(self.variable[box].load().data)
        return _stack(blocks, np.dtype(np.float32) if self.is_rounded else blocks[0].dtype)


Source = StoredSource | DaskSource | MemorySource | XarraySource
"""Reads the samples of a variable. Its `shard_numbers` are None if it does not matter which samples are read together.

`read` takes at least one box, and returns an array of shape (n_boxes, *boxes.shape). It may write to `out`, an array of
this shape, and return it or a view of it. A `DaskSource` has no `read`, because `read_sources` lets dask compute all
such variables together.
"""


def in_float32(source: Source) -> Source:
    """Return a source of the same values in float32, given one of float64."""
    if isinstance(source, StoredSource):
        return StoredSource(parts=source.parts.in_float32())
    if isinstance(source, XarraySource):
        return replace(source, is_rounded=True)
    return replace(source, array=source.array.astype(np.float32))


def source_of(variable: Variable) -> Source:
    """Return the source of a variable. No I/O, except that a lazy array of another library than dask is computed."""
    if isinstance(variable, IndexVariable):
        return MemorySource(array=variable.values)
    array = array_in_memory(variable)
    if array is not None:
        if not isinstance(array.dtype, np.dtype):  # an array of pandas, which can only have one axis
            array = np.asarray(array)
        return MemorySource(array=array)
    try:
        return StoredSource(parts=find_parts(variable))
    except UnresolvedError as unresolved:
        data = data_of(variable)
        if isinstance(data, da.Array):
            return DaskSource(array=data, why=str(unresolved))
        if not isinstance(data, indexing.ExplicitlyIndexed):  # another library's array that wraps a dask array
            return MemorySource(array=np.asarray(data))
        return XarraySource(variable=variable, why=str(unresolved))


def in_c_order(array: Any) -> Any:
    """Return an array in C order without negative strides, which PyTorch refuses even on axes of length 1.

    The array is copied if necessary. One that has no strides, such as an array of pandas, is returned unchanged.
    """
    strides = getattr(array, "strides", None)
    if strides is None or (array.flags.c_contiguous and min(strides, default=0) >= 0):
        return array
    return array.copy(order="C")


def read_sources[Name](
    sources: Mapping[Name, Source], boxes: Mapping[Name, Boxes], stop: Stop, outs: Mapping[Name, Any] | None = None
) -> dict[Name, Any]:
    """Read boxes of several variables.

    Parameters
    ----------
    sources, boxes : mapping of name to Source and to Boxes
        The variables, and the boxes that are read of each.
    stop : Stop
        Ends the reads early when it is set.
    outs : mapping of name to array, optional
        Arrays of shape (n_boxes, *boxes.shape), with any strides, that the results of these variables are written to.

    Returns
    -------
    dict of name to array
        The array in `outs` if there is one, otherwise an array in C order of shape (n_boxes, *boxes.shape).
    """
    outs = outs or {}
    arrays = _read_slow(sources, boxes, stop, outs)
    blocks_of_dask: dict[Name, list[Any]] = {}
    for name, source in sources.items():
        stop.check()
        if name in arrays:
            continue
        if isinstance(source, DaskSource):
            blocks_of_dask[name] = [source.array[box] for box in boxes[name].slices()]
        else:
            arrays[name] = source.read(boxes[name], stop, outs.get(name))
    if blocks_of_dask:
        (computed,) = dask.base.compute(blocks_of_dask)  # together, so that variables share tasks
        for name, blocks in computed.items():
            # The dtype is the one that xarray would give, which turns datetime64[D] to datetime64[s], for example. Any
            # names of dimensions will do to make a `Variable`.
            dtype = Variable(range(blocks[0].ndim), blocks[0]).dtype
            arrays[name] = _stack(blocks, dtype)
    for name, array in arrays.items():
        if name not in outs:
            arrays[name] = in_c_order(array)
            continue
        out = outs[name]
        is_in_place = isinstance(out, np.ndarray) and _has_same_memory(array, out)
        if not is_in_place:
            out[...] = array
        arrays[name] = out
    return arrays


def _read_slow[Name](
    sources: Mapping[Name, Source], boxes: Mapping[Name, Boxes], stop: Stop, outs: Mapping[Name, Any]
) -> dict[Name, Any]:
    """Return the arrays of variables of slow stores, read at the same time so that their waiting times overlap.

    Nothing is read if there is only one such variable.
    """
    stored = {name: source for name, source in sources.items() if isinstance(source, StoredSource)}
    slow = {name: source for name, source in stored.items() if source.is_slow}
    if len(slow) < 2:
        return {}
    reads = [partial(source.read, boxes[name], stop, outs.get(name)) for name, source in slow.items()]
    return dict(zip(slow, side_by_side(reads), strict=True))


def _has_same_memory(array: Any, out: npt.NDArray[Any]) -> bool:
    """Whether an array of the shape and dtype of `out` is a view of it: both begin at the same address."""
    return isinstance(array, np.ndarray) and array.__array_interface__["data"] == out.__array_interface__["data"]


def _stack(blocks: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """Stack blocks to an array of a dtype. `numpy.stack` alone would change the byte order of times."""
    return np.stack(blocks).astype(dtype, copy=False)
