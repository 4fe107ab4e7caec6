"""Plans -> batches: how many chunks are decoded by one call, under a budget of device memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.plan import ReadPlan

Rows = npt.NDArray[np.int64]

_ALIGN = 16
_SLACK_NBYTES = 4096
"""No codec makes a chunk longer than itself by more than 1/128 and this."""


def aligned(nbytes: int) -> int:
    """Round up to 16 bytes, the longest unit that a kernel reads at once."""
    return -(-nbytes // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows ``[lo, hi)`` of a plan: one request if they lie in a shard, else one per row."""

    plan: ReadPlan
    lo: int
    hi: int

    @property
    def nbytes(self) -> int:
        """Bytes that the piece is expected to need in a pinned slot."""
        spec = self.plan.spec
        if spec.index is not None:
            last = self.hi - 1
            return aligned(int(self.plan.offset[last] + self.plan.nbytes[last] - self.plan.offset[self.lo]))
        return (self.hi - self.lo) * aligned(spec.chunk_nbytes + spec.chunk_nbytes // 128 + _SLACK_NBYTES)


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
            first += [Piece(plan=piece.plan, lo=piece.lo, hi=middle)] if middle > piece.lo else []
            second += [Piece(plan=piece.plan, lo=middle, hi=piece.hi)] if piece.hi > middle else []
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

    def add(self, plan: ReadPlan, lo: int, hi: int) -> int:
        """Take as many of the rows ``[lo, hi)`` as fit, at least one if there is none yet; return the first left."""
        hi = min(hi, lo + self._room)
        if plan.spec.index is not None:
            # Chosen chunks may lie apart, and a request brings what lies between them.
            ends = plan.offset[lo:hi] + plan.nbytes[lo:hi] - plan.offset[lo]
            fitting = int(ends.searchsorted(self._room_nbytes, "right"))
            hi = lo + (fitting if self._pieces else max(1, fitting))
        if hi > lo:
            piece = Piece(plan=plan, lo=lo, hi=hi)
            self._pieces.append(piece)
            self._room -= hi - lo
            self._room_nbytes -= piece.nbytes if plan.spec.index is not None else 0
        return hi

    def done(self) -> Batch:
        """Return the batch."""
        return Batch(pieces=tuple(self._pieces), missing=tuple(self.missing))


def cut_batches(plans: Iterator[ReadPlan], most: int, most_nbytes: int) -> Iterator[Batch]:
    """Cut plans into batches of at most `most` chunks, which may span several shards.

    Parameters
    ----------
    plans : iterator of ReadPlan
    most : int
    most_nbytes : int
        Bytes that the requests of a batch may bring, unless it has a single chunk.
    """
    batch = _Growing(most, most_nbytes)
    for plan in plans:
        if len(plan.missing_row):
            batch.missing.append(plan.missing_row)
        for lo, hi in pairwise(plan.parts.tolist()):
            at = lo
            while (at := batch.add(plan, at, hi)) < hi:
                yield batch.done()
                batch = _Growing(most, most_nbytes)
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
