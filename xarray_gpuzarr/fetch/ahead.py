"""Objects, or indexes of shards, that are asked for before the read that needs them, within a budget of the process.

`tasks` knows which reads come next, and asks through `ObjectsAhead`. A read on the same thread, inside `using`, takes
what was asked for: `Snapshot` treats the answer like one of its own, so index and chunks are of one version. What an
answer is worth depends on when it was asked for, which is why `ObjectsAhead` belongs to one computation and is ended
with it: no read takes bytes that were asked for before its computation began.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from xarray_gpuzarr.fetch.source import Edge, ObjectSource, PendingEdge
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.array_spec import ArraySpec


class Budget:
    """Bytes of this process that are asked for ahead, or wait to be taken. Safe to use from several threads."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin with nothing asked for; for a process that was forked off."""
        self._lock = threading.Lock()
        self.nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Return whether there is room for so many more bytes, and count them if there is."""
        with self._lock:
            if self.nbytes + nbytes > fetch_options().ahead_nbytes:
                return False
            self.nbytes += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """Count so many bytes less."""
        with self._lock:
            self.nbytes -= nbytes


budget = Budget()

os.register_at_fork(after_in_child=budget.restart)


class Wanted(NamedTuple):
    """What a read will ask for first."""

    key: str
    is_whole: bool
    """Whether that is the whole object, and not the index of a shard."""


class Asked:
    """An object, or an index, that is asked for: its answer may be waited for before it is taken."""

    def __init__(self, wanted: Wanted, pending: PendingEdge, nbytes: int) -> None:
        self.is_whole = wanted.is_whole
        self._pending: PendingEdge | None = pending
        self._edge: Edge | None = None
        self._error: Exception | None = None
        self.nbytes = nbytes
        """Bytes of the budget that it takes."""

    @property
    def is_answered(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self._pending is None

    def wait(self) -> None:
        """Wait for the answer, by one thread at a time; an error of the store is kept for `answer`."""
        if self._pending is None:
            return
        try:
            self._edge = self._pending()
        except Exception as error:  # noqa: BLE001  # of any kind: `answer` raises it
            self._error = error
        self._pending = None

    def answer(self) -> Edge | None:
        """Return the answer, or raise what the store raised."""
        self.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # the cycle would keep what the frames refer to alive
        return self._edge


class ObjectsAhead:
    """Objects of one array that are asked for ahead of reads. Safe to use from several threads.

    `source` is that of the stored array, and answers requests that are under way (`is_remote`).
    """

    def __init__(self, source: ObjectSource, spec: ArraySpec) -> None:
        self._of = source
        if spec.index is None:
            self.most_nbytes, self._longest = spec.most_nbytes, spec.expected_nbytes
        else:
            self.most_nbytes = spec.index.n_chunks * spec.expected_nbytes + spec.index.nbytes
            self._longest = spec.index.n_chunks * spec.chunk_nbytes + spec.index.nbytes
        self._index = spec.index
        self._source = source.for_one_read(expected_nbytes=self._longest, most_nbytes=self.most_nbytes)
        self._lock = threading.Lock()
        self._asked: dict[str, Asked] = {}
        """By key, what nobody has taken."""
        self._taken: weakref.WeakSet[Asked] = weakref.WeakSet()
        """What reads have taken and still hold; some may be waiting for the answer."""
        self._longest_seen = 0
        self._has_ended = False

    def is_of(self, source: ObjectSource) -> bool:
        """Say whether these are objects of the array with this source."""
        return self._of is source

    def ask(self, all_wanted: Sequence[Wanted]) -> bool:
        """Ask for objects and indexes, unless the budget has no room for all of them; return whether it had.

        An object counts as long as the longest one so far, or as the longest that may be.
        """
        with self._lock:
            new = {wanted: self._expected_nbytes(wanted) for wanted in all_wanted if wanted.key not in self._asked}
            if self._has_ended or not budget.take(sum(new.values())):
                return False
            for wanted, nbytes in new.items():
                self._asked[wanted.key] = Asked(wanted, self._start(wanted), nbytes)
        return True

    def _expected_nbytes(self, wanted: Wanted) -> int:
        if wanted.is_whole:
            return self._longest_seen or self._longest
        assert self._index is not None
        return self._index.nbytes

    def _start(self, wanted: Wanted) -> PendingEdge:
        if wanted.is_whole:
            return self._source.start_whole(wanted.key, self.most_nbytes)
        assert self._index is not None
        return self._source.start_edge(wanted.key, self._index.location, self._index.nbytes)

    def take(self, key: str) -> Asked | None:
        """Return what was asked for under a key, which nobody else gets; None if nothing was."""
        with self._lock:
            asked = self._asked.pop(key, None)
            if asked is not None:
                self._taken.add(asked)
        if asked is not None:
            budget.give_back(asked.nbytes)
        return asked

    def see(self, nbytes: int) -> None:
        """Hear the length of an object."""
        self._longest_seen = max(self._longest_seen, nbytes)

    def wait(self) -> None:
        """Wait until all has been answered."""
        with self._lock:
            asked = list(self._asked.values())
        for each in asked:
            each.wait()

    def end(self) -> None:
        """Ask for nothing any more, and let go of what nobody has taken.

        Requests without an answer are given up, unless a read waits for one of them: they are then answered in vain,
        or given up by the next call.
        """
        with self._lock:
            self._has_ended = True
            untaken = list(self._asked.values())
            self._asked.clear()
            is_waited_for = not all(asked.is_answered for asked in self._taken)
        if not is_waited_for:
            self._source.give_up()
        budget.give_back(sum(asked.nbytes for asked in untaken))


class _OfThread(threading.local):
    objects: ObjectsAhead | None = None


_of_thread = _OfThread()


def using[Result](objects: ObjectsAhead | None, read: Callable[[], Result]) -> Result:
    """Call `read`, whose snapshots on this thread take objects that were asked for ahead."""
    before = _of_thread.objects
    try:
        _of_thread.objects = objects
        return read()
    finally:
        _of_thread.objects = before


def objects_for(source: ObjectSource) -> ObjectsAhead | None:
    """Return what was asked for ahead of the read of this thread, if it reads the array with this source."""
    objects = _of_thread.objects
    return objects if objects is not None and objects.is_of(source) else None
