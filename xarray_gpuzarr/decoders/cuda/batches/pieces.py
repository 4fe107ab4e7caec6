"""Plans -> pieces -> segments, which cross to the device together, and batches, which one call decodes. Pure.

nvCOMP gives each chunk to a few threads of the device, so a call takes about as long for one chunk as for as many as
the device decodes at once: batches have so many, or a multiple if chunks are short.
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
_ALIGN = 16


def aligned(nbytes: int) -> int:
    """Round up to 16 bytes, the longest unit that a kernel reads at once."""
    return -(-nbytes // _ALIGN) * _ALIGN


@lru_cache(maxsize=64)
def cut(nbytes: int, most_nbytes: int) -> tuple[tuple[int, int], ...]:
    """Cut a range into parts of at most so many bytes, at least one; return where each begins and its length.

    Asked twice for each range: when its requests are expected, and when memory is set aside for their answers.
    """
    if nbytes <= most_nbytes:
        return ((0, nbytes),)
    return tuple((at, min(most_nbytes, nbytes - at)) for at in range(0, nbytes, most_nbytes))


class Piece(NamedTuple):
    """Rows ``[lo, hi)`` of a plan: one range of bytes if they lie in a shard, else one object per row."""

    plan: ReadPlan
    lo: int
    hi: int
    first: int
    """First byte of the range, counted from the start of the object."""
    nbytes: int
    """Length of the range in bytes, an estimate of all together if there are objects."""

    @classmethod
    def of(cls, plan: ReadPlan, lo: int, hi: int) -> Self:
        """Return rows ``[lo, hi)`` of a plan, at least one."""
        if plan.spec.index is None:
            return cls(plan, lo, hi, 0, (hi - lo) * aligned(plan.spec.expected_nbytes))
        first = int(plan.offset[lo])
        return cls(plan, lo, hi, first, int(plan.offset[hi - 1] + plan.nbytes[hi - 1]) - first)

    def fitting(self, most: int, most_nbytes: int, slot_nbytes: int) -> int:
        """Return how many rows a batch and a segment have room for: see `Cutter`."""
        plan, lo, hi = self.plan, self.lo, self.hi
        if plan.spec.index is None:
            return max(0, min(hi - lo, most, slot_nbytes // aligned(plan.spec.expected_nbytes)))
        room = min(most_nbytes, slot_nbytes)
        if self.nbytes <= room:
            return min(hi - lo, most)
        # Chosen chunks may lie apart, and a range has what lies between them.
        offset, nbytes, end = memoryview(plan.offset), memoryview(plan.nbytes), self.first + room
        row = bisect_right(offset, end, lo, hi)
        while row > lo and offset[row - 1] + nbytes[row - 1] > end:
            row -= 1
        return min(most, row - lo)

    def split(self, n: int) -> tuple[Piece, Piece | None]:
        """Return the first rows, and the others if there are any."""
        if n >= self.hi - self.lo:
            return self, None
        middle = self.lo + n
        return Piece.of(self.plan, self.lo, middle), Piece.of(self.plan, middle, self.hi)

    def requests(self, most_nbytes: int | None = None) -> list[Request]:
        """Return what is to be read, a range by requests of at most so many bytes."""
        if self.plan.spec.index is None:
            return self.plan.requests(self.lo, self.hi)
        key, first = self.plan.key_of(self.lo), self.first
        return [(key, ByteRange(first + at, n)) for at, n in cut(self.nbytes, most_nbytes or self.nbytes)]


def parts(plan: ReadPlan, rule: CoalesceRule) -> list[Piece]:
    """Return the rows of a plan as parts by a rule."""
    return [Piece.of(plan, lo, hi) for lo, hi in pairwise(plan.cut(rule).tolist()) if lo < hi]


def row_of(pieces: Sequence[Piece], number: int) -> tuple[ReadPlan, int]:
    """Return the plan of a chunk, counted over all pieces, and its row there."""
    for piece in pieces:
        if number < piece.hi - piece.lo:
            return piece.plan, piece.lo + number
        number -= piece.hi - piece.lo
    raise IndexError(number)


def n_chunks(pieces: Iterable[Piece]) -> int:
    """Return how many chunks pieces have."""
    return sum([piece.hi - piece.lo for piece in pieces])


Full = Literal["segment", "batch"] | None
"""Segment or batch that is full before a piece; with a batch, its last segment is full, too."""


class Cutter:
    """Cuts pieces, one after another, into segments, which cross to the device together, and into batches of segments.

    `sizes` yields the chunks that each batch has at most, one batch after another. The ranges of a batch may have
    `most_nbytes`, and a segment is expected to have `slot_nbytes`, unless it has a single chunk.
    """

    def __init__(self, sizes: Iterator[int], *, most_nbytes: int, slot_nbytes: int) -> None:
        self._sizes = sizes
        self._most_nbytes = most_nbytes
        self._slot_nbytes = slot_nbytes
        self._room, self._room_nbytes, self._slot_room = next(sizes), most_nbytes, slot_nbytes
        self._is_empty = True

    def cut(self, piece: Piece) -> tuple[Piece, Full, Piece | None]:
        """Return the rows of a piece for which there is room, what is full before them, and the rows that remain."""
        full: Full = None
        n = piece.fitting(self._room, self._room_nbytes, self._slot_room)
        if not n and not self._is_empty:
            full = "segment"
            if not piece.fitting(self._room, self._room_nbytes, ENDLESS):
                full = "batch"
                self._room, self._room_nbytes = next(self._sizes), self._most_nbytes
            self._slot_room = self._slot_nbytes
            n = piece.fitting(self._room, self._room_nbytes, self._slot_room)
        head, remaining = piece.split(max(1, n))
        self._room -= head.hi - head.lo
        self._room_nbytes -= head.nbytes if head.plan.spec.index is not None else 0
        self._slot_room -= aligned(head.nbytes)
        self._is_empty = False
        return head, full, remaining


class ChunkDoesNotFitError(DeviceMemoryError):
    """A chunk is larger than what reads may use, however much memory there is."""


@record
class BatchLimits:
    """Limits of the batches of one read."""

    n_chunks: int
    """Chunks of one batch."""
    n_batches: int
    """Batches that take memory at once, the one that is being staged included."""

    @classmethod
    def of(
        cls, path: str, *, chunk_nbytes: int, needed_nbytes: int, budget_nbytes: int, options: ResourceOptions
    ) -> BatchLimits:
        """Return limits within which all batches of a read together stay in a budget.

        Decoding one chunk takes `needed_nbytes` of device memory besides the result: encoded, decoded and scratch.
        """
        fitting = budget_nbytes // max(1, needed_nbytes)
        if not fitting:
            raise ChunkDoesNotFitError(
                f"a chunk of array '{path}' does not fit the memory set aside for decoding",
                tried=f"one chunk of {chunk_nbytes} decoded bytes, which takes {needed_nbytes} bytes of device memory",
                found=f"scratch_nbytes is {budget_nbytes}",
                do=f"xarray_gpuzarr.configure(scratch_nbytes={needed_nbytes}) or more, or device='host'",
            )
        at_once = options.batch_chunks
        full = at_once * max(1, options.batch_nbytes // max(1, chunk_nbytes) // at_once)
        n_chunks = max(1, min(full, fitting // 2))  # rather two full batches than several that are not
        return cls(n_chunks=n_chunks, n_batches=min(options.n_batches + 1, fitting // n_chunks))

    def at_most(self, n_chunks: int) -> BatchLimits:
        """Return limits of batches that take memory one after another, and have no more than so many chunks."""
        return BatchLimits(n_chunks=max(1, min(n_chunks, self.n_chunks)), n_batches=1)
