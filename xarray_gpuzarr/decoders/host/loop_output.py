"""The output of a read, described as the compiled loops take it.

`LoopOutput` holds what all calls of the loops for one read have in common: the array's program, the pieces along each
axis, and the address and strides of the output. Reads of the same shape share a `JobStruct`, see `cached_job_struct`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np

from xarray_gpuzarr.decoders.host.host_array import Array, HostArray
from xarray_gpuzarr.native.library import address, int64_columns
from xarray_gpuzarr.native.structs import JobStruct, RowsStruct
from xarray_gpuzarr.plan.axis_pieces import AxisPieces
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.plan.targets import BoxTarget, PointTarget, Target
from xarray_gpuzarr.process.records import record

_NO_NUMBERS = np.zeros(0, np.int64)
_ZERO = np.zeros(1, np.int64)


@record
class _PieceTables:
    """Pieces of the chunks along the axes of the output, as the compiled loops take them."""

    n_pieces: tuple[int, ...]
    """Number of pieces along each axis."""
    steps: tuple[int, ...]
    """Distance between requested elements along each axis."""
    index_addresses: tuple[int, ...]
    """Address of the index array of each axis, 0 for an axis along which elements are evenly spaced. Empty if they are
    evenly spaced along all axes."""
    table_address: int
    """Address of three columns, each with the pieces of all axes one after another: the first requested element of each
    piece (of an index array, the first position in it), the first position in the output, and the count."""
    memory: object
    """Keeps the arrays behind these addresses alive."""


def _tables_of_pieces(pieces: Sequence[AxisPieces]) -> _PieceTables:
    """Return the tables for pieces of any kind. They are empty if there are no axes of pieces, as for points."""
    firsts = []
    indexes = []
    for axis_pieces in pieces:
        if axis_pieces.index is None:
            firsts.append(axis_pieces.in_start)
            indexes.append(0)
            continue
        # For an index array, `firsts` has positions in that array. They equal the positions in the output, unless the
        # indices of all samples of a stack lie one after another in one array.
        starts = axis_pieces.out_start if axis_pieces.index_start is None else axis_pieces.index_start
        firsts.append(starts)
        indexes.append(address(axis_pieces.index))
    positions = [axis_pieces.out_start for axis_pieces in pieces]
    counts = [axis_pieces.count for axis_pieces in pieces]
    table = np.concatenate([_NO_NUMBERS, *firsts, *positions, *counts])
    return _PieceTables(
        n_pieces=tuple([len(axis_pieces.count) for axis_pieces in pieces]),
        steps=tuple([axis_pieces.step for axis_pieces in pieces]),
        index_addresses=tuple(indexes) if any(indexes) else (),
        table_address=address(table),
        memory=(table, pieces),
    )


def _job_struct(
    array: HostArray,
    n_pieces: tuple[int, ...],
    steps: tuple[int, ...],
    out_strides: tuple[int, ...],
    index_addresses: tuple[int, ...],
    n_sample_axes: int,
) -> tuple[JobStruct, object]:
    """Describe all reads of an array whose outputs have these strides, and pieces of these numbers and steps.

    The struct lacks the address of the output and that of the table of pieces. `n_sample_axes` is 1 if the output has
    a leading axis of samples, which chunks do not have, else 0.

    Returns
    -------
    JobStruct
        A template to copy.
    object
        Keeps the memory that the struct points to alive.
    """
    assert array.program is not None
    ndim = len(n_pieces)  # 0 for points, which have no pieces: then no column below has an entry for an axis
    numbers, addresses = int64_columns(
        first_piece=[*accumulate(n_pieces, initial=0)],
        chunk_shape=((1,) * n_sample_axes + array.chunk_shape)[:ndim],
        in_strides=((0,) * n_sample_axes + array.placed_strides)[:ndim],
        steps=steps,
        out_strides=out_strides[:ndim],
        index=index_addresses,
    )
    fill = array.fill.tobytes()
    struct = JobStruct.from_buffer_copy(array.program.struct)
    struct.ndim = ndim
    struct.n_pieces = sum(n_pieces)
    struct.fill = fill
    struct.first_piece = addresses["first_piece"]
    struct.chunk_shape = addresses["chunk_shape"]
    struct.in_strides = addresses["in_strides"]
    struct.every = addresses["steps"]  # the C name of `steps`
    struct.out_strides = addresses["out_strides"]
    struct.index = addresses["index"]
    return struct, (numbers, fill)


cached_job_struct = lru_cache(maxsize=64)(_job_struct)
"""`_job_struct` of the latest reads: most reads of an array have the same shape."""


class LoopOutput:
    """The output of one read, in a form that the compiled loops take.

    Parameters
    ----------
    array : HostArray
        An array with a program of the loops.
    target : Target
        Elements to read.
    out : numpy.ndarray
        Result of the read, shape `target.shape`, any strides.
    """

    def __init__(self, array: HostArray, target: Target, out: Array) -> None:
        assert array.loops is not None
        assert array.program is not None
        self._target = target
        self._loops = array.loops
        self.scratch_nbytes = array.program.scratch_nbytes
        """Scratch of each thread in bytes."""
        self._in_strides = array.placed_strides
        self._out_stride = out.strides[0] if out.ndim else 0  # for points, whose output is flat
        if isinstance(target, BoxTarget) and target.spans is not None:
            # For a box of evenly spaced elements, the loops write the table of pieces.
            spans = target.spans
            n_pieces = tuple([span.n_pieces for span in spans])
            n_pieces_in_all = sum(n_pieces)
            memory = np.empty(3 * n_pieces_in_all, np.int64)
            tables = _PieceTables(
                n_pieces=n_pieces,
                steps=tuple([span.step for span in spans]),
                index_addresses=(),
                table_address=address(memory),
                memory=memory,
            )
            array.loops.cut_axes(target.spans_address, len(spans), n_pieces_in_all, tables.table_address)
        else:
            tables = _tables_of_pieces(() if isinstance(target, PointTarget) else target.pieces)
        n_sample_axes = int(isinstance(target, StackTarget))
        # Other reads have index arrays at other addresses, so nothing is gained by caching these.
        job_struct = _job_struct if tables.index_addresses else cached_job_struct
        template, template_memory = job_struct(
            array, tables.n_pieces, tables.steps, out.strides, tables.index_addresses, n_sample_axes
        )
        self._referenced = tables, template_memory, out, array  # keeps the memory that the struct points to alive
        self._struct = struct = JobStruct.from_buffer_copy(template)
        struct.pieces = tables.table_address
        struct.out = address(out)
        self.address = ctypes.addressof(struct)
        """Address of the `JobStruct`."""

    def place_rows(self, rows_address: int, start: int, stop: int, scratch_address: int, n_threads: int) -> int:
        """Decode and place the rows ``[start, stop)``, which are in memory; return the number of rows that were left.

        `rows_address` is the address of a `RowsStruct`, and `scratch_address` the address of scratch memory, of which
        each thread needs `scratch_nbytes`.
        """
        return int(self._loops.place_rows(self.address, rows_address, start, stop, scratch_address, n_threads))

    def read_rows(
        self, rows_address: int, files_address: int, start: int, stop: int, scratch_address: int, n_threads: int
    ) -> int:
        """Read, decode and place the rows ``[start, stop)`` of local files; return the number of rows that were left.

        `rows_address` and `files_address` are the addresses of a `RowsStruct` and a `FilesStruct`, and
        `scratch_address` is the address of scratch memory, of which each thread needs `scratch_nbytes`.
        """
        return int(
            self._loops.read_rows(self.address, rows_address, files_address, start, stop, scratch_address, n_threads)
        )

    def set_boxes(self, plan: ReadPlan, struct: RowsStruct) -> object:
        """Set the addresses of the boxes or points of the output that each chunk of a plan decodes to.

        Returns
        -------
        object
            Arrays that `struct` points to; the caller keeps them alive. None if these are part of the plan.
        """
        target = self._target
        if isinstance(target, BoxTarget):
            struct.boxes = plan.addresses["all_piece_numbers"]
            return None
        if isinstance(target, StackTarget):
            boxes = target.boxes(plan.all_piece_numbers)
            first_box = np.concatenate([_ZERO, target.n_boxes(plan.all_piece_numbers).cumsum()])
            struct.boxes = address(boxes)
            struct.first_box = address(first_box)
            return boxes, first_box
        return self._set_points(target, plan, struct)

    def _set_points(self, target: PointTarget, plan: ReadPlan, struct: RowsStruct) -> object:
        """Set the addresses of the offsets in bytes of each chunk's points, in the chunk and in the output."""
        groups = target.groups
        group = plan.all_piece_numbers[:, 0]
        start = groups.bounds.take(group)
        n_points = groups.bounds.take(group + 1) - start
        first_point = np.concatenate([_ZERO, n_points.cumsum()])
        # Numbers of the points of all rows, row by row. A row has the points ``start, start + 1, ...`` of the target.
        points = np.arange(first_point[-1]) + (start - first_point[:-1]).repeat(n_points)
        in_offset = np.ascontiguousarray(
            groups.chunk_offset.take(points, axis=0) @ np.array(self._in_strides, np.int64)
        )
        out_offset = np.ascontiguousarray(groups.position.take(points) * self._out_stride)
        struct.in_at = address(in_offset)
        struct.out_at = address(out_offset)
        struct.first_box = address(first_point)  # for points, the loops take the first point of each row from here
        return in_offset, out_offset, first_point
