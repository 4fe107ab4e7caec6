"""Plans -> batches: how many chunks are decoded by one call, under a budget of device memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.byte_range import ByteRange, CoalesceRule
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.fetch import Request
from xarray_gpuzarr.plan import ReadPlan

Rows = npt.NDArray[np.int64]

_ALIGN = 16


def aligned(nbytes: int) -> int:
    """Round up to 16 bytes, the longest unit that a kernel reads at once."""
    return -(-nbytes // _ALIGN) * _ALIGN


class Piece(NamedTuple):
    """Rows ``[lo, hi)`` of a plan: one request if they lie in a shard, else one per row."""

    plan: ReadPlan
    lo: int
    hi: int
    first: int
    """First byte of the request, counted from the start of the object."""
    nbytes: int
    """Length of the request in bytes, an estimate if there is one per row."""

    @classmethod
    def of(cls, plan: ReadPlan, lo: int, hi: int) -> Self:
        """Return rows ``[lo, hi)`` of a plan, at least one."""
        if plan.spec.index is None:
            return cls(plan, lo, hi, 0, (hi - lo) * aligned(plan.spec.most_nbytes))
        first = int(plan.offset[lo])
        return cls(plan, lo, hi, first, int(plan.offset[hi - 1] + plan.nbytes[hi - 1]) - first)

    def requests(self) -> list[Request]:
        """Return what is to be read."""
        if self.plan.spec.index is None:
            return self.plan.requests(self.lo, self.hi)
        return [(self.plan.keys[0], ByteRange(offset=self.first, nbytes=self.nbytes))]


def parts(plan: ReadPlan, rule: CoalesceRule) -> list[Piece]:
    """Return a plan as parts by a rule."""
    bounds = plan.cut(rule)
    lo, hi = bounds[:-1], bounds[1:]
    if plan.spec.index is None:
        first, nbytes = np.zeros_like(lo), (hi - lo) * aligned(plan.spec.most_nbytes)
    else:
        first, last = plan.offset.take(lo), hi - 1
        nbytes = plan.offset.take(last) + plan.nbytes.take(last) - first
    return list(map(Piece, repeat(plan), lo.tolist(), hi.tolist(), first.tolist(), nbytes.tolist()))


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


@dataclass(frozen=True, slots=True, kw_only=True)
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
        if plan.spec.index is not None:
            # Chosen chunks may lie apart, and a request brings what lies between them.
            ends = plan.offset[lo:hi] + plan.nbytes[lo:hi] - piece.first
            fitting = int(ends.searchsorted(self._room_nbytes, "right"))
            hi = lo + (fitting if self._pieces else max(1, fitting))
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
