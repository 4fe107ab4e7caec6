"""Operations on streams that take their time: when each begins, what it occupies, and when it ends. Knows no device.

An operation is reached once all that its stream was given before has ended, and what it awaits. It then takes its turn
at a resource: first reached, first served, and of those that are reached together, first given. What happens until now
thus depends only on what has been enqueued until now, and nothing has to run beside the threads of the host: whoever
enqueues or waits brings the simulation up to date.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from benchmarks.timed.virtual_clock import Clock

Group = tuple[int, float]
"""So many parts of an operation, each of which occupies one slot for so many seconds."""


class Interval(NamedTuple):
    """Slots of a resource that were occupied together."""

    resource: str
    start_s: float
    end_s: float
    n_slots: int
    what: str
    """The operation."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Stream:
    """Work that runs in the order in which it was given."""

    handle: int
    last: Operation | None = None


@dataclass(slots=True, eq=False)
class Operation:
    """Something that a stream was given."""

    stream: Stream
    order: int
    """Of all operations."""
    reached_s: float
    """Not before; final once nothing is awaited any more."""
    resource: str | None = None
    groups: Sequence[Group] = ()
    what: str = ""
    n_awaited: int = 0
    """Operations that have to end before, of which it is not known yet when they do."""
    followers: list[Operation] = field(default_factory=list)
    end_s: float | None = None
    """None as long as it was not reached."""


class Slots:
    """What operations occupy: so many of a kind, which take parts in the order in which these ask."""

    def __init__(self, n: int) -> None:
        self._free: list[tuple[float, int]] = [(-math.inf, n)]
        """When slots come free, and how many then. A heap."""

    def take(self, reached_s: float, n: int, seconds: float) -> list[tuple[float, float, int]]:
        """Occupy slots with `n` parts that ask at `reached_s`, not before any that asked earlier.

        Returns
        -------
        list of (start, end, number of slots)
        """
        runs = []
        while n:
            at, n_free = heappop(self._free)
            at = max(at, reached_s)
            while self._free and self._free[0][0] <= at:
                n_free += heappop(self._free)[1]
            n_taken = min(n, n_free)
            if n_taken < n_free:
                heappush(self._free, (at, n_free - n_taken))
            end = at + seconds
            runs.append((at, end, n_taken))
            n -= n_taken
            heappush(self._free, (end, n_taken))
        return runs


class Simulation:
    """Streams and resources. Safe to use from several threads.

    Parameters
    ----------
    slots : dict of int
        Resources: how many parts of operations each serves at once.
    clock : Clock
    """

    def __init__(self, slots: Mapping[str, int], clock: Clock) -> None:
        self._slots = {name: Slots(n) for name, n in slots.items()}
        self._clock = clock
        self._lock = threading.Lock()
        self._order = count()
        self._known: list[tuple[float, int, Operation]] = []
        """Operations of which it is known when they are reached. A heap."""
        self.intervals: list[Interval] = []
        """All that was occupied, in the order in which it was reached; some of it may not have happened yet."""

    def enqueue(self, stream: Stream, resource: str, groups: Sequence[Group], what: str) -> Operation:
        """Give a stream an operation that occupies slots of a resource."""
        with self._lock:
            self._advance(now := self._clock.now())
            operation = Operation(stream, next(self._order), now, resource, groups, what)
            self._append(operation)
            self._advance(now)
            return operation

    def hold(self, stream: Stream, awaited: Operation | None) -> None:
        """Let all later operations of a stream wait until another one has ended; None has."""
        if awaited is None:
            return
        with self._lock:
            self._advance(now := self._clock.now())
            operation = Operation(stream, next(self._order), now)
            self._await(operation, awaited)
            self._append(operation)

    def wait_for(self, operation: Operation | None) -> bool:
        """Let the calling thread sleep until an operation has ended; return whether it had to."""
        has_slept = False
        while (seconds := self._seconds_until(operation)) > 0:
            self._clock.sleep(seconds)
            has_slept = True
        return has_slept

    def _seconds_until(self, operation: Operation | None) -> float:
        """Return how long an operation takes yet, or how long until more is known of that; 0 if it has ended."""
        if operation is None:
            return 0
        with self._lock:
            self._advance(now := self._clock.now())
            until = self._known[0][0] if operation.end_s is None else operation.end_s
            return max(0.0, until - now)

    def _append(self, operation: Operation) -> None:
        stream = operation.stream
        if stream.last is not None:
            self._await(operation, stream.last)
        stream.last = operation
        if not operation.n_awaited:
            self._reach(operation)

    def _await(self, operation: Operation, awaited: Operation) -> None:
        if awaited.end_s is None:
            awaited.followers.append(operation)
            operation.n_awaited += 1
        else:
            operation.reached_s = max(operation.reached_s, awaited.end_s)

    def _reach(self, operation: Operation) -> None:
        """Take in that all is known that an operation awaits."""
        if operation.resource is None:
            self._end(operation, operation.reached_s)
        else:
            heappush(self._known, (operation.reached_s, operation.order, operation))

    def _advance(self, now: float) -> None:
        """Let operations that are reached by now have their turns."""
        while self._known and self._known[0][0] <= now:
            reached_s, _, operation = heappop(self._known)
            resource, end = operation.resource, reached_s
            assert resource is not None
            slots = self._slots[resource]
            for n, seconds in operation.groups:
                for start_s, end_s, n_slots in slots.take(reached_s, n, seconds):
                    end = max(end, end_s)
                    self.intervals.append(Interval(resource, start_s, end_s, n_slots, operation.what))
            self._end(operation, end)

    def _end(self, operation: Operation, end_s: float) -> None:
        operation.end_s = end_s
        for follower in operation.followers:
            follower.reached_s = max(follower.reached_s, end_s)
            follower.n_awaited -= 1
            if not follower.n_awaited:
                self._reach(follower)
        operation.followers.clear()
