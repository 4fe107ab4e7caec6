"""Decoding threads: never more than the budget, errors arrive, a fork starts anew."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import c_int64
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers.every_pair import usually
from helpers.interrupts import interrupt
from helpers.loops import without_loops

from xarray_gpuzarr import OptionError, configure, read_array
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.process.crew import Crew, _Run
from xarray_gpuzarr.process.fetch_options import in_force
from xarray_gpuzarr.process.side_by_side import side_by_side
from xarray_gpuzarr.process.threads import thread_budget

pytestmark = pytest.mark.timeout(60)

ENV = "XARRAY_GPUZARR_NUM_THREADS"


@pytest.fixture
def budget(monkeypatch):
    """Set the number of threads that may decode at once."""
    return lambda n: monkeypatch.setenv(ENV, str(n))


class Work:
    """A queue of tasks; counts how many threads are inside a task at once."""

    def __init__(self, n_tasks: int, task=lambda: None) -> None:
        self.left = n_tasks
        self.task = task
        self.inside = self.most_inside = self.done = 0
        self.threads: set[str] = set()
        self.lock = threading.Lock()

    def __call__(self, go_on) -> None:
        while go_on() and self._take():
            try:
                self.task()
            finally:
                with self.lock:
                    self.inside -= 1
                    self.done += 1

    def _take(self) -> bool:
        with self.lock:
            if self.left == 0:
                return False
            self.left -= 1
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self.threads.add(threading.current_thread().name)
            return True


@pytest.mark.parametrize("setting", ["", "0", "-1", "two", "1.5", " 2", "2 ", "1e3", "²"])
def test_unusable_setting_is_refused(monkeypatch, setting):
    monkeypatch.setenv(ENV, setting)

    with pytest.raises(OptionError) as caught:
        thread_budget()

    assert repr(setting) in caught.value.tried
    assert isinstance(caught.value, ValueError)


def test_budget_is_the_cores_of_this_process(monkeypatch):
    monkeypatch.delenv(ENV, raising=False)
    monkeypatch.setitem(sys.modules, "distributed.worker", None)

    assert thread_budget() == (len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count())


@pytest.mark.parametrize(("n", "most"), [(1, 100), (2, 100), (5, 100), (4, 1), (4, 2), (1, 4)])
def test_one_caller_gets_all_threads_of_the_budget_that_could_be_busy(budget, n, most):
    budget(n)
    n_threads = min(n, most)
    together = threading.Barrier(n_threads, timeout=30)
    work = Work(10 * n_threads, together.wait)

    Crew().run(work, most)

    assert work.done == 10 * n_threads
    assert work.most_inside == len(work.threads) == n_threads


@pytest.mark.parametrize("n_callers", [1, 2, 6])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_all_work_is_done_by_any_number_of_callers(budget, n, n_callers):
    budget(n)
    crew, works = Crew(), [Work(100) for _ in range(n_callers)]

    with ThreadPoolExecutor(n_callers) as pool:
        list(pool.map(lambda work: crew.run(work, 8), works))

    assert [work.done for work in works] == [100] * n_callers
    assert crew.n_active == 0


def test_threads_are_counted_while_callers_come_and_go(budget):
    budget(1)
    crew, over = Crew(), threading.Event()

    def look() -> int:
        n_looks = 0
        while not over.is_set():
            n_looks += crew.n_active >= 0
        return n_looks

    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(look) for _ in range(2)]
        try:
            callers = [pool.submit(lambda: [crew.run(lambda _: None, 2) for _ in range(10_000)]) for _ in range(2)]
            for caller in callers:
                caller.result(timeout=50)
        finally:
            over.set()

    assert all(look.result() > 0 for look in looks)
    assert crew.n_active == 0


@pytest.mark.parametrize(
    ("max_threads", "n_other", "expected"), [(9, 1, 4), (3, 1, 3), (1, 1, 1), (9, 3, 2), (2, 3, 2), (9, 6, 1)]
)
def test_threads_that_work_starts_by_itself_are_those_that_are_free_and_count(budget, max_threads, n_other, expected):
    crew = Crew()
    budget(4)
    taken, active = [], []

    def work(_):
        with crew.reserve_threads(n_other) as n_before:
            assert n_before == min(4, n_other)
            with crew.reserve_threads(max_threads) as n:
                taken.append(n)
                active.append(crew.n_active)
            active.append(crew.n_active)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        crew.run(work, 1)

    assert taken == [expected]
    assert active == [min(4, n_other) + expected - 1, min(4, n_other)]
    assert crew.n_active == 0


def test_cores_of_a_run_that_has_ended_help_one_with_threads_of_its_own(budget):
    budget(2)
    crew, over = Crew(), threading.Event()
    begun, together = threading.Barrier(3, timeout=30), threading.Barrier(2, timeout=30)

    def first(_):
        begun.wait()
        over.wait(30)

    def second(_):
        over.set()
        together.wait()

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(crew.run, first, 2)
        begun.wait()
        crew.run(second, 2, n_own_threads=c_int64(0))
        other.result()

    assert crew.n_active == 0


def test_helper_leaves_when_callers_fill_the_budget(budget):
    budget(2)
    crew, caller, answers = Crew(), threading.current_thread(), []
    step, ask, answered = threading.Barrier(2, timeout=30), threading.Event(), threading.Event()

    def second_read(_go_on):
        ask.set()
        answered.wait(30)

    def as_caller():
        step.wait()
        other_caller = threading.Thread(target=crew.run, args=(second_read, 1))
        other_caller.start()
        other_caller.join(30)

    def as_helper(go_on):
        answers.append(go_on())
        step.wait()
        ask.wait(30)
        answers.append(go_on())
        answered.set()

    crew.run(lambda go_on: as_caller() if threading.current_thread() is caller else as_helper(go_on), max_threads=2)

    assert answers == [True, False]


def test_helper_that_never_started_is_not_waited_for(budget):
    budget(3)
    crew = Crew()
    crew.run(Work(3), max_threads=3)

    for _ in range(50):
        crew.run(Work(1), max_threads=3)

    assert crew.n_active == 0


@pytest.mark.parametrize("where", ["caller", "helper"])
def test_exception_of_any_thread_arrives(budget, where):
    budget(2)
    crew, together, caller = Crew(), threading.Barrier(2, timeout=30), threading.current_thread()

    def fail_in_one():
        together.wait()
        if (threading.current_thread() is caller) == (where == "caller"):
            raise RuntimeError(f"in the {where}")

    with pytest.raises(RuntimeError, match=f"in the {where}"):
        crew.run(Work(2, fail_in_one), max_threads=2)
    assert crew.n_active == 0
    crew.run(work := Work(10), max_threads=2)

    assert work.done == 10


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_helpers_have_left_when_a_run_raises(budget, error):
    """They may write to memory that is freed then."""
    budget(2)
    caller, begun, returned, too_late = threading.current_thread(), threading.Event(), threading.Event(), []

    def work(go_on):
        if threading.current_thread() is caller:
            assert begun.wait(20)
            raise error
        begun.set()
        while go_on() and not returned.wait(0.001):
            pass
        too_late.append(returned.wait(0.1))

    with pytest.raises(error):
        Crew().run(work, max_threads=2)
    returned.set()

    assert too_late == [False]


def test_helpers_leave_though_the_wait_for_them_is_interrupted(budget, monkeypatch):
    budget(2)
    monkeypatch.setattr(_Run, "end", interrupt)
    caller, begun, left, over = threading.current_thread(), threading.Event(), threading.Event(), threading.Event()

    def work(go_on):
        if threading.current_thread() is caller:
            assert begun.wait(20)
            return
        begun.set()
        while go_on() and not over.wait(0.001):
            pass
        left.set()

    with pytest.raises(KeyboardInterrupt):
        Crew().run(work, max_threads=2)
    has_left = left.wait(5)
    over.set()

    assert has_left


def test_read_inside_a_read_does_not_wait_for_itself(budget):
    budget(2)
    crew = Crew()
    inner = Work(10)

    crew.run(Work(4, lambda: crew.run(inner, max_threads=2)), max_threads=2)

    assert inner.done == 10


@pytest.fixture
def ranges(monkeypatch):
    """Collect the byte ranges that local files are asked for, where the compiled loops do not read them."""
    without_loops(monkeypatch)
    asked = []
    start = LocalSource.start

    def noting(source, requests, version=None):
        asked.extend(wanted for _, wanted in requests)
        return start(source, requests, version)

    monkeypatch.setattr(LocalSource, "start", noting)
    return asked


def _noise(path):
    """Write 4 MiB as one shard of 64 chunks that take as much space encoded."""
    data = np.random.default_rng(0).integers(0, 256, (64, 64, 1024), np.uint8)
    codec = zarr.codecs.GzipCodec(level=0)
    return zarr.create_array(path, data=data, chunks=(8, 8, 1024), shards=data.shape, compressors=codec), data


@pytest.mark.parametrize(("n_threads", "n_parts"), [(1, 2), (2, 8), (4, 16)])
def test_a_small_read_is_cut_so_that_every_thread_gets_some_of_it(tmp_path, budget, ranges, n_threads, n_parts):
    array, data = _noise(tmp_path)
    budget(n_threads)

    np.testing.assert_array_equal(read_array(array, device="host"), data)

    assert n_parts <= len(ranges) < 1.5 * n_parts + 1


def test_a_chosen_length_of_requests_bounds_parts(tmp_path, budget, ranges, monkeypatch):
    monkeypatch.setattr(in_force, "options", None)
    array, data = _noise(tmp_path)
    budget(2)
    configure(max_request_nbytes=150_000)

    np.testing.assert_array_equal(read_array(array, device="host"), data)

    assert max(r.nbytes for r in ranges) <= 150_000


# ---- calls side by side


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
    assert n_begun < 1999  # all but the one that fails
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


# ---- forks while other threads read


TESTS = Path(__file__).parents[1]


@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_was_forked_off_reads_or_says_what_to_do():
    forks = {"files": 12, "store": 12, "zip": 4, "cuda": 4, "progress": 20}
    words = [f"{kind}={usually(max(2, n // 5), full=n)}" for kind, n in forks.items()]
    command = [sys.executable, "-W", "ignore", "-m", "helpers.forked_reads", *words]

    done = subprocess.run(
        command, capture_output=True, text=True, timeout=usually(100, full=280), check=False, cwd=TESTS
    )

    assert (done.returncode, done.stderr) == (0, "")
