"""Calls of the compiled loops, which read, decode and place chunks without holding the GIL.

`LoopTable` is the chunk table of one plan, as the loops take it. Chunks of local files that are in the page cache are
read by the call that decodes them, each by the thread that decodes it. The fill value is written where chunks are
missing. Chunks that the loops cannot treat are left: Python reads and decodes them.
"""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.cached_read import PlanChunks
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.decoders.host.schedule import Schedule
from xarray_gpuzarr.fetch.source import ByteSource
from xarray_gpuzarr.native.library import address, int64_columns, view_address
from xarray_gpuzarr.native.structs import FilesStruct, RowsStruct
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.host_memory import borrow_buffer
from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.process.turns import turns

READ_BUFFER_NBYTES = 256 * 1024
"""Neighbouring chunks of a file are read together up to this many bytes, which stay in a core's cache."""
_BLOCK_NBYTES = 512
"""What the page cache holds of a file ends at a multiple of this number (a sector), or with the file. So a read that is
shorter than its buffer, and no multiple of it, has reached the end of the file. This is `BLOCK_NBYTES` in `files.h`."""
_PLACED, _LEFT = 0, 1
"""Status of a row: its chunk was placed, or is left to Python; `DONE` and `LEFT` in `job.h`."""
_IS_DECODED = -3
"""Stands in the place of a chunk's encoded length if the chunk is decoded already; `DECODED` in `job.h`."""
_NO_VERSION = (0,) * 5
"""Version of a shard that does not exist, so that nothing is read from it."""
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


class EncodedChunks:
    """Encoded chunks of consecutive rows of a plan, in host memory until the next request of this thread.

    Parameters
    ----------
    plan : ReadPlan
        The plan that the chunks belong to.
    bounds : sequence of int
        Part ``i`` consists of the rows ``[bounds[i], bounds[i + 1])``.
    data : sequence of memoryview or None
        Bytes of each part, from the first byte of its first chunk on; None if the object does not exist.
    """

    def __init__(self, plan: ReadPlan, bounds: Sequence[int], data: Sequence[memoryview | None]) -> None:
        self.rows = range(bounds[0], bounds[-1])
        self._plan = plan
        self._bounds = bounds
        self._data = data

    def __getitem__(self, row: int) -> memoryview | None:
        """Return the encoded bytes of a row; None if the chunk was never written."""
        part = bisect_right(self._bounds, row) - 1
        data = self._data[part]
        nbytes = int(self._plan.nbytes[row])
        if data is None or nbytes == WHOLE_OBJECT:
            return data
        start = int(self._plan.offset[row] - self._plan.offset[self._bounds[part]])
        return data[start : start + nbytes]

    def locate(self) -> tuple[Column, Column]:
        """Return the address of each row's bytes, and their number.

        The number is -1 for an unsharded chunk that was never written. It is less than the plan's `nbytes` if the
        answer was too short.
        """
        parts = [(0, -1) if data is None else (view_address(data), len(data)) for data in self._data]
        part_address, part_nbytes = np.array(parts, np.int64).T
        rows = slice(self.rows.start, self.rows.stop)
        nbytes = self._plan.nbytes[rows]
        if len(part_nbytes) == len(nbytes):  # each row is a part, as all unsharded chunks are
            # A row of a shard has no more bytes than have arrived, and 0 without an object. A whole object has what has
            # arrived, and -1 if there is none.
            available = np.minimum(nbytes, np.maximum(part_nbytes, 0))
            return part_address, np.where(nbytes == WHOLE_OBJECT, part_nbytes, available)
        bounds = np.array(self._bounds, np.int64)
        part = np.arange(len(part_nbytes)).repeat(np.diff(bounds))
        start = self._plan.offset[rows] - self._plan.offset.take(bounds[:-1]).take(part)
        available = np.maximum(part_nbytes.take(part) - start, 0)
        return part_address.take(part) + start, np.minimum(nbytes, available)


class LoopTable:
    """The chunk table of one plan, in a form that the compiled loops take, and the calls of the loops with it.

    Parameters
    ----------
    output : LoopOutput
        The output of the read.
    plan : ReadPlan
        Chunks to read, one row each.
    source : ByteSource
        Where the encoded chunks are stored.
    chunks : PlanChunks or None
        Chunks of the plan that are decoded already, and those that are to be decoded as a whole and kept.
    """

    def __init__(
        self, output: LoopOutput, plan: ReadPlan, source: ByteSource, chunks: PlanChunks | None = None
    ) -> None:
        self._output = output
        self._n_chunks = plan.n_chunks
        self._n_stored = plan.n_stored
        # Three columns: addresses of encoded chunks, their lengths, and room for a status per row, of one byte each.
        self._columns = np.empty(3 * self._n_chunks, np.int64)
        first = address(self._columns)
        column_nbytes = self._columns.itemsize * self._n_chunks
        self._columns[self._n_chunks : 2 * self._n_chunks] = plan.all_nbytes
        struct = RowsStruct(src=first, nbytes=first + column_nbytes, left=first + 2 * column_nbytes)
        boxes = output.set_boxes(plan, struct)
        decoded = None if chunks is None else self._fill_chunks(chunks, struct)
        self._referenced = struct, boxes, plan, decoded
        self._address = ctypes.addressof(struct)
        self.is_decoded = chunks is not None and len(chunks.cached) == self._n_stored
        """Whether all stored chunks are decoded already."""
        reads_files = source.is_local and self._n_stored > 0 and not self.is_decoded
        self.files = local_files(plan, source) if reads_files else None
        """Description of the files that the loops read the chunks from, and what keeps its memory alive; None if
        Python fetches the chunks, also where `local_files` returns None."""

    def _fill_chunks(self, chunks: PlanChunks, struct: RowsStruct) -> object:
        """Fill in the addresses of cached chunks, and of the memory for chunks that are to be kept.

        Returns an object that keeps all of this memory alive.
        """
        src = self._columns[: self._n_chunks]
        nbytes = self.nbytes
        for row, chunk in chunks.cached.items():
            src[row] = chunk.address
            nbytes[row] = _IS_DECODED
        if not chunks.to_keep:
            return chunks
        whole = np.zeros(self._n_chunks, np.int64)  # address that a chunk is decoded to; 0 for one that is not kept
        for row, (_, chunk) in chunks.to_keep.items():
            whole[row] = chunk.address
        struct.whole = address(whole)
        return chunks, whole

    @property
    def _status(self) -> npt.NDArray[np.uint8]:
        """Status of each row, uint8: item `i` is that of row `i`, undefined until a call has treated the row."""
        return self._columns[2 * self._n_chunks :].view(np.uint8)

    @property
    def nbytes(self) -> Column:
        """Length of each encoded chunk, shape (n,).

        Lengths of files that the loops read whole are `WHOLE_OBJECT` until the loops set them. Missing chunks, whose
        rows come last, have `MISSING`, which is the same number. Chunks that are decoded already have `_IS_DECODED`.
        """
        return self._columns[self._n_chunks : 2 * self._n_chunks]

    def placed_rows(self, rows: Iterable[int]) -> list[int]:
        """Return those of `rows` that the loops have decoded and placed. All rows must have been treated."""
        status = self._status
        return [row for row in rows if status[row] == _PLACED]

    def set_encoded(self, chunks: EncodedChunks) -> None:
        """Set the addresses and lengths of encoded chunks that were fetched."""
        rows = slice(chunks.rows.start, chunks.rows.stop)
        self._columns[rows], self.nbytes[rows] = chunks.locate()

    def place(self, rows: range, schedule: Schedule) -> Sequence[int]:
        """Decode and place rows whose addresses are set or whose chunks are missing; return the rows that were left."""
        output = self._output
        scratch_address = 0  # none, which suffices if all rows are missing chunks
        with crew.reserve_threads(schedule.n_loop_threads, schedule.budget) as n_threads:
            if rows.start < self._n_stored:
                _scratch, scratch_address = borrow_buffer("scratch", output.scratch_nbytes * n_threads)
            n_remaining = output.place_rows(self._address, rows.start, rows.stop, scratch_address, n_threads)
        return self._rows_left(rows) if n_remaining else ()

    def read(self, rows: range, schedule: Schedule) -> Sequence[int]:
        """Read rows from `files`, decode and place them; return the rows that were left. Missing chunks are filled.

        The first call of the loops asks the disk for whatever is not in the page cache, and leaves these rows. A second
        call treats the rows that were left, and waits for the disk; another thread may have this thread's turn
        meanwhile. If memory is short, the loops may leave all rows of unsharded chunks untried. Some of the rows that
        are returned then have no object, as Python finds out when it fetches them.
        """
        assert self.files is not None
        files = FilesStruct.from_buffer_copy(self.files[0])  # a copy, since the loops write to it
        n_remaining = self.read_once(files, rows, schedule)
        if files.is_cold:
            files.waits = 1
            n_remaining = turns.run_without(partial(self.read_once, files, rows, schedule))
        counters.add(read_nbytes=files.n_read)
        return self._rows_left(rows) if n_remaining else ()

    def read_once(self, files: FilesStruct, rows: range, schedule: Schedule) -> int:
        """Call the loops once to read, decode and place rows; return the number of rows that were left.

        The call waits for the disk if ``files.waits`` is set.
        """
        output = self._output
        with crew.reserve_threads(schedule.n_loop_threads, schedule.budget) as n_threads:
            _scratch, scratch_address = borrow_buffer("scratch", output.scratch_nbytes * n_threads)
            _buffer, files.room = borrow_buffer("staging", files.room_nbytes * n_threads)
            files_address = ctypes.addressof(files)
            return output.read_rows(self._address, files_address, rows.start, rows.stop, scratch_address, n_threads)

    def _rows_left(self, rows: range) -> list[int]:
        """Return those of `rows` that the last call has left."""
        status = self._status[rows.start : rows.stop]
        left: list[int] = ((status == _LEFT).nonzero()[0] + rows.start).tolist()
        return left


def whole_blocks(nbytes: int) -> int:
    """Return the length in bytes of the blocks that hold the first `nbytes` bytes of a file.

    If so many bytes are requested of a file of `nbytes` bytes, the read stops inside the last block, unless the file
    fills this block. So the loops see without a second read where the file ends.
    """
    return -(-nbytes // _BLOCK_NBYTES) * _BLOCK_NBYTES


def encoded_path(path: str) -> bytes | None:
    """Return a path as the system takes it; None if no file can have this path.

    This is `os.fsencode` for a str, in a third of the time.
    """
    try:
        encoded = path.encode(_ENCODING, _ERRORS)
    except UnicodeEncodeError:
        return None
    return None if b"\0" in encoded else encoded


def local_files(plan: ReadPlan, source: ByteSource) -> tuple[FilesStruct, object] | None:
    """Return the files that hold the chunks of a plan; None if one of their paths cannot be that of a file.

    Parameters
    ----------
    plan : ReadPlan
        A plan with at least one stored chunk.
    source : ByteSource
        A source whose objects are local files.

    Returns
    -------
    FilesStruct
        Describes the files. `room`, the memory that threads read into, is not set; `room_nbytes` is what each thread
        needs. In shards, this is the length of the longest chunk, or of the neighbours that are read together. For
        unsharded chunks, it is a length that they usually do not exceed; longer files are left to Python.
    object
        Keeps the memory that the struct points to alive.
    """
    paths = bytearray()
    path_starts: list[int] = []
    versions: list[int] = []
    for key in plan.keys:
        path, version = source.local_file(key)
        encoded = encoded_path(path)
        if encoded is None:
            return None
        path_starts.append(len(paths))
        paths += encoded + b"\0"
        versions += version or _NO_VERSION
    if plan.spec.index is not None:
        rule = source.rule
        max_gap_nbytes = rule.max_gap_nbytes
        buffer_nbytes = max(plan.longest_nbytes, min(READ_BUFFER_NBYTES, rule.max_nbytes))
        offset_address = plan.addresses["offset"]
    else:
        max_gap_nbytes = 0
        buffer_nbytes = whole_blocks(plan.spec.expected_nbytes)
        offset_address = 0
        versions = []  # an unsharded chunk is read as a whole, whatever its version is
    numbers, addresses = int64_columns(path_starts=path_starts, versions=versions)
    struct = FilesStruct(
        paths=bytes(paths),
        path_at=addresses["path_starts"],
        version=addresses["versions"],
        file=plan.addresses["object"],
        offset=offset_address,
        room_nbytes=buffer_nbytes,
        max_gap_nbytes=max_gap_nbytes,
        most_nbytes=plan.spec.max_encoded_nbytes,
    )
    return struct, (numbers, plan)
