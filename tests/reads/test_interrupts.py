"""Ctrl-C, and threads that cannot be started, leave everything as it was, and the next read works."""

import _thread
import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.every_pair import usually
from helpers.fresh_process import in_fresh_process
from helpers.interrupted_reads import interrupt_reads
from helpers.linux import needs_linux
from helpers.stores.fakes import RecordingStore
from zarr.core import sync
from zarr.storage import LocalStore, MemoryStore

import xarray_gpuzarr
from xarray_gpuzarr import StoreReadError, read_array
from xarray_gpuzarr.fetch.index_cache import IndexCache
from xarray_gpuzarr.process.crew import Crew
from xarray_gpuzarr.process.crew import crew as shared
from xarray_gpuzarr.process.waiting import Bell, run_uninterrupted

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
