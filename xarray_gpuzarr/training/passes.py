"""`Passes`: lets all processes that read for a pass over batches agree on the epoch that it reads.

A pass is one ``iter()`` of a loader. The process that consumes its batches reads them itself, or starts workers that
do. Workers may begin long after one another, or never. Each process that begins a pass appends an entry to a file that
all of them have open, and then reads the entries of all processes. The operating system appends entries one after
another, so all processes see them in the same order and derive the same epochs (`_History`). An entry is written by one
system call, so no process has to wait for another, and a process that is killed leaves no lock behind.

This module does not know what batches are.
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
"""Number of an epoch, and the number of its batches that are left out."""
_ENTRY = struct.Struct("<8q")
"""The fields of a `Pass`, the number of an epoch or `_NEXT_EPOCH`, and the number of batches that are left out."""
_MOVE = -1
"""Stands in place of `Pass.number` in an entry with which no pass begins. Such an entry says where the consumer's next
pass will begin. Its `first_child` is the number of the consumer's latest child process. Its `n_workers` is what
`Passes.n_workers` returns from then on."""
_NEXT_EPOCH = -1
"""Stands in place of the number of an epoch in the entry of a pass that begins where the entries before it say."""


class Pass(NamedTuple):
    """A pass, as one of the processes that read for it knows it."""

    consumer: int
    """Id of the process that consumes the batches. Several consumers, such as ranks, have epochs of their own."""
    number: int
    """Number of passes that the reading process has begun before."""
    n_workers: int = 0
    """Number of workers of the pass, or 0 if the consumer reads itself."""
    seed: int = 0
    """Random number that the consumer drew for all workers that it started together. A program that seeds its random
    numbers anew may draw the same one for a later pass."""
    first_child: int = 0
    """Number of the first of these workers among the child processes of the consumer.

    Each worker computes it from its own number. Later workers have larger numbers. If other threads of the consumer
    start processes at the same time, the workers of a pass come to different results.
    """
    pipe: int = 0
    """Inode of the pipe through which the workers of this pass, and no others, answer. 0 if it is unknown."""

    def is_same(self, other: Pass) -> bool:
        """Whether this is the same pass as another one with equal `consumer`, `number`, `n_workers` and `seed`.

        If the pipe of either is unknown, the numbers of their first workers decide: those of a later pass are larger by
        `n_workers` or more.
        """
        if self.pipe and other.pipe:
            return self.pipe == other.pipe
        return abs(self.first_child - other.first_child) < max(1, self.n_workers)


class Passes:
    """The passes that have begun, in a file that child processes inherit.

    A copy or an ordinary pickle gets a file of its own, and so knows nothing of later passes of the original.

    Parameters
    ----------
    epoch, batch : int
        Where the first pass begins.
    n_workers : int
        Number of workers of the pass before the first one.
    """

    def __init__(self, epoch: int, batch: int, n_workers: int = 0) -> None:
        with tempfile.TemporaryFile() as file:
            self._open(os.dup(file.fileno()))
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)
        self._append(Pass(os.getpid(), _MOVE, n_workers), epoch, batch)

    def _open(self, file: int) -> None:
        """Use a file descriptor, and close it once nothing refers to this object any more."""
        self._file = file
        finalize(self, os.close, file)

    def __reduce__(self) -> tuple[Any, ...]:
        if get_spawning_popen() is not None:  # pickled for a child process, which shares the file
            return _from_child_handle, (DupFd(self._file),)
        history = self._read_history()
        process = os.getpid()
        return type(self), (*history.next_position(process), history.n_workers.get(process, 0))

    def begin(self, current: Pass, epoch: int | None = None) -> Position:
        """Begin a pass in this process.

        Parameters
        ----------
        current : Pass
            The pass, as this process knows it.
        epoch : int, optional
            Epoch that the pass reads from now on, because a state was loaded after the pass had begun.

        Returns
        -------
        epoch, batch : int
            With `epoch`, ``(epoch, 0)``. Otherwise where the first process that read for this pass began; if this is
            the first one, where the consumer's next pass begins. Workers cannot begin in the middle of an epoch. So if
            `batch` is not 0, a pass with workers does not count as begun, and the caller must report this.
        """
        self._append(current, _NEXT_EPOCH if epoch is None else epoch, 0)
        position = self._read_history().find(current)
        assert position is not None  # the entry was just appended
        return position

    def move(self, epoch: int, batch: int = 0) -> None:
        """Let the next pass that this process consumes begin after `batch` batches of an epoch."""
        # Making a `Process` takes the next number of a child process, but starts nothing. So this number is larger than
        # those of earlier children, and smaller than those of later ones.
        latest_child = Process()._identity[-1]  # noqa: SLF001
        self._append(Pass(os.getpid(), _MOVE, first_child=latest_child), epoch, batch)

    def n_workers(self) -> int:
        """Return the number of workers of the latest pass of this process, or 0 if `move` was called since."""
        return self._read_history().n_workers.get(os.getpid(), 0)

    def _append(self, current: Pass, epoch: int, batch: int) -> None:
        os.write(self._file, _ENTRY.pack(*current, epoch, batch))

    def _read_history(self) -> _History:
        # Only whole entries are read, in case the last one is just being written.
        nbytes = os.fstat(self._file).st_size // _ENTRY.size * _ENTRY.size
        history = _History()
        for *fields, epoch, batch in _ENTRY.iter_unpack(os.pread(self._file, nbytes, 0)):
            history.add(Pass(*fields), epoch, batch)
        return history


class _History:
    """Where passes begin according to the entries of a file; the same in all processes that read the same entries."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, ...], list[tuple[Pass, Position]]] = {}
        """The first four fields of a pass -> the passes that have them in common, and where each has begun."""
        self._moves: dict[int, dict[int, Position]] = {}
        """Consumer -> number of its latest child process at each `move` -> where the next pass after it begins."""
        self.n_workers: dict[int, int] = {}
        """Consumer -> number of workers of its latest pass."""

    def add(self, current: Pass, epoch: int, batch: int) -> None:
        """Take the next entry of the file into account."""
        moves = self.moves(current.consumer)
        if current.number == _MOVE:
            moves[current.first_child] = epoch, batch
        else:
            known = self.find(current)
            move = _move_before(current, moves)
            requested = None if epoch == _NEXT_EPOCH else (epoch, 0)
            position = requested or known or moves[move]
            if position == known:  # another process has begun this pass, and at the same place
                return
            others = [entry for entry in self._begun.get(current[:4], ()) if not entry[0].is_same(current)]
            self._begun[current[:4]] = [*others, (current, position)]
            is_refused = current.n_workers and position[1]  # workers cannot begin in the middle of an epoch
            if not is_refused:
                moves[move] = position[0] + 1, 0  # the next pass reads the next epoch
        self.n_workers[current.consumer] = current.n_workers

    def find(self, current: Pass) -> Position | None:
        """Return where a pass has begun, or None if none of its processes has."""
        for other, position in self._begun.get(current[:4], ()):
            if other.is_same(current):
                return position
        return None

    def next_position(self, consumer: int) -> Position:
        """Return where the next pass of a consumer begins."""
        return list(self.moves(consumer).values())[-1]

    def moves(self, consumer: int) -> dict[int, Position]:
        """Return the moves of a consumer, in order.

        A consumer that has no entries yet begins where the process that made the `Passes` would begin its next pass.
        """
        if consumer not in self._moves:
            # There is no maker yet when the first entry of the file is added. It is a move of the process that made the
            # file, and replaces (0, 0) at once.
            maker = next(iter(self._moves), None)
            self._moves[consumer] = {0: (0, 0) if maker is None else self.next_position(maker)}
        return self._moves[consumer]


def _move_before(current: Pass, moves: dict[int, Position]) -> int:
    """Return the key of the latest move before a pass.

    The first pass of a worker began when the consumer started the worker, so later moves do not apply to it.
    """
    is_first_of_worker = current.n_workers > 0 and current.number == 0
    return [child for child in moves if not is_first_of_worker or child < current.first_child][-1]


def _from_child_handle(handle: Any) -> Passes:
    """Return the passes of the parent process, in a child process that was spawned."""
    passes = Passes.__new__(Passes)
    passes._open(handle.detach())  # noqa: SLF001
    return passes
