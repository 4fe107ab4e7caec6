"""Decoded chunks -> result: what the kernels need to know about a target, said once per read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.axes import LEAST_TILE, MAX_AXES, MAX_BOX
from xarray_gpuzarr.cuda.elements import UNIT_NBYTES
from xarray_gpuzarr.cuda.launch import MAX_BLOCKS, AxisColumns, ElementCast, Points, Scatter
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.tables import Tables, offset_by
from xarray_gpuzarr.plan.axis_pieces import AxisPieces, largest_box
from xarray_gpuzarr.plan.output_boxes import OutputBoxes
from xarray_gpuzarr.plan.read_plan import BoxTarget, PointTarget, Target
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

Rows = npt.NDArray[np.int64]
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
    elif all(pieces.index is None for pieces in target.pieces):
        return True
    else:
        largest = largest_box(target.pieces)
    return largest < MAX_BOX and n_boxes * -(-largest // LEAST_TILE) <= MAX_BLOCKS


@record
class Places:
    """Columns of one launch, by their offsets in a table."""

    row: int
    source: int | None
    """None for missing chunks."""
    n_rows: int


class Placing:
    """Places the chunks of one read in its result.

    Parameters
    ----------
    workspace : Workspace
    spec : ArraySpec
    target : BoxTarget, PointTarget or StackTarget
    cast : Cast
        To a dtype in the machine's byte order.
    out : Address
        First element of the result.
    """

    def __init__(self, workspace: Workspace, spec: ArraySpec, target: Target, *, cast: Cast, out: Address) -> None:
        self._workspace = workspace
        self._out = out
        stored, result = cast.seen_as(spec.numpy_dtype), np.dtype(cast.dtype)
        element = ElementCast(stored=stored, result=result, mask=cast.mask, scale=cast.scale, offset=cast.offset)
        self._itemsize = result.itemsize
        self._stack = target if isinstance(target, StackTarget) else None
        self._runs: OutputBoxes | None = None
        fill = np.frombuffer(spec.fill, stored)[0]
        if isinstance(target, PointTarget):
            self._kernel: Scatter | Points = _points(spec, target, element, fill)
        else:
            self._kernel, places = _scatter(spec, target, element, fill, out)
            as_stored = element.is_copy and element.swap_nbytes == 0 and spec.axes == tuple(range(spec.grid.ndim))
            self._runs = places if as_stored and places.may_be_runs else None
        self.memory = self._send()
        """What all launches share, sent on the workspace's `first` stream; the read gives it back."""

    @property
    def unit_nbytes(self) -> int:
        """What addresses of decoded chunks must be multiples of."""
        return self._kernel.unit_nbytes

    def direct(self, rows: Rows) -> tuple[npt.NDArray[np.bool_], Addresses]:
        """Say which chunks may be decompressed straight into the result, and to which address.

        Parameters
        ----------
        rows : int64, shape (n, k)
            As `ReadPlan.row`.
        """
        if self._runs is None:
            return np.zeros(len(rows), bool), np.zeros(len(rows), np.uint64)
        alone: npt.NDArray[np.bool_] | bool = True
        if self._stack is not None:  # the first box of each chunk, which may be its only one
            alone, rows = self._stack.n_boxes(rows) == 1, self._stack.first_box(rows)
        placement = self._runs.place(rows)
        at = placement.out_at * self._itemsize + self._out
        return placement.whole & placement.contiguous & alone, at.view(np.uint64)

    def add(self, tables: Tables, rows: Rows, source: Addresses) -> Places:
        """Add the columns of decoded chunks to a table: of a stack, a row for each of their boxes."""
        if self._stack is not None:
            source, rows = source.repeat(self._stack.n_boxes(rows)), self._stack.boxes(rows)
        return Places(row=tables.add(rows), source=tables.add(source), n_rows=len(rows))

    def add_missing(self, tables: Tables, rows: Rows) -> Places:
        """Add the columns of missing chunks to a table."""
        if self._stack is not None:
            rows = self._stack.boxes(rows)
        return Places(row=tables.add(rows), source=None, n_rows=len(rows))

    def launch(self, table: DeviceMemory, places: Places, work: Stream) -> None:
        """Enqueue the placing of chunks whose columns are in `table`."""
        if not places.n_rows:
            return
        row, at, api = offset_by(table, places.row), self.memory.address, self._workspace.api
        if places.source is None:
            self._kernel.fill(api, work, at=at, row=row, n_rows=places.n_rows)
        else:
            source = offset_by(table, places.source)
            self._kernel.launch(api, work, at=at, src=source, row=row, n_rows=places.n_rows)

    def _send(self) -> DeviceMemory:
        nbytes = self._kernel.nbytes
        slot, first = self._workspace.tables.lend(nbytes), self._workspace.first
        memory = self._workspace.lend_table(nbytes, first)
        self._kernel.pack(slot.array[:nbytes], memory.address, self._out)
        self._workspace.upload(memory.address, slot.array[:nbytes], first)
        slot.give_back(first)
        return memory


_scatters: dict[tuple[Any, ...], tuple[Scatter, OutputBoxes]] = {}
"""Of boxes that were read lately: the tasks of one array mostly differ in nothing but their shard."""
_MAX_SCATTERS, _MAX_PIECES = 64, 4096


def _scatter(
    spec: ArraySpec, target: BoxTarget | StackTarget, element: ElementCast, fill: np.generic, out: Address
) -> tuple[Scatter, OutputBoxes]:
    """Return the kernel for boxes and where they go, planned once for all reads that are cut alike."""
    is_stack, first = isinstance(target, StackTarget), Address(out % max(UNIT_NBYTES))

    def planned() -> tuple[Scatter, OutputBoxes]:
        axes = _stack_axes(spec, target.pieces) if is_stack else _axes(spec, target.pieces, target.shape)
        boxes = OutputBoxes(target.pieces, (1,) * is_stack + spec.grid.chunk_shape, _c_strides(target.shape))
        return Scatter(axes, element, out=first, fill=fill), boxes

    # Crops at random places are not cut alike again.
    if is_stack or any(p.index is not None or len(p.count) > _MAX_PIECES for p in target.pieces):
        return planned()
    columns = tuple((p.in_start.tobytes(), p.count.tobytes(), p.step, p.length) for p in target.pieces)
    key = (spec.grid.chunk_shape, spec.axes, element, spec.fill, first, columns)
    found = _scatters.get(key)
    if found is None:
        if len(_scatters) >= _MAX_SCATTERS:
            _scatters.clear()
        found = _scatters[key] = planned()
    return found


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
    strides: list[int] = np.cumprod([1, *reversed(shape)])[-2::-1].tolist()
    return strides


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


def _points(spec: ArraySpec, target: PointTarget, element: ElementCast, fill: np.generic) -> Points:
    groups = target.groups
    within = groups.within @ np.array(_chunk_strides(spec), np.int64)
    return Points(groups.bounds, within, groups.position, element, out=Address(0), fill=fill)
