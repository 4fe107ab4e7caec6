"""Streams and events of the simulated device: queues that run late, in an order that a seed draws.

Nothing runs when it is given. Work runs when somebody waits for it, or a little earlier by chance, in any order that
the events allow. When it runs, whatever was given before it, touches the same memory and has not run yet is by that
very fact not ordered with it: a race, and so a fault.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from helpers.simulated.memory import Block

MODES = ("lazy", "eager", "random", "starving")
"""How a seed runs work, by its remainder: as late and as little as possible, at once, by chance, or that of one stream
only when nothing else can run any more."""
_MOST_PENDING = 100
"""Operations of a stream that may wait: streams on which memory comes back are waited for by nobody."""
_N_STARVED = 8
"""Streams that may be the starved one, in the order in which they were made."""


@dataclass(frozen=True, slots=True)
class Touch:
    """Memory that an operation works on."""

    start: int
    stop: int
    kind: Literal["read", "write", "pointer", "block"]
    """A copy's side; something behind a kernel's argument; or all of a block that is allocated or freed."""

    def clashes(self, pending: Touch) -> bool:
        """Say whether it is wrong to run now while `pending`, given earlier and of some of the same memory, has not."""
        kinds = {self.kind, pending.kind}
        if "block" in kinds:
            return True
        if "pointer" in kinds:
            return pending.kind == "write"  # a kernel that starts on what lay there before may end the process
        return "write" in kinds


def touch_all(block: Block) -> Touch:
    return Touch(block.start, block.stop, "block")


def touch_of(array: np.ndarray, kind: Literal["read", "write"]) -> Touch:
    start, stop = np.lib.array_utils.byte_bounds(array)
    return Touch(start, stop if array.size else start, kind)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Operation:
    """One piece of work in a stream."""

    name: str
    run: Callable[[], object]
    touches: tuple[Touch, ...] = ()
    after: Point | None = None


class CurrentStream(threading.local):
    """The stream that a thread's array library works on, as CuPy keeps it.

    The end of a ``with`` block makes the stream of the block around it current again, not what ``use`` has set since.
    """

    def __init__(self, default: SimulatedStream) -> None:
        self.stream = default
        self.blocks = [default]


class SimulatedStream:
    """A queue of operations."""

    def __init__(self, scheduler: Scheduler, handle: int, weight: float) -> None:
        self.scheduler = scheduler
        self.handle = handle
        self.weight = weight
        self.queue: deque[tuple[int, Operation]] = deque()
        self.n_given = 0
        self.n_done = 0

    def __enter__(self) -> Self:
        self.scheduler.current.blocks.append(self)
        return self.use()

    def __exit__(self, *_: object) -> None:
        self.scheduler.current.blocks.pop()
        self.scheduler.current.blocks[-1].use()

    def use(self) -> Self:
        """Make this the stream that the calling thread's array library works on."""
        self.scheduler.current.stream = self
        return self

    @property
    def runnable(self) -> bool:
        return bool(self.queue) and self.blocker is None

    @property
    def blocker(self) -> Point | None:
        """What the first operation must wait for, if anything."""
        after = self.queue[0][1].after if self.queue else None
        return None if after is None or after.reached else after


@dataclass(frozen=True, slots=True)
class Point:
    """The end of what a stream had been given at some time."""

    stream: SimulatedStream
    n_done: int
    """Its operations that must be done."""

    @property
    def reached(self) -> bool:
        return self.stream.n_done >= self.n_done


class SimulatedEvent:
    """A point, once recorded."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.point: Point | None = None


class Scheduler:
    """Runs the operations of all streams of one device."""

    def __init__(self, seed: int) -> None:
        self.mode = MODES[seed % len(MODES)]
        self.streams: dict[int, SimulatedStream] = {}
        self.fault: Exception | None = None
        self._random = random.Random(seed)
        self._early = self._random.choice((0.02, 0.2, 0.7))
        self._n_given = 0
        self._starved = seed // len(MODES) % _N_STARVED
        self.current = CurrentStream(self.stream(0))

    def stream(self, handle: int) -> SimulatedStream:
        """Return a new stream; in random order, some are much slower than others."""
        stream = SimulatedStream(self, handle, self._random.choice((0.01, 1.0, 100.0)))
        self.streams[handle] = stream
        return stream

    def give(self, stream: SimulatedStream, name: str, run: Callable[[], object], *touches: Touch) -> None:
        self._append(stream, Operation(name=name, run=run, touches=touches))

    def hold(self, stream: SimulatedStream, after: Point) -> None:
        """Let what `stream` is given from now wait."""
        name = f"wait for stream {after.stream.handle:#x}"
        self._append(stream, Operation(name=name, run=lambda: None, after=after))

    def end_of(self, stream: SimulatedStream) -> Point:
        return Point(stream, stream.n_given)

    def reach(self, point: Point) -> None:
        """Run operations until `point` is reached."""
        while not point.reached:
            self._run(self._any() if self.mode in {"eager", "random"} else self._next(point))

    def reach_all(self) -> None:
        for stream in self.streams.values():
            self.reach(self.end_of(stream))

    def drift(self) -> None:
        """Run some operations before anybody waits for them; all streams have bounds to how late they are."""
        for stream in self.streams.values():
            while len(stream.queue) > _MOST_PENDING and stream.runnable:
                self._run(stream)
        if self.mode == "eager":
            self.reach_all()
        elif self.mode == "random" and self._random.random() < self._early:
            for _ in range(self._random.randint(1, 8)):
                ready = [s for s in self.streams.values() if s.runnable]
                # A slow stream stays behind even where it alone has work.
                for stream in self._random.choices([*ready, None], [*(s.weight for s in ready), 1.0]):
                    if stream is not None:
                        self._run(stream)

    def raise_fault(self) -> None:
        """Raise what went wrong in an operation; from then on nothing runs and every call fails, as in CUDA."""
        if self.fault is not None:
            raise AssertionError(str(self.fault)) from self.fault

    def _append(self, stream: SimulatedStream, operation: Operation) -> None:
        stream.queue.append((self._n_given, operation))
        stream.n_given += 1
        self._n_given += 1

    def _needed(self, point: Point) -> SimulatedStream:
        stream, seen = point.stream, set()
        while (blocker := stream.blocker) is not None and stream not in seen:
            seen.add(stream)
            stream = blocker.stream
        return stream if stream.runnable else self._deadlock()

    def _next(self, point: Point) -> SimulatedStream:
        others = [s for n, s in enumerate(self.streams.values()) if s.runnable and n != self._starved]
        return self._random.choice(others) if others and self.mode == "starving" else self._needed(point)

    def _any(self) -> SimulatedStream:
        ready = [s for s in self.streams.values() if s.runnable]
        return self._random.choices(ready, [s.weight for s in ready])[0] if ready else self._deadlock()

    def _deadlock(self) -> SimulatedStream:
        heads = [f"stream {s.handle:#x}: {s.queue[0][1].name}" for s in self.streams.values() if s.queue]
        raise AssertionError("deadlock; " + ("; ".join(heads) or "no stream has any work"))

    def _run(self, stream: SimulatedStream) -> None:
        number, operation = stream.queue[0]
        try:
            if self.fault is None:
                self._check_order(number, operation)
                operation.run()
        except Exception as err:  # noqa: BLE001, it surfaces at the next call
            self.fault = AssertionError(f"{operation.name}: {err}")
            self.fault.__cause__ = err
        finally:
            stream.queue.popleft()
            stream.n_done += 1

    def _check_order(self, number: int, operation: Operation) -> None:
        if not operation.touches:
            return
        for stream in self.streams.values():
            for other, pending in stream.queue:
                if other >= number:
                    break
                for theirs in pending.touches:
                    for mine in operation.touches:
                        if mine.start < theirs.stop and theirs.start < mine.stop and mine.clashes(theirs):
                            what = f"'{pending.name}', which was given earlier and touches the same memory"
                            raise AssertionError(f"runs before {what}")
