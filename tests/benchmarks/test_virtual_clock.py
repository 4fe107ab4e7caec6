"""The clock of threads that take turns, and a crew by it."""

import threading

import pytest

from benchmarks.timed.virtual_clock import VirtualClock, VirtualCrew


def test_who_sleeps_least_goes_on_first():
    clock, order = VirtualClock(), []

    def job(name, *naps):
        for nap in naps:
            clock.sleep(nap)
            order.append((name, clock.now()))

    seconds = clock.run([lambda: job("a", 3, 3), lambda: job("b", 2, 2, 2), lambda: job("c", 10)])

    assert order == [("b", 2), ("a", 3), ("b", 4), ("a", 6), ("b", 6), ("c", 10)]
    assert seconds == 10


def test_an_error_ends_a_run_once_all_jobs_have_ended():
    clock, done = VirtualClock(), []

    def fails():
        raise KeyError("a job")

    with pytest.raises(KeyError):
        clock.run([fails, lambda: (clock.sleep(1), done.append(1))])
    assert done == [1]


def test_a_crew_does_tasks_side_by_side_within_the_budget():
    clock, ended, n_threads = VirtualClock(), [], threading.active_count()
    crew = VirtualCrew(clock)

    def work(n_tasks, name):
        left = list(range(n_tasks))

        def drain(go_on):
            while go_on() and left:
                left.pop()
                crew.spend(1)

        crew.run(drain, 100, 4)
        ended.append((name, clock.now()))

    clock.run([lambda: work(8, "alone")])
    assert ended.pop() == ("alone", 2)

    clock.run([lambda: work(8, "first"), lambda: (clock.sleep(0.5), work(3, "later"))])
    # The later one finds no thread free but its own, for which a helper of the first leaves.
    assert [name for name, _ in ended] == ["first", "later"]
    assert ended[0][1] == 2 + 3
    assert threading.active_count() <= n_threads
