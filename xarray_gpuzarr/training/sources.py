"""How the samples of one variable are read: by this engine, by dask, by xarray, or from memory."""

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
from xarray_gpuzarr.training.parts import Parts, UnresolvedError
from xarray_gpuzarr.training.stacks import Boxes, read_crops

Way = Literal["one plan", "crop by crop", "dask", "memory"]
"""How samples are read: all at once with each chunk decoded once, one after another, by dask, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A variable that this engine reads."""

    parts: Parts

    @property
    def way(self) -> Way:
        """One plan, if the arrays can be planned."""
        return "crop by crop" if self.why else "one plan"

    @property
    def why(self) -> str:
        """Why zarr-python reads it."""
        specs = (part.lazy.stored.spec for part in self.parts.grid.flat)
        return next((f"zarr-python decodes it: {spec.reason}" for spec in specs if isinstance(spec, Unplanned)), "")

    @property
    def shard_numbers(self) -> tuple[Column, ...]:
        """Numbers of stores and shards."""
        return tuple(map(self._shards, range(len(self.parts.bounds))))

    def _shards(self, axis: int) -> Column:
        parts = np.moveaxis(self.parts.grid, axis, 0).reshape(self.parts.grid.shape[axis], -1)[:, 0]
        shards, n_shards = [], 0
        for part in parts:
            spec = part.lazy.stored.spec
            array: Any = part.lazy.stored.zarr_array
            length = (array.shards or array.chunks) if isinstance(spec, Unplanned) else spec.grid.shard_shape
            shard = np.asarray(part.selection(axis), np.int64) // max(1, length[part.axes[axis]])
            shards.append(shard + n_shards)
            n_shards += int(shard.max(initial=0)) + 1
        return np.concatenate(shards)

    def read(self, boxes: Boxes, stop: Stop, out: Any = None) -> Any:
        """Read with the decoder of the device that the dataset was opened for, to `out` if it is the host's."""
        parts = self.parts

        def read(decoder: Decoder) -> Any:
            room = out if decoder.device == "host" else None
            return read_crops(parts, boxes, StoppableDecoder(decoder, stop), room)

        return parts.lazy.by_decoder(read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A variable that dask computes."""

    array: Any
    why: str
    way: Way = "dask"

    @property
    def shard_numbers(self) -> tuple[Column, ...]:
        """Numbers of dask's chunks."""
        return tuple(np.repeat(np.arange(len(axis)), np.asarray(axis, np.int64)) for axis in self.array.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """A variable whose elements are there already."""

    array: Any
    why: str = ""
    way: Way = "memory"
    shard_numbers: None = None

    def read(self, boxes: Boxes, stop: Stop, out: Any = None) -> Any:  # noqa: ARG002
        """Copy the boxes."""
        return _stacked([self.array[box] for box in boxes.slices()], self.array.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByXarray:
    """A variable that xarray decodes, such as text and times, or indexes in a way of its own."""

    variable: Variable
    why: str
    rounds: bool = False
    """Whether values are rounded to float32."""
    way: Way = "crop by crop"
    shard_numbers: None = None

    def read(self, boxes: Boxes, stop: Stop, out: Any = None) -> Any:  # noqa: ARG002
        """Read box after box."""
        blocks = []
        for box in boxes.slices():
            stop.check()
            blocks.append(self.variable[box].load().data)
        return _stacked(blocks, np.dtype(np.float32) if self.rounds else blocks[0].dtype)


Source = Stored | Computed | InMemory | ByXarray


def in_float32(source: Source) -> Source:
    """Return a source of float64 whose values are float32."""
    if isinstance(source, Stored):
        return Stored(parts=source.parts.in_float32())
    if isinstance(source, ByXarray):
        return replace(source, rounds=True)
    return replace(source, array=source.array.astype(np.float32))


def source_of(variable: Variable) -> Source:
    """Return what reads the samples of a variable. No I/O."""
    if isinstance(variable, IndexVariable):
        return InMemory(array=variable.values)
    array = array_in_memory(variable)
    if array is not None:  # pandas' own dtypes have one axis only
        return InMemory(array=array if isinstance(array.dtype, np.dtype) else np.asarray(array))
    try:
        return Stored(parts=find_parts(variable))
    except UnresolvedError as unresolved:
        data = data_of(variable)
        if isinstance(data, da.Array):
            return Computed(array=data, why=str(unresolved))
        if not isinstance(data, indexing.ExplicitlyIndexed):
            return InMemory(array=np.asarray(data))
        return ByXarray(variable=variable, why=str(unresolved))


def in_c_order(array: Any) -> Any:
    """Return an array in C order without negative strides, which PyTorch refuses on axes of length 1 too.

    It is copied if need be. An array without strides, such as those of pandas, is returned as it is.
    """
    strides = getattr(array, "strides", None)
    if strides is None or (array.flags.c_contiguous and min(strides, default=0) >= 0):
        return array
    return array.copy(order="C")


def read_sources[Name](
    sources: Mapping[Name, Source], boxes: Mapping[Name, Boxes], stop: Stop, rooms: Mapping[Name, Any] | None = None
) -> dict[Name, Any]:
    """Return boxes of several variables, in C order; what dask computes, it computes in one go.

    Those that have an array in `rooms`, of any strides, are written there; it is what is returned for them.
    """
    arrays: dict[Name, Any] = {}
    rooms = rooms or {}
    # Those of slow stores at the same time, on the host: a batch waits once, not for each variable.
    stored = {name: source for name, source in sources.items() if isinstance(source, Stored)}
    slow = {n: s for n, s in stored.items() if s.parts.lazy.device == "host" and s.parts.lazy.takes_long}
    if len(slow) > 1:
        reads = [partial(source.read, boxes[name], stop, rooms.get(name)) for name, source in slow.items()]
        arrays |= zip(slow, side_by_side(reads), strict=True)
    asked: dict[Name, list[Any]] = {}
    for name, source in sources.items():
        stop.check()
        if name in arrays:
            continue
        if isinstance(source, Computed):
            asked[name] = [source.array[box] for box in boxes[name].slices()]
        else:
            arrays[name] = source.read(boxes[name], stop, rooms.get(name))
    if asked:
        (computed,) = dask.base.compute(asked)
        for name, blocks in computed.items():
            # The dtype that xarray gives what dask has computed: it knows few units of time.
            arrays[name] = _stacked(blocks, Variable(range(blocks[0].ndim), blocks[0]).dtype)
    for name, room in rooms.items():
        if not (isinstance(room, np.ndarray) and _is_view_of(arrays[name], room)):
            room[...] = arrays[name]
        arrays[name] = room
    return {name: array if name in rooms else in_c_order(array) for name, array in arrays.items()}


def _is_view_of(array: Any, room: npt.NDArray[Any]) -> bool:
    """Whether an array of the shape of another one has the same elements in memory."""
    return isinstance(array, np.ndarray) and array.__array_interface__["data"] == room.__array_interface__["data"]


def _stacked(blocks: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """Stack blocks to a dtype: NumPy alone would give times the byte order of the machine."""
    return np.stack(blocks).astype(dtype, copy=False)
