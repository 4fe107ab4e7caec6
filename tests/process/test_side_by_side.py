"""Calls on several threads: order, errors, interrupts, and where threads read."""

import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from xarray_gpuzarr.process.side_by_side import side_by_side


def test_results_come_in_the_order_of_the_calls():
    met = threading.Barrier(5)

    def call(number):
        met.wait(30)  # all five are made at once
        return number

    assert side_by_side([lambda n=n: call(n) for n in range(5)]) == [0, 1, 2, 3, 4]
    assert side_by_side([]) == []
    assert side_by_side([lambda n=n: n for n in range(1000)]) == list(range(1000))


def test_the_first_error_is_raised_and_nothing_begins_after_it():
    begun = []

    def fail():
        raise ZeroDivisionError("the third")

    def call(number):
        begun.append(number)
        time.sleep(0.01)

    calls = [lambda n=n: fail() if n == 3 else call(n) for n in range(2000)]
    with pytest.raises(ZeroDivisionError, match="the third"):
        side_by_side(calls)
    n_begun = len(begun)
    assert n_begun < 2000
    time.sleep(0.05)
    assert len(begun) == n_begun


def test_threads_are_made_to_read_where_the_caller_would():
    entered, left = [], []

    @contextmanager
    def as_caller():
        entered.append(threading.get_ident())
        yield
        left.append(threading.get_ident())

    where = side_by_side([threading.get_ident for _ in range(50)], as_caller)

    assert set(where) <= set(entered)
    assert sorted(entered) == sorted(left)
    assert len(entered) == 32


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_is_heard_at_once_and_nothing_begins_after_it():
    begun, release, n_begun = threading.Event(), threading.Event(), []

    def call():
        n_begun.append(1)
        begun.set()
        release.wait(60)

    def interrupt():
        begun.wait()
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    signaller = threading.Thread(target=interrupt)
    signaller.start()
    with pytest.raises(KeyboardInterrupt):
        side_by_side([call] * 500)
    signaller.join()

    n = len(n_begun)
    assert n <= 32
    release.set()
    time.sleep(0.1)
    assert len(n_begun) == n


def test_threads_have_the_contexts_of_their_caller():
    with np.errstate(all="raise"):
        found = side_by_side([np.geterr, np.geterr])

    assert [each["over"] for each in found] == ["raise", "raise"]
