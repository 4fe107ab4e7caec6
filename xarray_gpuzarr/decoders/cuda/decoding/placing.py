"""Decoded chunks -> result: what the kernels need to know about a target, said once per read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.axes import LEAST_TILE, MAX_AXES, MAX_BLOCKS, MAX_BOX, AxisColumns
from xarray_gpuzarr.cuda.cast import UNIT_NBYTES, ElementCast
from xarray_gpuzarr.cuda.launch import Points, Scatter
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.streams import Rows
from xarray_gpuzarr.plan.axis_pieces import AxisPieces, largest_box
from xarray_gpuzarr.plan.output_boxes import OutputBoxes
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.plan.targets import BoxTarget, PointTarget, Target
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

Addresses = npt.NDArray[np.uint64]


def fits_kernels(target: Target) -> bool:
    """Whether kernels can place what chunks give: not where elements are wanted too often, all of one chunk or in sum.

    A launch has as many blocks of threads for each box as the box with the most elements needs. The axis of the samples
    of a stack counts like any other.
    """
    n_boxes = target.n_chunks
    if isinstance(target, PointTarget):
        largest = int(np.diff(target.groups.bounds).max(initial=0))
    elif isinstance(target, StackTarget):
        if len(target.pieces) > MAX_AXES:
            return False
        n_boxes, largest = len(target.groups.row), largest_box(target.pieces)
    elif not [pieces for pieces in target.pieces if pieces.index is not None]:
        return True
    else:
        largest = largest_box(target.pieces)
    return largest < MAX_BOX and n_boxes * -(-largest // LEAST_TILE) <= MAX_BLOCKS


class Tables:
    """Columns of 8-byte integers that one copy brings to the device."""

    def __init__(self) -> None:
        self._columns: list[npt.NDArray[np.uint64]] = []
        self._n_words = 0

    def add(self, *columns: npt.NDArray[Any]) -> int:
        """Take in columns of 8-byte integers, to lie side by side; return the offset of the first in bytes."""
        offset = 8 * self._n_words
        for column in columns:
            if column.size:
                self._columns.append(column.reshape(-1).view(np.uint64))
                self._n_words += column.size
        return offset

    def send(self, workspace: Workspace) -> DeviceMemory:
        """Copy all columns to device memory of the workspace on its `copy` stream; return it."""
        nbytes = 8 * self._n_words
        slot = workspace.tables.lend(nbytes)
        packed = slot.array[:nbytes]
        np.concatenate(self._columns, out=packed.view(np.uint64))
        memory = workspace.device_tables.lend(nbytes, workspace.copy)
        workspace.upload(memory.address, packed, workspace.copy)
        slot.give_back(workspace.copy)
        return memory


@record
class Places:
    """Columns of one launch, by their offsets in a table."""

    row: int
    source: int | None
    """None for missing chunks."""
    n_rows: int


class Placing:
    """Places the chunks of one read in its result, which begins at `out` and has the machine's byte order."""

    def __init__(self, workspace: Workspace, spec: ArraySpec, target: Target, *, cast: Cast, out: Address) -> None:
        self._api = workspace.api
        self._out = out
        self._itemsize = np.dtype(cast.dtype).itemsize
        self._stack = target if isinstance(target, StackTarget) else None
        self._kernel, self._runs = _planned(spec, target, cast, out)
        self.unit_nbytes = self._kernel.unit_nbytes
        """Alignment of the addresses of decoded chunks."""
        nbytes, copy = self._kernel.nbytes, workspace.copy
        self.memory = workspace.device_tables.lend(nbytes, copy)
        """Memory that all launches share."""
        slot = workspace.tables.lend(nbytes)
        self._kernel.pack(slot.array[:nbytes], self.memory.address, out)
        workspace.upload(self.memory.address, slot.array[:nbytes], copy)
        slot.give_back(copy)

    def direct(self, rows: Rows) -> tuple[npt.NDArray[np.bool_], Addresses]:
        """Say which chunks, by rows as `ReadPlan.row`, may be decompressed straight into the result, and to where."""
        if self._runs is None:
            return np.zeros(len(rows), bool), np.zeros(len(rows), np.uint64)
        alone: npt.NDArray[np.bool_] | bool = True
        if self._stack is not None:  # the first box of each chunk, which may be its only one
            alone, rows = self._stack.n_boxes(rows) == 1, self._stack.first_box(rows)
        placement = self._runs.place(rows)
        at = placement.out_offset * self._itemsize + self._out
        return placement.whole & placement.contiguous & alone, at.view(np.uint64)

    def add(self, tables: Tables, rows: Rows, source: Addresses | None = None) -> Places:
        """Add the columns of decoded chunks to a table, of missing ones without `source`; a row for each box."""
        if self._stack is not None:
            source = None if source is None else source.repeat(self._stack.n_boxes(rows))
            rows = self._stack.boxes(rows)
        return Places(row=tables.add(rows), source=None if source is None else tables.add(source), n_rows=len(rows))

    def launch(self, table: Address, places: Places, work: Stream) -> None:
        """Enqueue the placing of chunks whose columns are in the table at an address."""
        if not places.n_rows:
            return
        row, at = Address(table + places.row), self.memory.address
        if places.source is None:
            self._kernel.fill(self._api, work, at=at, row=row, n_rows=places.n_rows)
        else:
            source = Address(table + places.source)
            self._kernel.launch(self._api, work, at=at, src=source, row=row, n_rows=places.n_rows)


_Plan = tuple[Scatter | Points, OutputBoxes | None]
_plans: dict[tuple[Any, ...], _Plan] = {}
"""Plans of boxes that were read lately: the tasks of one array mostly differ in nothing but their shard."""
_MAX_PLANS, _MAX_PIECES = 64, 4096


def _planned(spec: ArraySpec, target: Target, cast: Cast, out: Address) -> _Plan:
    """Return the kernel, and where boxes go if chunks may be decompressed there; planned once for reads cut alike."""
    first = Address(out % max(UNIT_NBYTES))
    # Crops at random places are not cut alike again.
    if not isinstance(target, BoxTarget) or [
        p for p in target.pieces if p.index is not None or len(p.count) > _MAX_PIECES
    ]:
        return _plan(spec, target, cast, first)
    columns = tuple([(p.in_start.tobytes(), p.count.tobytes(), p.step, p.length) for p in target.pieces])
    key = (spec, cast, first, columns)
    planned = _plans.get(key)
    if planned is None:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        planned = _plans[key] = _plan(spec, target, cast, first)
    return planned


def element_cast(stored: np.dtype[Any], cast: Cast) -> ElementCast:
    """Return a cast as kernels carry it out on elements of the dtype `stored`, an unsigned view applied."""
    wide = None if cast.wide_dtype is None else np.dtype(cast.wide_dtype)
    result = np.dtype(cast.dtype)
    return ElementCast(stored=stored, result=result, mask=cast.mask, scale=cast.scale, offset=cast.offset, wide=wide)


def _plan(spec: ArraySpec, target: Target, cast: Cast, out: Address) -> _Plan:
    stored = cast.seen_as(spec.numpy_dtype)
    element = element_cast(stored, cast)
    fill = np.frombuffer(spec.fill, stored)[0]
    if isinstance(target, PointTarget):
        within = target.groups.chunk_offset @ np.array(_chunk_strides(spec), np.int64)
        return Points(target.groups.bounds, within, target.groups.position, element, out=out, fill=fill), None
    is_stack = isinstance(target, StackTarget)
    axes = _stack_axes(spec, target.pieces) if is_stack else _axes(spec, target.pieces, target.shape)
    boxes = OutputBoxes(target.pieces, (1,) * is_stack + spec.grid.chunk_shape, _c_strides(target.shape))
    as_stored = element.is_copy and element.swap_nbytes == 0 and spec.axes == tuple(range(spec.grid.ndim))
    return Scatter(axes, element, out=out, fill=fill), boxes if as_stored and boxes.may_be_contiguous else None


def _axes(spec: ArraySpec, pieces: Sequence[AxisPieces], shape: Sequence[int]) -> list[AxisColumns]:
    return [
        AxisColumns(
            in_start=p.in_start,
            count=p.count,
            out_start=p.out_start if p.index_start is None else p.index_start,
            index=p.index,
            step=p.step,
            in_stride=in_stride,
            out_stride=out_stride,
        )
        for p, in_stride, out_stride in zip(pieces, _chunk_strides(spec), _c_strides(shape), strict=True)
    ]


def _chunk_strides(spec: ArraySpec) -> list[int]:
    """Return the strides of a decoded chunk along the axes of the array, in elements."""
    return [stride // spec.numpy_dtype.itemsize for stride in spec.chunk_strides]


def _c_strides(shape: Sequence[int]) -> list[int]:
    """Return the strides of a result in C order, in elements."""
    return [*np.cumprod([1, *reversed(shape)])[-2::-1].tolist()]


def _stack_axes(spec: ArraySpec, pieces: Sequence[AxisPieces]) -> list[AxisColumns]:
    """Return the axes of a stack.

    The kernel finds the indices of a piece where the piece goes. Where every sample has a row of indices, positions are
    therefore counted over all rows, and the axis of samples takes back what that adds: a length of the axis each.
    """
    samples, *others = pieces
    axes = _axes(spec, others, [p.length for p in others])
    too_far = sum(a.out_stride * p.length for a, p in zip(axes, others, strict=True) if p.index_start is not None)
    first = AxisColumns(
        in_start=samples.in_start,
        count=samples.count,
        out_start=samples.out_start,
        index=None,
        step=1,
        in_stride=math.prod(spec.grid.chunk_shape),
        out_stride=math.prod(p.length for p in others) - too_far,
    )
    return [first, *axes]
