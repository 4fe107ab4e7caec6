"""Workspaces are lent to one read after another: how many there are, what they hold, and who waits."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from helpers.clusters import eventually
from helpers.data.corpus import V3_CODECS, counting, write
from helpers.every_pair import usually
from helpers.interrupts import interrupt
from helpers.simulated.reads import LAZY, SCENES, SEEDS, CudaReads, NotingDevice, limits, scene
from helpers.simulated.simulator import SimulatedDevice
from zarr.storage import MemoryStore

from xarray_gpuzarr import configure
from xarray_gpuzarr.cuda.locks import SharedLock
from xarray_gpuzarr.cuda.resources import DeviceResources
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.process.device_options import ResourceOptions, resource_options
from xarray_gpuzarr.read import read, stored_array

pytestmark = pytest.mark.timeout(120)

KIB = 1024
MIB = 1024**2
GIB = 1024 * MIB
N_THREADS = 64


def fail(error):
    raise error


def at_once(call, n_threads):
    """Return what `call` gives on threads that begin together."""
    start = threading.Barrier(n_threads, timeout=60)
    with ThreadPoolExecutor(n_threads) as threads:
        return list(threads.map(lambda number: (start.wait(), call(number))[1], range(n_threads)))


def n_workspaces(device):
    """Say how many there ever were: each has streams for copies, for two batches and for memory that is at rest."""
    return device.calls["stream"] // 4


@pytest.mark.parametrize("codec", ["zstd", "gzip", "blosc-lz4-shuffle", "bytes"])
@pytest.mark.parametrize("shards", [None, (16_384,)])
def test_a_short_read_pins_little(codec, shards):
    data = counting((16_384,), "f4")
    array = write(MemoryStore(), data, chunks=(1024,), shards=shards, **V3_CODECS[codec])
    device = NotingDevice(LAZY)

    with limits(**{name: getattr(ResourceOptions(), name) for name in ("slot_nbytes", "n_slots", "batch_chunks")}):
        np.testing.assert_array_equal(CudaReads(device).values(array, slice(1024)), data[:1024])

    assert device.peak_pinned_nbytes <= MIB


@pytest.mark.parametrize("seed", SEEDS[: usually(1, full=3)])
def test_many_threads_take_turns(seed):
    device = SimulatedDevice(seed)
    reads = CudaReads(device)

    def work(number):
        name = list(SCENES)[number % len(SCENES)]
        np.testing.assert_array_equal(reads.values(scene(name).array), scene(name).expected)

    with limits():
        most = resource_options().n_reads
        at_once(work, N_THREADS)
        at_once(work, most)

    device.check()
    assert n_workspaces(device) <= most < N_THREADS


def lent_at_once(pool, n_threads):
    """Return the workspaces of reads that are all under way at the same time."""
    all_there = threading.Barrier(n_threads, timeout=20)
    return at_once(lambda _: pool.run_read(lambda workspace: (all_there.wait(), workspace)[1]), n_threads)


def test_no_two_reads_have_one_workspace_and_one_inside_another_has_its():
    pool = DeviceResources(SimulatedDevice(LAZY), ResourceOptions())

    lent = set(lent_at_once(pool, 3))

    assert len(lent) == 3
    assert set(lent_at_once(pool, 2)) <= lent
    outer, inner = pool.run_read(lambda outer: (outer, pool.run_read(lambda inner: inner)))
    assert outer is inner


@pytest.mark.parametrize("n_reads", [1, 4])
def test_one_read_more_waits_until_one_has_ended(n_reads):
    device = SimulatedDevice(LAZY)
    pool = DeviceResources(device, ResourceOptions(n_reads=n_reads))
    all_there = threading.Barrier(n_reads + 1, timeout=0.5)
    with pytest.raises(threading.BrokenBarrierError):
        at_once(lambda _: pool.run_read(lambda _: all_there.wait()), n_reads + 1)

    assert len(set(lent_at_once(pool, n_reads))) == n_workspaces(device) == n_reads


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_read_that_fails_gives_its_workspace_back(error):
    device = SimulatedDevice(LAZY)
    pool = DeviceResources(device, ResourceOptions())

    for _ in range(7):
        with pytest.raises(error):
            pool.run_read(lambda _: fail(error))
    assert n_workspaces(device) == 1


class TakenLock:
    """A lock of another thread."""

    def __enter__(self):
        raise AssertionError("this waits for a lock")

    __exit__ = fail


def test_a_read_waits_for_no_lock_before_it_gives_its_workspace_back():
    """A signal may interrupt the wait, and the workspace would be in use for ever."""
    pool = DeviceResources(SimulatedDevice(LAZY), ResourceOptions())

    pool.run_read(lambda _: setattr(pool, "_workspaces_lock", TakenLock()))

    assert not pool.is_in_read


@pytest.mark.parametrize("name", ["_try_claim", "_no_other_reads"])
def test_who_is_interrupted_before_it_reads_alone_keeps_nobody_waiting(monkeypatch, name):
    lock, step = SharedLock(), getattr(SharedLock, name)
    with monkeypatch.context() as patch:
        patch.setattr(SharedLock, name, lambda *args: (step(*args), interrupt()))
        with pytest.raises(KeyboardInterrupt):
            lock.exclusive(int)

    assert not lock.is_alone
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lock.shared, lambda: True).result(10)


@pytest.mark.parametrize(("n_reads", "nbytes"), [(1, 750 * MIB), (3, 250 * MIB), (5, 150 * MIB)])
def test_scratch_is_divided_by_those_who_may_read(n_reads, nbytes):
    pool = DeviceResources(SimulatedDevice(LAZY, 1000 * MIB), ResourceOptions(n_reads=n_reads))

    assert pool.run_read(lambda space: space.scratch_nbytes) == nbytes


def test_closing_waits_for_reads_and_later_ones_take_memory_anew():
    pool = DeviceResources(SimulatedDevice(LAZY), ResourceOptions())
    reads, closed = threading.Event(), threading.Event()

    def read(workspace):
        reads.set()
        assert not closed.wait(0.1)
        return workspace

    with ThreadPoolExecutor(2) as threads:
        reading = threads.submit(pool.run_read, read)
        reads.wait(20)
        closing = threads.submit(lambda: (pool.close(), closed.set()))
        before = reading.result(20)
        closing.result(20)

    assert closed.is_set()
    assert pool.run_read(lambda workspace: workspace) is not before


def test_reads_begin_in_the_order_in_which_they_came():
    lock, began, may_end = SharedLock(1), [], threading.Event()

    def all_came():
        return eventually(lambda: len(lock._reads), len(reads)) == len(reads)

    with ThreadPoolExecutor(8) as threads:
        reads = [threads.submit(lock.shared, lambda: may_end.wait(20))]
        for number in range(7):
            assert all_came()
            reads.append(threads.submit(lock.shared, lambda number=number: began.append(number)))
        assert all_came()
        may_end.set()
        for read in reads:
            read.result(20)

    assert began == list(range(7))


def test_pinned_memory_of_an_interrupted_cleaning_is_not_taken_anew_before_its_copies_have_run(monkeypatch):
    device = SimulatedDevice(LAZY)
    pool = DeviceResources(device, ResourceOptions())

    def read(workspace):
        slot, memory = workspace.borrow_slot(KIB), workspace.device_slots.borrow(KIB, workspace.copy)
        workspace.upload(memory.address, slot.array[:KIB], workspace.copy)
        fail(KeyboardInterrupt)

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "wait_until_idle", lambda *_: fail(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pool.run_read(read)
    pool.prepare(1)

    pool.run_read(lambda workspace: workspace.wait_until_idle())
    device.check()


def test_slots_of_an_interrupted_read_are_dropped_however_often_cleaning_fails(monkeypatch):
    device = NotingDevice(LAZY)
    pool = DeviceResources(device, ResourceOptions())
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "wait_until_idle", lambda *_: fail(ArithmeticError))
        for _ in range(3):  # the first of them is the read's own
            with pytest.raises(ArithmeticError):
                pool.run_read(lambda workspace: (workspace.borrow_slot(KIB), fail(KeyboardInterrupt)))
    before = device.calls["allocate_pinned"]

    pool.run_read(lambda workspace: workspace.borrow_slot(KIB))

    assert device.calls["allocate_pinned"] == before + 1


def test_an_output_outlives_a_cleaning_that_was_interrupted(monkeypatch):
    """Streams may still write to it."""
    device, made = SimulatedDevice(LAZY), scene("zstd, straight into the result")
    array, expected = made.array, made.expected
    reads, out = CudaReads(device), device.empty(expected.shape, expected.dtype, device.consumer_stream())
    output = weakref.ref(out)
    with limits():
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            for wait in ("wait_for", "wait_until_idle"):
                patch.setattr(Workspace, wait, lambda *_: fail(KeyboardInterrupt))
            read(stored_array(array), ..., reads.decoder, out)
        del out
        gc.collect()
        assert output() is not None

        assert np.array_equal(reads.values(array), expected)
    gc.collect()
    assert output() is None
    device.check()


def test_long_tables_are_given_back_when_their_read_ends():
    device = SimulatedDevice(LAZY)
    pool = DeviceResources(device, ResourceOptions())

    def read(workspace):
        for ring in (workspace.tables, workspace.receipts):
            ring.borrow(KIB)
            ring.borrow(40 * MIB)

    pool.run_read(read)

    assert device.pinned_nbytes == 2 * 256 * KIB < device.peak_pinned_nbytes


def test_an_interrupted_closing_leaves_the_others_to_be_settled(monkeypatch):
    pool = DeviceResources(SimulatedDevice(LAZY), ResourceOptions())
    settled = []
    workspaces = list(lent_at_once(pool, 3))
    settle = Workspace.wait_until_idle
    monkeypatch.setattr(Workspace, "wait_until_idle", lambda space: (settled.append(space), settle(space)))
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "free_all", lambda *_: fail(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pool.close()
    pool.close()

    assert set(settled) == set(workspaces)


@pytest.mark.parametrize("end", [configure, CudaDecoder.close])
def test_there_is_one_pool_at_a_time(end):
    """What is read after options have changed, or all was closed, waits until the reads before have ended."""
    decoder = CudaReads(SimulatedDevice(LAZY)).decoder
    pool_now = decoder._current_resources
    under_way, may_end, order = threading.Event(), threading.Event(), []

    def read(workspace):
        under_way.set()
        assert may_end.wait(20)
        inner = pool_now().run_read(lambda inner: inner)
        order.append("before")
        return workspace is inner

    with limits(), ThreadPoolExecutor(3) as threads:
        pool = pool_now()
        before = threads.submit(pool.run_read, read)
        under_way.wait(20)
        if end is configure:
            configure(n_slots=3)
        else:
            threads.submit(decoder.close)
            assert eventually(lambda: pool.reads_lock._exclusive_thread is not None, expected=True)
        after = threads.submit(lambda: pool_now().run_read(lambda _: order.append("after")))
        with suppress(TimeoutError):
            after.result(0.1)
        may_end.set()
        assert before.result(20)
        after.result(20)

    assert order == ["before", "after"]


def test_the_test_of_turns_can_fail():
    pool = DeviceResources(SimulatedDevice(LAZY), ResourceOptions(n_reads=N_THREADS))

    assert len(set(lent_at_once(pool, 9))) == 9
