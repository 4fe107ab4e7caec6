"""Cores that threads share: never more held than there are, lent while a disk is waited for, and never lost."""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import get_ident

import numpy as np
import pytest
import zarr

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host import decoder as host
from xarray_gpuzarr.fetch import files
from xarray_gpuzarr.process.turns import Turns

pytestmark = pytest.mark.timeout(60)


def in_turn[Result](turns: Turns, most: int, compute: Callable[[], Result]) -> Result:
    """Return what `compute` does while it is the turn of the calling thread, as the host decoder has it."""
    takes_turn = get_ident() not in turns.holders
    try:
        if takes_turn:
            turns.begin(lambda: most)
        return compute()
    finally:
        if takes_turn:
            turns.holders.pop(get_ident(), None)
            turns.ended.ring()


class Inside:
    """Counts threads inside a block."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1

    def sleep(self, seconds: float) -> None:
        with self:
            time.sleep(seconds)


@pytest.mark.parametrize(("n_cores", "n_threads"), [(1, 4), (3, 8), (8, 3)])
def test_no_more_threads_compute_than_there_are_cores(n_cores, n_threads):
    shared, inside = Turns(), Inside()

    def compute(_: int) -> None:
        in_turn(shared, n_cores, lambda: inside.sleep(0.002))

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(compute, range(40)))
    assert inside.most == min(n_cores, n_threads)


def test_a_read_inside_a_read_holds_no_second_core():
    shared = Turns()

    def of_another_thread() -> bool:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(in_turn, shared, 1, lambda: True).result(10)

    assert in_turn(shared, 1, lambda: in_turn(shared, 1, lambda: shared.run_without(of_another_thread)))


def test_a_lent_core_is_taken_back():
    shared, inside, waiting = Turns(), Inside(), threading.Event()

    def other() -> None:
        waiting.set()
        inside.sleep(0.02)

    def compute() -> int:
        thread.start()
        assert shared.run_without(lambda: waiting.wait(10))
        return inside.now

    thread = threading.Thread(target=in_turn, args=(shared, 1, other))
    assert in_turn(shared, 1, compute) == 0
    thread.join()


def test_who_holds_none_lends_none():
    shared = Turns()

    assert shared.run_without(lambda: in_turn(shared, 1, lambda: len(shared.holders))) == 1
    assert in_turn(shared, 1, lambda: len(shared.holders)) == 1
    assert len(shared.holders) == 0


def fail() -> None:
    raise KeyError


@pytest.mark.parametrize("failing", ["in_turn", "lend"])
def test_a_core_comes_back_after_an_exception(failing):
    shared = Turns()

    for _ in range(3):
        with pytest.raises(KeyError):
            in_turn(shared, 1, fail if failing == "in_turn" else lambda: shared.run_without(fail))

    assert len(shared.holders) == 0


def test_who_is_interrupted_while_it_waits_for_its_core_gives_none_back(monkeypatch):
    shared, inside = Turns(), Inside()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def compute() -> None:
        shared.run_without(lambda: monkeypatch.setattr(shared, "_take", interrupted))

    with pytest.raises(KeyboardInterrupt):
        in_turn(shared, 1, compute)
    monkeypatch.undo()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: in_turn(shared, 1, lambda: inside.sleep(0.002)), range(20)))
    assert inside.most == 1


def test_a_wake_that_got_lost_is_made_up_for(monkeypatch):
    shared, waits = Turns(), threading.Event()
    monkeypatch.setattr(shared.ended, "ring", lambda: None)

    def wait() -> bool:
        waits.set()
        return in_turn(shared, 1, lambda: True)

    def compute() -> Future[bool]:
        later = pool.submit(wait)
        waits.wait(10)
        return later

    with ThreadPoolExecutor(1) as pool:
        assert in_turn(shared, 1, compute).result(10)


# ---- the decoder and the source that share them


@pytest.fixture
def stored(tmp_path):
    values = np.arange(64 * 1024, dtype="<u4").reshape(64, 1024)
    array = zarr.create_array(tmp_path, shape=values.shape, chunks=(4, 1024), shards=(16, 1024), dtype=values.dtype)
    array[...] = values
    return array, values


@pytest.mark.parametrize("n_threads_each", [None, 1])
def test_reads_of_short_chunks_take_turns(stored, monkeypatch, n_threads_each):
    """As many at once as the process has cores, however few threads each of them may use."""
    array, values = stored
    monkeypatch.setattr(host.threads, "n_cores", lambda: 2)
    inside, empty = Inside(), host.HostDecoder.empty

    def watched(*arguments: object) -> np.ndarray:
        inside.sleep(0.004)
        return empty(*arguments)

    def read_some(n: int) -> np.ndarray:
        return host.threads.limit_threads(n_threads_each, lambda: read_array(array, slice(n, n + 8)))

    monkeypatch.setattr(host.HostDecoder, "empty", watched)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(read_some, range(0, 64, 8)))
    assert np.array_equal(np.concatenate(found), values)
    assert inside.most == 2


def test_a_read_that_waits_for_the_disk_lets_others_read(stored, monkeypatch):
    array, values = stored
    monkeypatch.setattr(host.threads, "n_cores", lambda: 1)
    together = threading.Barrier(4, timeout=20)  # broken if reads wait for each other
    preadv = os.preadv

    def cold(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        if sum(map(len, buffers)) > 4096:  # of chunks, not of an index
            together.wait()
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(files.os, "preadv", cold)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: read_array(array, slice(n, n + 16)), range(0, 64, 16)))
    assert np.array_equal(np.concatenate(found), values)
