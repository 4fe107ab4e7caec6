"""Ctrl-C, and threads that cannot be started, leave everything as it was, and the next read works."""

import _thread
import asyncio
import threading
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.every_pair import usually
from helpers.fresh_process import in_fresh_process
from helpers.interrupted_reads import interrupt_reads
from helpers.interrupts import interrupting
from helpers.linux import needs_linux
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import RecordingStore
from zarr.core import sync
from zarr.storage import LocalStore, MemoryStore

import xarray_gpuzarr
from xarray_gpuzarr import StoreReadError, read_array
from xarray_gpuzarr.cuda.locks import SharedLock
from xarray_gpuzarr.cuda.resources import DeviceResources
from xarray_gpuzarr.fetch.index_cache import IndexCache
from xarray_gpuzarr.fetch.remote.under_way import event_loop
from xarray_gpuzarr.process import waiting
from xarray_gpuzarr.process.crew import Crew
from xarray_gpuzarr.process.crew import crew as shared
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.side_by_side import side_by_side
from xarray_gpuzarr.process.waiting import Bell, run_uninterrupted
from xarray_gpuzarr.training.ahead import Ahead

pytestmark = [pytest.mark.timeout(120), needs_linux]

DATA = np.arange(200_000, dtype="i4")


@pytest.mark.parametrize(
    ("kind", "n_threads"),
    [
        ("shards", 1),
        ("shards", 2),
        ("parts", 1),
        ("parts", 2),
        ("files", 2),
        ("store", 1),
        ("store", 2),
        ("objects", 2),
        ("progress", 1),
        ("epoch", 2),
        ("cuda", 2),
        ("cuda-files", 1),
        ("cuda-direct", 1),
    ],
)
def test_an_interrupt_at_any_time_leaves_nothing_behind(kind, n_threads):
    assert in_fresh_process(interrupt_reads, kind, n_threads, usually(1, full=10), seconds=100) >= 5


@pytest.fixture
def no_threads():
    """A function that lets no thread start, and one that does so again."""
    patch = pytest.MonkeyPatch()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def begin() -> None:
        for module, name in ((_thread, "start_new_thread"), (threading, "_start_new_thread")):
            patch.setattr(module, name, refuse)

    yield begin, patch.undo
    patch.undo()


@pytest.fixture
def crew(monkeypatch):
    """A crew that has no threads yet, for reads of four."""
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "4")
    shared.restart()
    return shared


def test_a_read_does_without_helpers_that_cannot_be_started(tmp_path, no_threads, crew):
    array = zarr.create_array(LocalStore(tmp_path), data=DATA, chunks=(1000,), shards=(10_000,))
    begin, end = no_threads

    begin()
    assert_same_bits(read_array(array, device="host"), DATA)
    assert (crew.n_active, crew.threads) == (0, [])
    end()


def test_helpers_are_started_once_that_works_again(no_threads):
    crew, (begin, end) = Crew(), no_threads
    together = threading.Barrier(3, timeout=30)

    begin()
    crew.run(lambda _: None, 3, 3)
    end()
    crew.run(lambda _: together.wait(), 3, 3)

    assert len(crew.threads) == 2
    assert crew.n_active == 0


def test_some_helpers_that_cannot_be_started_are_no_loss(monkeypatch):
    start, n_started = threading._start_new_thread, []

    def start_one(*arguments: object) -> object:
        n_started.append(1)
        if len(n_started) > 1:
            raise RuntimeError("can't start new thread")
        return start(*arguments)

    monkeypatch.setattr(threading, "_start_new_thread", start_one)
    crew, callers = Crew(), set()

    crew.run(lambda _: callers.add(threading.get_ident()), 4, 4)

    assert len(crew.threads) == 1
    assert threading.get_ident() in callers
    assert crew.n_active == 0


@pytest.fixture
def no_loop(monkeypatch):
    """A process in which zarr has not begun its event loop."""
    loop: list[asyncio.AbstractEventLoop | None] = [None]
    monkeypatch.setattr(sync, "loop", loop)
    monkeypatch.setattr(sync, "iothread", [None])
    yield
    if loop[0] is not None:
        loop[0].call_soon_threadsafe(loop[0].stop)


def test_an_event_loop_that_could_not_be_started_is_started_by_the_next_read(no_loop, no_threads):
    before = sync.loop[0]
    array = zarr.create_array(RecordingStore(MemoryStore()), data=DATA, chunks=(1000,), shards=(10_000,))
    sync.loop[0].call_soon_threadsafe(sync.loop[0].stop)
    sync.loop[0] = sync.iothread[0] = before
    begin, end = no_threads

    begin()
    with pytest.raises(StoreReadError, match="ulimit"):
        read_array(array, device="host")
    # As zarr leaves it if it is refused the thread itself.
    with pytest.raises(RuntimeError):
        sync._get_loop()
    end()

    assert_same_bits(read_array(array, device="host"), DATA)


def test_no_bar_is_shown_if_no_thread_can_draw_it(tmp_path, no_threads):
    array = zarr.create_array(LocalStore(tmp_path), data=DATA, chunks=(1000,))
    begin, end = no_threads

    begin()
    with xarray_gpuzarr.progress():
        assert_same_bits(read_array(array, device="host"), DATA)
    end()


class Interrupting:
    """An entry of the index cache whose length cannot be asked for."""

    @property
    def nbytes(self) -> int:
        raise KeyboardInterrupt


def test_a_torn_change_empties_the_index_cache():
    cache, entry = IndexCache(), SimpleNamespace(nbytes=10)

    cache.put("a", entry, 100)
    with pytest.raises(KeyboardInterrupt):
        cache.put("b", Interrupting(), 100)
    assert cache.get("a") is None
    assert (len(cache), cache.nbytes) == (0, 0)

    cache.put("b", entry, 100)
    assert (len(cache), cache.nbytes) == (1, 10)


def test_what_runs_apart_returns_and_raises():
    def fail() -> None:
        raise KeyError("apart")

    assert run_uninterrupted(threading.get_ident) != threading.get_ident()
    with pytest.raises(KeyError, match="apart"):
        run_uninterrupted(fail)


class InterruptedLock:
    """A lock that is interrupted when it is first waited for. `waits` is set when it is waited for again."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acquire, self.release = self.lock.acquire, self.lock.release
        self.was_interrupted = False
        self.waits = threading.Event()

    def __enter__(self) -> None:
        if not self.was_interrupted:
            self.was_interrupted = True
            raise KeyboardInterrupt
        self.waits.set()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_what_runs_apart_has_ended_when_an_interrupt_is_raised(monkeypatch):
    lock, ended = InterruptedLock(), []
    monkeypatch.setattr(waiting, "Lock", lambda: lock)

    with pytest.raises(KeyboardInterrupt):
        run_uninterrupted(lambda: ended.append(lock.waits.wait(2)))

    assert ended == [True]


STARTS = {
    "helpers": lambda: Crew().run(lambda _: None, 2, 2),
    "calls side by side": lambda: side_by_side([int, int]),
    "reads ahead": lambda: Ahead(lambda *_: 0, 0, 2, 2, nullcontext).close(),
    "zarr's event loop": lambda: event_loop("a"),
}


@pytest.mark.usefixtures("no_loop")
@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_threads_are_started_by_a_thread_that_no_signal_interrupts(start, monkeypatch):
    started_by, start_thread = [], threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        started_by.append(threading.get_ident())
        start_thread(thread)

    monkeypatch.setattr(threading.Thread, "start", noting)

    start()

    assert started_by
    assert threading.main_thread().ident not in started_by


RECORDS = {
    "the only thread of a read": (Crew, "lone_threads", set, "add", lambda crew: crew.run(lambda _: None, 1)),
    "a run of several threads": (Crew, "_runs", set, "add", lambda crew: crew.run(lambda _: None, 2, 2)),
    "threads in C": (Crew, "lone_threads", set, "update", lambda crew: crew.reserve_threads(2, 2).__enter__()),
    "who waits for a bell": (Bell, "waiting", deque, "append", lambda bell: bell.wait_until(lambda: False)),
    "a read of a GPU": (SharedLock, "_reads", dict, "__setitem__", lambda lock: lock.shared(int)),
    "a read's workspace": (
        lambda: DeviceResources(SimulatedDevice(0), ResourceOptions()),
        *("_in_use", dict, "__setitem__"),
        lambda resources: resources.run_read(id),
    ),
}
"""What is recorded: who records it, where, and by which call."""


@pytest.mark.parametrize(("make", "name", "kind", "method", "use"), RECORDS.values(), ids=RECORDS)
def test_an_interrupt_as_something_is_recorded_removes_the_record(make, name, kind, method, use):
    owner, records = make(), interrupting(kind, method)
    setattr(owner, name, records)

    with pytest.raises(KeyboardInterrupt):
        use(owner)

    assert not records


def test_a_bell_rings_for_all_that_wait():
    bell, ready, passed = Bell(), threading.Event(), []

    def wait() -> None:
        bell.wait_until(ready.is_set)
        passed.append(1)

    waiting = [threading.Thread(target=wait) for _ in range(4)]
    for thread in waiting:
        thread.start()
    ready.set()
    bell.ring_for_all()
    for thread in waiting:
        thread.join(10)

    assert len(passed) == 4
    assert not bell.waiting
