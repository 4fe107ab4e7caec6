"""The epoch that each pass over batches reads, agreed on by all processes that read for it. Knows nothing of batches.

A pass is one ``iter()`` of a loader, carried out by the process that consumes the batches or by workers that it starts,
which may begin long after one another, or never. Each writes down that it begins, at the end of a file that all have
open, and reads what stands there. The system puts entries one behind another, so all see them in the same order and
come to the same epochs. An entry is there or not: nobody waits, and who is killed leaves nothing locked.
"""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from multiprocessing import Process
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple
from weakref import finalize

Position = tuple[int, int]
"""An epoch, and how many of its batches are left out."""
_ENTRY = struct.Struct("<8q")
"""A `Pass`, the epoch if one is given, and the batches to leave out."""
_MOVE = -1
"""In place of a pass's number: the consumer's next pass begins elsewhere."""
_NEXT = -1
"""In place of an epoch: whichever is next."""


class Pass(NamedTuple):
    """A pass, as each process that reads for it knows it."""

    consumer: int
    """The process that consumes the batches. Several that share batches, as ranks may, have epochs of their own."""
    number: int
    """How many passes the reading process itself has begun before."""
    n_workers: int = 0
    """0 if the consumer reads itself."""
    seed: int = 0
    """Random number that the consumer has drawn for all workers that it started together. It may come again."""
    first_child: int = 0
    """Number of the first of these among the consumer's child processes, as each of them reckons from its own number.

    Workers of a later pass have larger numbers. Where other threads start processes at the same time, workers of a
    pass come to different results.
    """
    pipe: int = 0
    """Number that the system gives the pipe on which all workers of a pass, and no others, answer; 0 if not known."""

    def is_same(self, other: Pass) -> bool:
        """Whether two processes of a consumer mean one pass: where no pipe is known, by how close their numbers are."""
        if self.pipe and other.pipe:
            return self.pipe == other.pipe
        return abs(self.first_child - other.first_child) < max(1, self.n_workers)


class Passes:
    """Passes that have begun. Child processes inherit them; a pickle for others goes on by itself.

    The first begins at `batch` of `epoch`; the pass before had `n_workers` workers.
    """

    def __init__(self, epoch: int, batch: int, n_workers: int = 0) -> None:
        with tempfile.TemporaryFile() as file:
            self._open(os.dup(file.fileno()))
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)
        self._write(Pass(os.getpid(), _MOVE, n_workers), epoch, batch)

    def _open(self, file: int) -> None:
        self._file = file
        finalize(self, os.close, file)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:
            return _inherited, (DupFd(self._file),)
        passes, here = self._told(), os.getpid()
        return type(self), (*passes.next_of(here), passes.n_workers.get(here, 0))

    def begin(self, which: Pass, epoch: int | None = None) -> Position:
        """Return where a pass begins: where the first of its processes did, else where the consumer's next one is to.

        `epoch` is what it turned out to go on with, if that is another one. Workers cannot begin in the middle of an
        epoch: to them a batch other than 0 says that nothing has begun.
        """
        self._write(which, _NEXT if epoch is None else epoch, 0)
        passes = self._told()
        known, moves = passes.find(which), passes.moves(which.consumer)
        return known or moves[_move_before(which, moves)]

    def move(self, epoch: int, batch: int = 0) -> None:
        """Let the next pass that this process starts, whoever carries it out, begin elsewhere."""
        latest_child = Process()._identity[-1]  # noqa: SLF001  # counted even if it is not started
        self._write(Pass(os.getpid(), _MOVE, first_child=latest_child), epoch, batch)

    def n_workers(self) -> int:
        """Return how many workers the latest pass of this process has; 0 if it has moved since."""
        return self._told().n_workers.get(os.getpid(), 0)

    def _write(self, which: Pass, epoch: int, batch: int) -> None:
        os.write(self._file, _ENTRY.pack(*which, epoch, batch))

    def _told(self) -> _Told:
        n_whole = os.fstat(self._file).st_size // _ENTRY.size * _ENTRY.size
        passes = _Told()
        for *which, epoch, batch in _ENTRY.iter_unpack(os.pread(self._file, n_whole, 0)):
            passes.note(Pass(*which), epoch, batch)
        return passes


class _Told:
    """State that follows from the entries of the file; the same in every process that reads the same ones."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, ...], list[tuple[Pass, Position]]] = {}
        """By all that identifies a pass but the number of its first child."""
        self._next: dict[int, dict[int, Position]] = {}
        """Consumer -> its latest child at each move -> where the next of the passes after that move begins."""
        self.n_workers: dict[int, int] = {}
        """Number of workers in the latest pass of each consumer."""

    def note(self, which: Pass, epoch: int, batch: int) -> None:
        """Take an entry into account."""
        moves = self.moves(which.consumer)
        if which.number == _MOVE:
            moves[which.first_child] = epoch, batch
        else:
            known, after = self.find(which), _move_before(which, moves)
            begins = (epoch, 0) if epoch != _NEXT else known or moves[after]
            if begins == known:
                return
            others = [(other, at) for other, at in self._begun.get(which[:4], ()) if not other.is_same(which)]
            self._begun[which[:4]] = [*others, (which, begins)]
            if not (which.n_workers and begins[1]):
                moves[after] = begins[0] + 1, 0
        self.n_workers[which.consumer] = which.n_workers

    def find(self, which: Pass) -> Position | None:
        """Return where a pass has begun, if one of its processes has."""
        return next((at for other, at in self._begun.get(which[:4], ()) if other.is_same(which)), None)

    def next_of(self, consumer: int) -> Position:
        """Return where the next pass of a consumer begins."""
        return [*self.moves(consumer).values()][-1]

    def moves(self, consumer: int) -> dict[int, Position]:
        """Return the moves of a consumer: at first, to where the process stands that has made the batches."""
        if consumer not in self._next:
            maker = next(iter(self._next), None)
            self._next[consumer] = {0: (0, 0) if maker is None else self.next_of(maker)}
        return self._next[consumer]


def _move_before(which: Pass, moves: dict[int, Position]) -> int:
    """Return the latest move before a pass; before its workers were started, if it is their first."""
    is_first = which.n_workers > 0 and which.number == 0
    return [child for child in moves if not is_first or child < which.first_child][-1]


def _inherited(file: Any) -> Passes:
    passes = Passes.__new__(Passes)
    passes._open(file.detach())  # noqa: SLF001
    return passes
