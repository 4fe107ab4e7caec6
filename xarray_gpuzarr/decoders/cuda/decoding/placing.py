"""Place decoded chunks in the result: what the kernels need to know about a target, prepared once per read.

`Placing` packs the parameters of a read for the kernel of boxes (`Scatter`) or of points (`Points`). Each batch then
adds the columns of its chunks to a `BatchTable`, and launches the kernel on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.axes import LEAST_TILE, MAX_AXES, MAX_BLOCKS, MAX_BOX, AxisColumns
from xarray_gpuzarr.cuda.cast import MAX_UNIT_NBYTES, ElementCast
from xarray_gpuzarr.cuda.placers import Points, Scatter
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.plan.axis_pieces import AxisPieces, largest_box
from xarray_gpuzarr.plan.output_boxes import OutputBoxes
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.plan.targets import BoxTarget, PointTarget, Target
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

Addresses = npt.NDArray[np.uint64]
"""Device addresses, in host memory."""


def fits_kernels(target: Target) -> bool:
    """Whether the kernels can place the chunks of a target.

    They cannot if a selection repeats elements so often that one box has too many elements, or that all boxes together
    need too many blocks of threads. A launch has as many blocks for each box as the largest box needs. A stack must not
    have too many axes. Arrays whose chunks are too long are not asked about here, because `routes` excludes them.
    """
    n_boxes = target.n_chunks
    if isinstance(target, PointTarget):
        largest = int(np.diff(target.groups.bounds).max(initial=0))
    elif isinstance(target, StackTarget):
        if len(target.pieces) > MAX_AXES:  # the axis of samples is one of them
            return False
        n_boxes = len(target.groups.boxes)
        largest = largest_box(target.pieces)
    elif all(pieces.index is None for pieces in target.pieces):
        # Nothing is repeated: a box is no larger than a chunk, and all boxes together are as large as the result.
        return True
    else:
        largest = largest_box(target.pieces)
    return largest < MAX_BOX and n_boxes * -(-largest // LEAST_TILE) <= MAX_BLOCKS


class BatchTable:
    """Columns of 8-byte integers that cross to the device in one copy."""

    def __init__(self) -> None:
        self._columns: list[npt.NDArray[np.uint64]] = []
        self._n_words = 0

    def add(self, *columns: npt.NDArray[Any]) -> int:
        """Append columns of 8-byte integers, one after another; return the offset of the first one in bytes."""
        offset = 8 * self._n_words
        for column in columns:
            if column.size:
                self._columns.append(column.reshape(-1).view(np.uint64))
                self._n_words += column.size
        return offset

    def upload(self, workspace: Workspace) -> DeviceMemory:
        """Copy all columns to device memory on the workspace's `copy` stream; return the memory, which is borrowed."""
        nbytes = 8 * self._n_words
        slot = workspace.tables.borrow(nbytes)
        packed = slot.array[:nbytes]
        np.concatenate(self._columns, out=packed.view(np.uint64))
        memory = workspace.device_tables.borrow(nbytes, workspace.copy)
        workspace.upload(memory.address, packed, workspace.copy)
        slot.release_after(workspace.copy)
        return memory


@record
class LaunchColumns:
    """Columns of one launch, given by their offsets in a `BatchTable`, in bytes."""

    row: int
    """Rows of piece numbers, one for each box."""
    source: int | None
    """Addresses of the decoded chunks; None for missing chunks."""
    n_rows: int
    """Number of boxes."""


class Placing:
    """Places the chunks of one read in its result.

    Parameters
    ----------
    workspace : Workspace
        Lends device memory for the parameters, which are uploaded on its `copy` stream.
    spec : ArraySpec
        Array that is read.
    target : Target
        Selection, and shape of the result.
    cast : Cast
        Its dtype is the dtype of the result, in the machine's byte order.
    out : Address
        Address of the result, which is in C order.
    """

    def __init__(self, workspace: Workspace, spec: ArraySpec, target: Target, *, cast: Cast, out: Address) -> None:
        self._api = workspace.api
        self._out = out
        self._itemsize = np.dtype(cast.dtype).itemsize
        self._stack = target if isinstance(target, StackTarget) else None
        self._kernel, self._direct_boxes = _cached_kernel(spec, target, cast, out)
        self.unit_nbytes = self._kernel.unit_nbytes
        """Number of bytes that the addresses of decoded chunks must be multiples of."""
        nbytes = self._kernel.nbytes
        copy = workspace.copy
        self.memory = workspace.device_tables.borrow(nbytes, copy)
        """Parameters of the kernel, shared by all launches of the read."""
        slot = workspace.tables.borrow(nbytes)
        self._kernel.pack(slot.array[:nbytes], self.memory.address, out)
        workspace.upload(self.memory.address, slot.array[:nbytes], copy)
        slot.release_after(copy)

    def find_direct(self, piece_numbers: Column) -> tuple[npt.NDArray[np.bool_], Addresses]:
        """Return which chunks may be decompressed straight into the result, and the address of each one there.

        `piece_numbers` are as in `ReadPlan`. The first result is True for a chunk that is wanted as a whole, once,
        without a cast, and is contiguous in the result. The addresses of other chunks are meaningless.
        """
        if self._direct_boxes is None:
            return np.zeros(len(piece_numbers), bool), np.zeros(len(piece_numbers), np.uint64)
        is_only_box: npt.NDArray[np.bool_] | bool = True
        if self._stack is not None:
            is_only_box = self._stack.n_boxes(piece_numbers) == 1
            piece_numbers = self._stack.first_box(piece_numbers)
        placement = self._direct_boxes.place(piece_numbers)
        addresses = placement.out_offset * self._itemsize + self._out
        return placement.whole & placement.contiguous & is_only_box, addresses.view(np.uint64)

    def add_columns(self, table: BatchTable, piece_numbers: Column, source: Addresses | None = None) -> LaunchColumns:
        """Add the columns of chunks to a table: of decoded chunks at the addresses `source`, or of missing chunks."""
        if self._stack is not None:
            if source is not None:
                source = source.repeat(self._stack.n_boxes(piece_numbers))
            piece_numbers = self._stack.boxes(piece_numbers)
        row_offset = table.add(piece_numbers)
        source_offset = None if source is None else table.add(source)
        return LaunchColumns(row=row_offset, source=source_offset, n_rows=len(piece_numbers))

    def launch(self, table: Address, columns: LaunchColumns, stream: Stream) -> None:
        """Enqueue the placing of the chunks whose columns are in the table at the address `table`."""
        if not columns.n_rows:
            return
        row = Address(table + columns.row)
        parameters = self.memory.address
        if columns.source is None:
            self._kernel.fill(self._api, stream, table=parameters, row=row, n_rows=columns.n_rows)
        else:
            source = Address(table + columns.source)
            self._kernel.launch(self._api, stream, table=parameters, source=source, row=row, n_rows=columns.n_rows)


_PreparedKernel = tuple[Scatter | Points, OutputBoxes | None]
"""The kernel that places chunks, and the boxes of the result if chunks may be decompressed straight into them."""
_prepared_kernels: dict[tuple[Any, ...], _PreparedKernel] = {}
"""Kernels of recent reads of boxes. The tasks of one array mostly differ only in their shard, and share a kernel."""
_MAX_PREPARED = 64
"""Number of kernels that are kept. When there are as many, all are dropped before the next one is kept."""
_MAX_PIECES = 4096
"""Number of pieces on an axis above which a kernel is not kept: making the key would take too long."""


def _cached_kernel(spec: ArraySpec, target: Target, cast: Cast, out: Address) -> _PreparedKernel:
    """Return the kernel of a read, from the cache if a read of the same layout came before.

    Selections by index, such as random crops, hardly ever have the same layout again, and are not kept.
    """
    # The choice of a kernel depends only on the alignment of the output. `pack` is given its full address.
    alignment = Address(out % MAX_UNIT_NBYTES)
    if not isinstance(target, BoxTarget):
        return _prepare_kernel(spec, target, cast, alignment)
    if any(pieces.index is not None or len(pieces.count) > _MAX_PIECES for pieces in target.pieces):
        return _prepare_kernel(spec, target, cast, alignment)
    # The kernel also packs `out_start`, which the counts determine: slices fill the output without gaps.
    layout = tuple(
        [(pieces.in_start.tobytes(), pieces.count.tobytes(), pieces.step, pieces.length) for pieces in target.pieces]
    )
    key = (spec, cast, alignment, layout)
    prepared = _prepared_kernels.get(key)
    if prepared is None:
        if len(_prepared_kernels) >= _MAX_PREPARED:
            _prepared_kernels.clear()
        prepared = _prepared_kernels[key] = _prepare_kernel(spec, target, cast, alignment)
    return prepared


def element_cast(stored: np.dtype[Any], cast: Cast) -> ElementCast:
    """Return a cast as the kernels carry it out on elements of dtype `stored`, after any unsigned view."""
    wide = None if cast.wide_dtype is None else np.dtype(cast.wide_dtype)
    result = np.dtype(cast.dtype)
    return ElementCast(stored=stored, result=result, mask=cast.mask, scale=cast.scale, offset=cast.offset, wide=wide)


def _prepare_kernel(spec: ArraySpec, target: Target, cast: Cast, out: Address) -> _PreparedKernel:
    """Return the kernel of a read, and boxes if chunks may be decompressed straight into the result.

    `out` is an address of the same alignment as the result.
    """
    stored = cast.viewed_dtype(spec.numpy_dtype)
    element = element_cast(stored, cast)
    fill = np.frombuffer(spec.fill, stored)[0]
    if isinstance(target, PointTarget):
        offsets = target.groups.chunk_offset @ np.array(_chunk_strides(spec), np.int64)
        return Points(target.groups.bounds, offsets, target.groups.position, element, out=out, fill=fill), None
    if isinstance(target, StackTarget):
        axes = _stack_axes(spec, target.pieces)
        chunk_shape = (1, *spec.grid.chunk_shape)
    else:
        axes = _axes(spec, target.pieces, target.shape)
        chunk_shape = spec.grid.chunk_shape
    kernel = Scatter(axes, element, out=out, fill=fill)
    boxes = OutputBoxes(target.pieces, chunk_shape, _c_strides(target.shape))
    is_stored_as_result = element.is_copy and element.swap_nbytes == 0 and spec.axes == tuple(range(spec.grid.ndim))
    if is_stored_as_result and boxes.may_be_contiguous:
        return kernel, boxes
    return kernel, None


def _axes(spec: ArraySpec, pieces: Sequence[AxisPieces], shape: Sequence[int]) -> list[AxisColumns]:
    """Return the axes of a target of a shape, as the kernel of boxes wants them."""
    # The kernel takes `out_start` also as the first position in `index`. Where the two differ, which they may only for
    # a stack, it gets the position in `index`, and `_stack_axes` corrects the position in the output.
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
    """Return the strides of an array of a shape in C order, in elements."""
    sizes = np.cumprod([1, *reversed(shape)])
    return [*sizes[-2::-1].tolist()]  # without the size of the whole array, which comes last in `sizes`


def _stack_axes(spec: ArraySpec, pieces: Sequence[AxisPieces]) -> list[AxisColumns]:
    """Return the axes of a stack of samples, the axis of samples first.

    The kernel finds the index of an element at the element's output position. If every sample has its own row of
    indices on an axis, output positions on that axis count through the rows of all samples. With L positions in a row,
    position p of sample s is s * L + p. The axis of samples then has the stride sample_stride - L * out_stride, so that
    elements still go to the right place: (s * L + p) * out_stride + s * (sample_stride - L * out_stride) is
    p * out_stride + s * sample_stride.
    """
    samples, *others = pieces
    axes = _axes(spec, others, [p.length for p in others])
    strides_of_rows = [
        axis.out_stride * p.length for axis, p in zip(axes, others, strict=True) if p.index_start is not None
    ]
    sample_axis = AxisColumns(
        in_start=samples.in_start,
        count=samples.count,
        out_start=samples.out_start,
        index=None,
        step=1,
        in_stride=math.prod(spec.grid.chunk_shape),
        out_stride=math.prod(p.length for p in others) - sum(strides_of_rows),
    )
    return [sample_axis, *axes]
