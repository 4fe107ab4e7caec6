"""Plans -> batches: how many chunks are decoded by one call, under a budget of device memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.byte_range import ByteRange, CoalesceRule
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.fetch import Request
from xarray_gpuzarr.plan import ReadPlan
from xarray_gpuzarr.records import record

Rows = npt.NDArray[np.int64]

_ALIGN = 16


def aligned(nbytes: int) -> int:
    """Round up to 16 bytes, the longest unit that a kernel reads at once."""
    return -(-nbytes // _ALIGN) * _ALIGN


@lru_cache(maxsize=64)
def cut(nbytes: int, most_nbytes: int) -> Sequence[tuple[int, int]]:
    """Cut a range into parts of at most so many bytes, at least one; return where each begins and its length.

    Asked twice for each range: when its requests are expected, and when memory is set aside for their answers.
    """
    if nbytes <= most_nbytes:
        return [(0, nbytes)]
    return [(at, min(most_nbytes, nbytes - at)) for at in range(0, nbytes, most_nbytes)]


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
            return cls(plan, lo, hi, 0, (hi - lo) * aligned(plan.spec.most_nbytes))
        first = int(plan.offset[lo])
        return cls(plan, lo, hi, first, int(plan.offset[hi - 1] + plan.nbytes[hi - 1]) - first)

    def split(self, room_nbytes: int, *, at_least: bool) -> tuple[Piece | None, Piece | None]:
        """Return as many rows as so many bytes hold, with `at_least` one in any case, and the others."""
        plan, lo, hi = self.plan, self.lo, self.hi
        if self.nbytes <= room_nbytes:
            return self, None
        if plan.spec.index is None:
            n = room_nbytes // aligned(plan.spec.most_nbytes)
        else:
            # Chosen chunks may lie apart, and a request brings what lies between them.
            ends = plan.offset[lo:hi] + plan.nbytes[lo:hi]
            n = int(ends.searchsorted(self.first + room_nbytes, "right"))
        middle = lo + max(n, int(at_least))
        head = Piece.of(plan, lo, middle) if middle > lo else None
        return head, Piece.of(plan, middle, hi) if middle < hi else None

    def requests(self, most_nbytes: int | None = None) -> list[Request]:
        """Return what is to be read, a range by requests of at most so many bytes."""
        if self.plan.spec.index is None:
            return self.plan.requests(self.lo, self.hi)
        key, first = self.plan.keys[0], self.first
        return [(key, ByteRange(first + at, n)) for at, n in cut(self.nbytes, most_nbytes or self.nbytes)]


def parts(plan: ReadPlan, rule: CoalesceRule) -> list[Piece]:
    """Return a plan as parts by a rule."""
    bounds = pairwise(plan.cut(rule).tolist())
    if plan.spec.index is None:
        each = aligned(plan.spec.most_nbytes)
        return [Piece(plan, lo, hi, 0, (hi - lo) * each) for lo, hi in bounds]
    offset, nbytes = memoryview(plan.offset), memoryview(plan.nbytes)  # whose elements are Python's numbers
    return [Piece(plan, lo, hi, offset[lo], offset[hi - 1] + nbytes[hi - 1] - offset[lo]) for lo, hi in bounds]


def runs(pieces: Sequence[Piece]) -> Iterator[tuple[ReadPlan, int, int]]:
    """Yield (plan, lo, hi) of pieces whose rows follow each other, taken together."""
    if not pieces:
        return
    plan, lo, hi = pieces[0].plan, pieces[0].lo, pieces[0].lo
    for piece in pieces:
        if piece.plan is not plan or piece.lo != hi:
            yield plan, lo, hi
            plan, lo = piece.plan, piece.lo
        hi = piece.hi
    yield plan, lo, hi


def row_of(pieces: Sequence[Piece], number: int) -> tuple[ReadPlan, int]:
    """Return the plan of a chunk, counted over all pieces, and its row there."""
    for piece in pieces:
        if number < piece.hi - piece.lo:
            return piece.plan, piece.lo + number
        number -= piece.hi - piece.lo
    raise IndexError(number)


@record
class Batch:
    """Chunks that are decoded by one call."""

    pieces: tuple[Piece, ...]
    missing: tuple[Rows, ...] = ()
    """As `ReadPlan.missing_row`: chunks that take the fill value."""

    @property
    def n_chunks(self) -> int:
        """Stored chunks."""
        return sum(p.hi - p.lo for p in self.pieces)

    def halves(self) -> tuple[Batch, Batch]:
        """Cut a batch of at least two chunks in two."""
        half, taken = self.n_chunks // 2, 0
        first: list[Piece] = []
        second: list[Piece] = []
        for piece in self.pieces:
            middle = min(piece.hi, max(piece.lo, piece.lo + half - taken))
            first += [Piece.of(piece.plan, piece.lo, middle)] if middle > piece.lo else []
            second += [Piece.of(piece.plan, middle, piece.hi)] if piece.hi > middle else []
            taken += piece.hi - piece.lo
        return Batch(pieces=tuple(first), missing=self.missing), Batch(pieces=tuple(second))


class _Growing:
    """A batch while pieces are added to it."""

    def __init__(self, most: int, most_nbytes: int) -> None:
        self._pieces: list[Piece] = []
        self.missing: list[Rows] = []
        self._room = most
        self._room_nbytes = most_nbytes

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing at all."""
        return not self._pieces and not self.missing

    def add(self, pieces: list[Piece]) -> list[Piece]:
        """Take as many rows of pieces as fit, at least one if there is none yet; return those that are left."""
        room, room_nbytes, n_taken = self._room, self._room_nbytes, 0
        for plan, lo, hi, _, nbytes in pieces:
            requested = 0 if plan.spec.index is None else nbytes
            if hi - lo > room or requested > room_nbytes:
                break
            room, room_nbytes, n_taken = room - (hi - lo), room_nbytes - requested, n_taken + 1
        self._pieces += pieces[:n_taken]
        self._room, self._room_nbytes = room, room_nbytes
        left = pieces[n_taken:]
        return [*self._cut(left[0]), *left[1:]] if left else []

    def _cut(self, piece: Piece) -> list[Piece]:
        """Take what fits of a piece that is too large; return the rest."""
        plan, lo, hi = piece.plan, piece.lo, min(piece.hi, piece.lo + self._room)
        if hi > lo and plan.spec.index is not None:
            head, _ = Piece.of(plan, lo, hi).split(self._room_nbytes, at_least=not self._pieces)
            hi = lo if head is None else head.hi
        if hi > lo:
            self._pieces.append(Piece.of(plan, lo, hi))
            self._room = 0
        return [Piece.of(plan, hi, piece.hi)] if hi < piece.hi else []

    def done(self) -> Batch:
        """Return the batch."""
        return Batch(pieces=tuple(self._pieces), missing=tuple(self.missing))


def cut_batches(plans: Iterator[ReadPlan], most: int, most_nbytes: int, rule: CoalesceRule) -> Iterator[Batch]:
    """Cut plans into batches of at most `most` chunks, which may span several shards.

    Parameters
    ----------
    plans : iterator of ReadPlan
    most : int
    most_nbytes : int
        Bytes that the requests of a batch may bring, unless it has a single chunk.
    rule : CoalesceRule
        What one request fetches.
    """
    batch = _Growing(most, most_nbytes)
    for plan in plans:
        if len(plan.missing_row):
            batch.missing.append(plan.missing_row)
        left = batch.add(parts(plan, rule))
        while left:
            yield batch.done()
            batch = _Growing(most, most_nbytes)
            left = batch.add(left)
    if not batch.is_empty:
        yield batch.done()


def cut_segments(pieces: Sequence[Piece], slot_nbytes: int) -> list[list[Piece]]:
    """Cut pieces into segments that are expected to fit so many bytes, if a single chunk does."""
    segments: list[list[Piece]] = [[]]
    room = slot_nbytes
    for piece in pieces:
        left: Piece | None = piece
        while left is not None:
            head, left = left.split(room, at_least=not segments[-1])
            if head is not None:
                segments[-1].append(head)
                room -= aligned(head.nbytes)
            if left is not None:
                segments.append([])
                room = slot_nbytes
    return [segment for segment in segments if segment]


def chunks_per_batch(path: str, *, chunk_nbytes: int, needed_nbytes: int, batch_nbytes: int, budget_nbytes: int) -> int:
    """Return how many chunks one batch may hold.

    Parameters
    ----------
    path : str
        Array path, for the message.
    chunk_nbytes : int
        Bytes of a decoded chunk.
    needed_nbytes : int
        Bytes of device memory that decoding one chunk takes besides the result: encoded, decoded and scratch.
    batch_nbytes : int
        Decoded bytes that a batch aims at.
    budget_nbytes : int
        Bytes that a batch may take.

    Raises
    ------
    DeviceMemoryError
        Not even one chunk fits.
    """
    if needed_nbytes > budget_nbytes:
        raise DeviceMemoryError(
            f"a chunk of array '{path}' does not fit the memory set aside for decoding",
            tried=f"one chunk of {chunk_nbytes} decoded bytes, which takes {needed_nbytes} bytes of device memory",
            found=f"scratch_nbytes is {budget_nbytes}",
            do=f"xarray_gpuzarr.configure(scratch_nbytes={needed_nbytes}) or more, or device='host'",
        )
    return max(1, min(batch_nbytes // max(1, chunk_nbytes), budget_nbytes // max(1, needed_nbytes)))
