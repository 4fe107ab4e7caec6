"""Operations on streams that take their time: when each begins, what it occupies, and when it ends. Knows no device.

An operation is reached once all that its stream was given before has ended, and what it awaits. It then takes its turn
at a resource: first reached, first served, and of those that are reached together, first given. What happens until now
thus depends only on what has been enqueued until now, and nothing has to run beside the threads of the host: whoever
enqueues or waits brings the simulation up to date.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from benchmarks.timed.virtual_clock import VirtualClock


@dataclass(slots=True, eq=False)
class Stream:
    """Work that runs in the order in which it was given."""

    handle: int
    last: Operation | None = None


@dataclass(slots=True, eq=False)
class Operation:
    """Something that a stream was given."""

    order: int
    """Of all operations."""
    given_s: float
    awaited: Sequence[Operation]
    """What has to end before."""
    resource: str | None = None
    """None occupies nothing, and takes no time."""
    n: int = 0
    """Parts, each of which occupies a slot."""
    seconds: float = 0.0
    end_s: float | None = None
    """None as long as it was not reached."""


class Simulation:
    """Streams, and resources with slots: so many parts of operations are served at once. Several threads may use it."""

    def __init__(self, slots: Mapping[str, int], clock: VirtualClock) -> None:
        self._free = {name: [(-math.inf, n)] for name, n in slots.items()}
        """For each resource, a heap: when slots come free, and how many then."""
        self._clock = clock
        self._lock = threading.Lock()
        self._order = count()
        self._pending: list[Operation] = []
        """Operations that were not reached yet."""
        self.occupied_s: Counter[str] = Counter()
        """Seconds for which slots of each resource were occupied, summed over slots."""

    def enqueue(
        self, stream: Stream, resource: str | None, n: int, seconds: float, awaited: Operation | None = None
    ) -> Operation:
        """Give a stream an operation that occupies `n` slots of a resource, once another one has ended."""
        with self._lock:
            self._advance(now := self._clock.now())
            before = [operation for operation in (stream.last, awaited) if operation is not None]
            operation = Operation(next(self._order), now, before, resource, n, seconds)
            stream.last = operation
            self._pending.append(operation)
            self._advance(now)
            return operation

    def hold(self, stream: Stream, awaited: Operation | None) -> None:
        """Let all later operations of a stream wait until another one has ended; None has."""
        if awaited is not None:
            self.enqueue(stream, None, 0, 0.0, awaited)

    def wait_for(self, operation: Operation | None) -> None:
        """Let the calling thread sleep until an operation has ended."""
        while operation is not None:
            with self._lock:
                next_s = self._advance(now := self._clock.now())
                until_s = next_s if operation.end_s is None else operation.end_s
            if until_s <= now:
                return
            self._clock.sleep(until_s - now)

    def _advance(self, now: float) -> float:
        """Let operations that are reached by now have their turns; return when the next one is reached."""
        while True:
            reached = [
                (max([operation.given_s, *ends]), operation.order, operation)
                for operation in self._pending
                if None not in (ends := [awaited.end_s for awaited in operation.awaited])
            ]
            if not reached:
                return math.inf
            reached_s, _, operation = min(reached)
            if reached_s > now:
                return reached_s
            end = reached_s
            if operation.resource is not None:
                end = self._take(operation.resource, reached_s, operation.n, operation.seconds)
                self.occupied_s[operation.resource] += operation.n * operation.seconds
            operation.end_s, operation.awaited = end, ()
            self._pending.remove(operation)

    def _take(self, resource: str, reached_s: float, n: int, seconds: float) -> float:
        """Occupy slots with `n` parts that ask at `reached_s`, not before any that asked earlier; return their end."""
        end, free = reached_s, self._free[resource]
        while n:
            at, n_free = heappop(free)
            at = max(at, reached_s)
            while free and free[0][0] <= at:
                n_free += heappop(free)[1]
            n_taken = min(n, n_free)
            if n_taken < n_free:
                heappush(free, (at, n_free - n_taken))
            end = at + seconds
            n -= n_taken
            heappush(free, (end, n_taken))
        return end
