"""The simulated device keeps its promises: freedom of order within what the events allow, poison, limits, counts."""

import gc
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from helpers.simulated.memory import POISON
from helpers.simulated.programs import BYTE, NEEDED, Log, N, memory_at, note, order, pipeline, recorded, simulated
from helpers.simulated.simulator import SimulatedDevice
from helpers.simulated.streams import MODES, Point
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.errors import DeviceMemoryError

pytestmark = pytest.mark.timeout(120)

SEEDS = range(40)
LAZY, EAGER = MODES.index("lazy"), MODES.index("eager")
WALL = {name: member for name, member in vars(DeviceApi).items() if not name.startswith("_")}


def notes(seed, enqueue):
    """Return the order in which the notes are taken that `enqueue(device, s, t)` asks for."""
    log = Log()
    device = simulated(seed, run_kernel=log)
    enqueue(device, device.stream(), device.stream())
    device.check()
    return tuple(log.seen)


@pytest.mark.parametrize("name", WALL)
def test_members_are_those_of_the_wall(name):
    assert hasattr(simulated(), name)
    if inspect.isfunction(WALL[name]):
        ours, theirs = inspect.signature(getattr(SimulatedDevice, name)), inspect.signature(WALL[name])
        assert list(ours.parameters) == list(theirs.parameters)


def test_streams_that_nothing_orders_run_in_any_order():
    def enqueue(device, s, t):
        for number, stream in ((1, s), (10, t), (2, s), (20, t)):
            note(device, number, stream)

    a, b = (1, 2), (10, 20)
    assert {notes(seed, enqueue) for seed in range(100)} == {
        *((*a, *b), (1, 10, 2, 20), (1, 10, 20, 2)),
        *((*b, *a), (10, 1, 20, 2), (10, 1, 2, 20)),
    }


def test_the_legacy_stream_is_not_ordered_with_others():
    def enqueue(device, s, t):
        note(device, 1, s)
        note(device, 2, device.consumer_stream())

    assert {notes(seed, enqueue) for seed in SEEDS} == {(1, 2), (2, 1)}


def test_lazy_runs_what_is_waited_for_and_eager_runs_at_once():
    seen = {}
    for seed in (LAZY, EAGER):
        log = Log()
        device = simulated(seed, run_kernel=log)
        s, t, u = device.stream(), device.stream(), device.stream()
        for number, stream in ((1, s), (2, t), (3, u)):
            note(device, number, stream)
        order(device, s, t)
        before = tuple(log.seen)
        device.synchronize(s)
        seen[seed] = (before, tuple(log.seen))
    assert seen == {LAZY: ((), (1, 2)), EAGER: ((1, 2, 3), (1, 2, 3))}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wait_is_for_the_event_as_it_was_recorded_last(seed):
    def enqueue(device, s, t):
        event = device.event()
        device.wait(t, event)  # never recorded: complete
        note(device, 1, s)
        device.record(event, s)
        device.wait(t, event)
        note(device, 2, t)
        device.wait(s, recorded(device, t))
        note(device, 3, s)
        device.record(event, s)  # if this moved the wait above, it would be a deadlock

    assert notes(seed, enqueue) == (1, 2, 3)


@pytest.mark.parametrize("seed", range(4))
def test_a_deadlock_is_an_error(seed):
    device = simulated(seed)
    stream, event = device.stream(), device.event()
    event.point = Point(stream, 99)
    with pytest.raises(AssertionError, match="deadlock; stream 0x"):
        [device.wait(stream, event), device.synchronize(stream)]


def test_memory_is_poison_when_it_is_new_and_when_it_is_used_again():
    device = simulated(LAZY)
    stream = device.stream()
    pinned = device.allocate_pinned(N)
    assert (pinned.array == POISON).all()
    pinned.array[:] = 1
    for _ in range(2):
        memory = device.allocate(N, stream)
        device.synchronize(stream)
        assert (memory_at(memory.address) == POISON).all()
        device.upload(memory.address, pinned.array, stream)
        memory.free()
    device.check()


def test_memory_ends():
    device = SimulatedDevice(LAZY, 10_000, pinned_nbytes=N, fail_allocations=lambda nbytes: nbytes == 13)
    stream = device.stream()
    for allocate in (partial(device.allocate, 10_001), partial(device.empty, (5001,), np.dtype("i2"))):
        with pytest.raises(DeviceMemoryError, match="not enough device memory"):
            allocate(stream)
    with pytest.raises(DeviceMemoryError, match="13 bytes"):
        device.allocate(13, stream)
    pinned = device.allocate_pinned(N)
    with pytest.raises(DeviceMemoryError, match="not enough pinned host memory"):
        device.allocate_pinned(1)
    del pinned
    device.allocate_pinned(N)
    assert device.peak_pinned_nbytes == N


def test_devices_are_activated_by_thread():
    device = simulated(index=1)
    with pytest.raises(AssertionError, match="the current device is 0, not 1"):
        device.stream()
    with device.activate(), ThreadPoolExecutor(1) as pool:
        device.stream()
        assert isinstance(pool.submit(device.stream).exception(), AssertionError)
    with pytest.raises(AssertionError):
        device.stream()


def run_pipeline(seed, **keywords):
    device = simulated(seed, **keywords)
    out, expected = pipeline(device)
    np.testing.assert_array_equal(out.get(), expected)
    del out
    device.check()
    return device


@given(st.integers(0, 2**32))
def test_a_right_pipeline_passes(seed):
    device = run_pipeline(seed)
    assert (device.nbytes_uploaded, device.nbytes_downloaded) == (7 * N, 0)
    assert (device.n_synchronizations, device.calls["launch"]) == (9, 14)
    assert device.peak_nbytes == 10 * N
    assert device.memory_nbytes()[0] == 1 << 20


@pytest.mark.parametrize("ignored", NEEDED)
def test_a_pipeline_that_lacks_one_wait_turns_red(ignored):
    with pytest.raises(AssertionError):
        [run_pipeline(seed, mutations={ignored}) for seed in range(100)]


def test_unknown_mutations_are_refused():
    with pytest.raises(AssertionError, match="unknown"):
        simulated(mutations={"waits:1"})


# ---- arrays


def filled(device):
    """Return an array of 0..11 in the shape (3, 4), filled in the order of the consumer's stream."""
    array = device.empty((3, 4), np.dtype("i4"), device.consumer_stream())
    array[...] = device.place(np.arange(12, dtype="i4").reshape(3, 4))
    return array


@pytest.mark.parametrize(
    "wrong", [np.asarray, np.arange(4).__add__, lambda a: a + np.arange(4), lambda a: a.__setitem__(0, np.arange(4))]
)
def test_an_array_refuses_numpy(wrong):
    with pytest.raises(TypeError):
        wrong(filled(simulated()))


def test_views_are_of_the_same_memory_and_keep_it():
    device = simulated()
    array = filled(device)
    view = array[1:].reshape(8)
    assert device.address(view) == device.address(array) + 16
    array += 1
    array[1, 0] = 99
    del array
    gc.collect()
    assert view.get().tolist() == [99, 6, 7, 8, 9, 10, 11, 12]
    del view
    device.check()
    assert device.memory_nbytes()[0] == 1 << 20


def test_get_waits_for_the_stream_that_its_thread_consumes_on():
    device = simulated()
    mine = device.stream()
    array = device.empty((N,), BYTE, mine)
    pinned = device.allocate_pinned(N)
    pinned.array[:] = 3
    device.upload(device.address(array), pinned.array, mine)
    with mine:
        assert device.consumer_stream() is mine
        assert (array.get() == 3).all()
    assert device.consumer_stream().handle == 0
