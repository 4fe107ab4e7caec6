"""The simulation behind the modelled device of the benchmarks: exact times of made-up operations, and brute force."""

import heapq
import itertools
import threading
import time

import pytest
from helpers.still_clock import StillClock
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.timed.simulation import Simulation, Stream

HANDLES = itertools.count(1)


@pytest.fixture
def clock():
    return StillClock()


@pytest.fixture
def simulation(clock):
    return Simulation({"upload": 1, "decode": 4, "kernel": 1}, clock)


def end_of(simulation, operation):
    simulation.wait_for(operation)
    return operation.end_s


# ---- streams

programs = st.lists(
    st.tuples(
        st.integers(0, 2),  # stream
        st.sampled_from(["upload", "decode"]),
        st.integers(1, 6),  # parts
        st.integers(1, 8),  # seconds
        st.integers(0, 5),  # later than the one before
        st.integers(-1, 10),  # awaited operation, by its number
    ),
    max_size=14,
)
N_SLOTS = {"upload": 1, "decode": 3}


def ends_by_brute_force(program):
    """Return when operations end: the one that is reached first is served next, found by looking at all of them."""
    enqueued, at = [], 0.0
    for number, (stream, resource, n, seconds, later, awaited) in enumerate(program):
        at += later
        before = [i for i in range(number) if program[i][0] == stream][-1:]
        enqueued.append((at, [*before, *([awaited] if 0 <= awaited < number else [])], resource, n, seconds))
    free = {resource: [0.0] * n for resource, n in N_SLOTS.items()}
    ends = {}
    while len(ends) < len(program):
        ready = [
            (max([at, *(ends[i] for i in before)]), number)
            for number, (at, before, *_) in enumerate(enqueued)
            if number not in ends and all(i in ends for i in before)
        ]
        reached, number = min(ready)
        _, _, resource, n, seconds = enqueued[number]
        last = reached
        for _ in range(n):
            start = max(heapq.heappop(free[resource]), reached)
            heapq.heappush(free[resource], start + seconds)
            last = max(last, start + seconds)
        ends[number] = last
    return [ends[number] for number in range(len(program))]


@given(programs)
@settings(deadline=None)
def test_streams_and_events_are_honoured_as_by_brute_force(program):
    clock = StillClock()
    simulation = Simulation(N_SLOTS, clock)
    streams = [Stream(next(HANDLES)) for _ in range(3)]
    operations = []

    for stream, resource, n, seconds, later, awaited in program:
        clock.time += later
        if 0 <= awaited < len(operations):
            simulation.hold(streams[stream], operations[awaited])
        operations.append(simulation.enqueue(streams[stream], resource, n, float(seconds)))

    assert [end_of(simulation, operation) for operation in operations] == ends_by_brute_force(program)


def test_one_copy_engine_serves_all_streams_one_after_another(simulation):
    one, other = Stream(next(HANDLES)), Stream(next(HANDLES))

    first = simulation.enqueue(one, "upload", 1, 3.0)
    second = simulation.enqueue(other, "upload", 1, 2.0)

    assert [end_of(simulation, first), end_of(simulation, second)] == [3, 3 + 2]


def test_two_streams_share_slots(simulation):
    one, other = Stream(next(HANDLES)), Stream(next(HANDLES))

    first = simulation.enqueue(one, "decode", 3, 10.0)
    second = simulation.enqueue(other, "decode", 2, 4.0)

    assert end_of(simulation, first) == 10
    assert end_of(simulation, second) == 4 + 4  # the one slot that was left does both
    assert simulation.occupied_s["decode"] == 3 * 10 + 2 * 4


def test_who_is_reached_first_is_served_first_even_if_it_was_given_later(simulation, clock):
    busy, free = Stream(next(HANDLES)), Stream(next(HANDLES))
    simulation.enqueue(busy, "upload", 1, 10.0)
    late = simulation.enqueue(busy, "decode", 4, 5.0)
    clock.time = 2
    early = simulation.enqueue(free, "decode", 4, 20.0)

    assert end_of(simulation, early) == 2 + 20
    assert end_of(simulation, late) == 2 + 20 + 5


def test_work_of_a_stream_runs_in_order_on_whatever_resource(simulation):
    stream = Stream(next(HANDLES))

    operations = [simulation.enqueue(stream, name, 1, 2.0) for name in ("upload", "kernel", "decode", "kernel")]

    assert [end_of(simulation, operation) for operation in operations] == [2, 4, 6, 8]


def test_what_was_awaited_once_holds_only_later_work(simulation):
    copies, work = Stream(next(HANDLES)), Stream(next(HANDLES))
    copied = simulation.enqueue(copies, "upload", 1, 7.0)
    before = simulation.enqueue(work, "kernel", 1, 1.0)
    simulation.hold(work, copied)
    after = simulation.enqueue(work, "kernel", 1, 1.0)

    assert [end_of(simulation, before), end_of(simulation, after)] == [1, 7 + 1]


def test_a_wait_sleeps_until_the_operation_has_ended_and_no_longer(simulation, clock):
    stream, other = Stream(next(HANDLES)), Stream(next(HANDLES))
    simulation.enqueue(stream, "upload", 1, 3.0)
    last = simulation.enqueue(stream, "kernel", 1, 4.0)
    simulation.enqueue(other, "kernel", 1, 0.5)

    simulation.wait_for(last)
    assert clock.time == 3 + 4
    assert clock.slept == [3, 4]  # until more is known, then until it has ended
    simulation.wait_for(last)
    simulation.wait_for(None)
    assert clock.time == 7


class SlowSeconds(float):
    """Seconds that let other threads go on while they are added."""

    def __radd__(self, other):
        time.sleep(1e-4)
        return float(other) + float(self)


def test_threads_may_enqueue_side_by_side():
    simulation = Simulation({"upload": 1}, StillClock())
    lasts = []

    def enqueue():
        stream = Stream(next(HANDLES))
        lasts.append([simulation.enqueue(stream, "upload", 1, SlowSeconds(1)) for _ in range(20)][-1])

    started = [threading.Thread(target=enqueue) for _ in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()

    assert max(end_of(simulation, last) for last in lasts) == 4 * 20
    assert simulation.occupied_s["upload"] == 4 * 20
