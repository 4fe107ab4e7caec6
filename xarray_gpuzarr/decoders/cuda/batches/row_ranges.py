"""Cut plans into row ranges, and row ranges into segments and batches. Pure.

A segment is what crosses to the device in one copy, and a batch is what one call decodes. nvCOMP gives each chunk to a
few threads of the device, which decodes a certain number of chunks at once. A call with fewer chunks takes about as
long. A batch therefore has that number of chunks, or a multiple of it if chunks are short.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, Self

from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.fetch.source import Request
from xarray_gpuzarr.plan.byte_range import ByteRange, CoalesceRule
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.records import record

ENDLESS = 2**62
"""Number of bytes that stands for no limit."""
_ALIGN = 16
"""Length in bytes of the longest unit that a kernel reads at once."""


def aligned(nbytes: int) -> int:
    """Round up to a multiple of 16 bytes."""
    return -(-nbytes // _ALIGN) * _ALIGN


@lru_cache(maxsize=64)
def cut_range(nbytes: int, max_nbytes: int) -> tuple[tuple[int, int], ...]:
    """Cut a range of bytes into parts of at most `max_nbytes`; return the (offset, length) of each, at least one.

    The result is cached because it is computed twice for each range: when its requests are queued, and when memory is
    set aside for their answers.
    """
    if nbytes <= max_nbytes:
        return ((0, nbytes),)
    return tuple((offset, min(max_nbytes, nbytes - offset)) for offset in range(0, nbytes, max_nbytes))


class RowRange(NamedTuple):
    """Rows ``[lo, hi)`` of a plan, at least one.

    In a shard, they are one range of bytes; otherwise, each row is an object.
    """

    plan: ReadPlan
    lo: int
    hi: int
    first: int
    """First byte of the range, counted from the start of the object; 0 for unsharded chunks."""
    nbytes: int
    """Length of the range in bytes. For unsharded chunks, an estimate of the length of all objects together."""

    @classmethod
    def from_rows(cls, plan: ReadPlan, lo: int, hi: int) -> Self:
        """Return the range of rows ``[lo, hi)`` of a plan; `hi` must be above `lo`."""
        if plan.spec.index is None:
            return cls(plan, lo, hi, 0, (hi - lo) * aligned(plan.spec.expected_nbytes))
        first = int(plan.offset[lo])
        return cls(plan, lo, hi, first, int(plan.offset[hi - 1] + plan.nbytes[hi - 1]) - first)

    def n_fitting_rows(self, max_chunks: int, max_range_nbytes: int, segment_nbytes: int) -> int:
        """Return the number of leading rows that fit the batch and the segment being filled.

        Parameters
        ----------
        max_chunks, max_range_nbytes : int
            Chunks, and bytes of ranges in shards, that the batch still has room for.
        segment_nbytes : int
            Bytes that the segment still has room for.
        """
        plan, lo, hi = self.plan, self.lo, self.hi
        if plan.spec.index is None:
            return max(0, min(hi - lo, max_chunks, segment_nbytes // aligned(plan.spec.expected_nbytes)))
        room_nbytes = min(max_range_nbytes, segment_nbytes)
        if self.nbytes <= room_nbytes:
            return min(hi - lo, max_chunks)
        # Find the last row that ends within the room. There may be gaps between the chunks, which are read, too.
        # `bisect` is faster on a memoryview than on an array, whose elements are NumPy scalars.
        offset = memoryview(plan.offset)
        nbytes = memoryview(plan.nbytes)
        end = self.first + room_nbytes
        row = bisect_right(offset, end, lo, hi)
        while row > lo and offset[row - 1] + nbytes[row - 1] > end:
            row -= 1
        return min(max_chunks, row - lo)

    def split(self, n: int) -> tuple[RowRange, RowRange | None]:
        """Return the first `n` rows and the remaining rows, which are None if there are none."""
        if n >= self.hi - self.lo:
            return self, None
        middle = self.lo + n
        return RowRange.from_rows(self.plan, self.lo, middle), RowRange.from_rows(self.plan, middle, self.hi)

    def requests(self, max_nbytes: int | None = None) -> list[Request]:
        """Return the requests that read the row range; a range is read by requests of at most `max_nbytes` bytes."""
        if self.plan.spec.index is None:
            return self.plan.requests(self.lo, self.hi)
        key, first = self.plan.key_of(self.lo), self.first
        parts = cut_range(self.nbytes, max_nbytes or self.nbytes)
        return [(key, ByteRange(first + offset, nbytes)) for offset, nbytes in parts]


def plan_row_ranges(plan: ReadPlan, rule: CoalesceRule) -> list[RowRange]:
    """Return the rows of a plan as row ranges: `rule` decides which neighbours are read together."""
    return [RowRange.from_rows(plan, lo, hi) for lo, hi in pairwise(plan.cut(rule).tolist()) if lo < hi]


def row_of(row_ranges: Sequence[RowRange], number: int) -> tuple[ReadPlan, int]:
    """Return the plan and the row of chunk `number`, counted through all row ranges."""
    for row_range in row_ranges:
        if number < row_range.hi - row_range.lo:
            return row_range.plan, row_range.lo + number
        number -= row_range.hi - row_range.lo
    raise IndexError(number)


def count_chunks(row_ranges: Iterable[RowRange]) -> int:
    """Return the number of chunks of several row ranges."""
    return sum([row_range.hi - row_range.lo for row_range in row_ranges])


FullUnit = Literal["segment", "batch"] | None
"""What is full before a row range is added, if anything. If the batch is full, its last segment is full as well."""


class Cutter:
    """Cuts row ranges, one after another, so that they fit segments and batches of segments.

    Parameters
    ----------
    sizes : iterator of int, endless
        Largest number of chunks of each batch, one batch after another.
    max_range_nbytes : int
        Most bytes that a batch fetches from shards: chunks, and the gaps between them. The limit is for the gaps, since
        the number of chunks bounds their own bytes. Unsharded chunks have no gaps, and are not counted. A batch of a
        single chunk may have more.
    segment_nbytes : int
        Bytes that a segment is expected to have at most. A segment of a single chunk may have more.
    """

    def __init__(self, sizes: Iterator[int], *, max_range_nbytes: int, segment_nbytes: int) -> None:
        self._sizes = sizes
        self._max_range_nbytes = max_range_nbytes
        self._segment_nbytes = segment_nbytes
        self._batch_room = next(sizes)
        """Chunks that the current batch has room for."""
        self._batch_room_nbytes = max_range_nbytes
        """Bytes of ranges that it has room for."""
        self._segment_room_nbytes = segment_nbytes
        self._is_first = True
        """Whether no row range was cut yet, so that no segment can be full."""

    def cut(self, row_range: RowRange) -> tuple[RowRange, FullUnit, RowRange | None]:
        """Return the rows that are taken next, the unit that is full before them, and the remaining rows."""
        full: FullUnit = None
        n = row_range.n_fitting_rows(self._batch_room, self._batch_room_nbytes, self._segment_room_nbytes)
        if not n and not self._is_first:
            full = "segment"
            # If no row would fit even a segment without a limit, the batch is full.
            if not row_range.n_fitting_rows(self._batch_room, self._batch_room_nbytes, ENDLESS):
                full = "batch"
                self._batch_room = next(self._sizes)
                self._batch_room_nbytes = self._max_range_nbytes
            self._segment_room_nbytes = self._segment_nbytes
            n = row_range.n_fitting_rows(self._batch_room, self._batch_room_nbytes, self._segment_room_nbytes)
        head, remaining = row_range.split(max(1, n))
        self._batch_room -= head.hi - head.lo
        if head.plan.spec.index is not None:  # a range in a shard
            self._batch_room_nbytes -= head.nbytes
        self._segment_room_nbytes -= aligned(head.nbytes)
        self._is_first = False
        return head, full, remaining


class ChunkDoesNotFitError(DeviceMemoryError):
    """One chunk needs more device memory than the options allow, however much memory is free."""


@record
class BatchLimits:
    """Limits of the batches of one read."""

    n_chunks: int
    """Largest number of chunks in a batch."""
    n_batches: int
    """Number of batches that may hold memory at once, the one that is being staged included."""

    @classmethod
    def for_budget(
        cls, path: str, *, chunk_nbytes: int, chunk_device_nbytes: int, budget_nbytes: int, options: ResourceOptions
    ) -> BatchLimits:
        """Return limits with which all batches of a read together stay within a budget of device memory.

        Parameters
        ----------
        path : str
            Path of the array, for the error.
        chunk_nbytes : int
            Bytes of a decoded chunk.
        chunk_device_nbytes : int
            Bytes of device memory that decoding one chunk takes besides the result: see `chain.chunk_device_nbytes`.
        budget_nbytes : int
            Bytes of device memory that the batches may hold together.
        options : ResourceOptions
            Its `batch_chunks`, `batch_nbytes` and `n_batches` are respected as far as the budget allows.

        Raises
        ------
        ChunkDoesNotFitError
            If the budget is too small for one chunk.
        """
        n_fitting = budget_nbytes // max(1, chunk_device_nbytes)
        if not n_fitting:
            raise ChunkDoesNotFitError(
                f"a chunk of array '{path}' does not fit the memory set aside for decoding",
                tried=f"one chunk of {chunk_nbytes} decoded bytes, which takes {chunk_device_nbytes} bytes of device "
                "memory",
                found=f"scratch_nbytes is {budget_nbytes}",
                do=f"xarray_gpuzarr.configure(scratch_nbytes={chunk_device_nbytes}) or more, or device='host'",
            )
        n_at_once = options.batch_chunks
        # A full batch has the largest multiple of `n_at_once` chunks that `batch_nbytes` bytes hold, at least one.
        n_held = options.batch_nbytes // max(1, chunk_nbytes)
        n_full = n_at_once * max(1, n_held // n_at_once)
        # If the budget is short, two long batches share it, rather than `options.n_batches` short ones.
        n_chunks = max(1, min(n_full, n_fitting // 2))
        n_batches = options.n_batches + 1  # those that are decoded, and one that is being staged
        return cls(n_chunks=n_chunks, n_batches=min(n_batches, n_fitting // n_chunks))

    def shortened(self, n_chunks: int) -> BatchLimits:
        """Return limits of one batch at a time, which has at most `n_chunks` chunks."""
        return BatchLimits(n_chunks=max(1, min(n_chunks, self.n_chunks)), n_batches=1)
