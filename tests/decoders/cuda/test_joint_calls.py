"""Calls that reads share: whose streams they decode and when, and what interrupted or failed reads leave of them."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import numpy as np
import pytest
from helpers.data.corpus import V3_CODECS, counting, write
from helpers.data.damage import assert_explains
from helpers.every_pair import usually
from helpers.simulated.reads import KIB, LAZY, SCENES, SEEDS, CudaReads, NotingDevice, joint, limits, scene, shared
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import put, take
from helpers.stores.shards import with_chunk
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError, DeviceMemoryError, GpuZarrError
from xarray_gpuzarr.cuda import joint_calls
from xarray_gpuzarr.cuda.joint_calls import N_ASKING, JointCalls, Part
from xarray_gpuzarr.cuda.shared_lock import SharedLock
from xarray_gpuzarr.decoders.cuda.batches.learnt import Learnt, Lesson, learnt_of

pytestmark = pytest.mark.timeout(120)

JOINED = [name for name in SCENES if name != "raw" and not name.startswith("filters of raw")]
"""Scenes of which nvCOMP decodes something."""
STRAIGHT = {"zstd, straight into the result", "gzip, straight into the result", "lz4"}
"""Of these, nothing but the host waits for calls: they write to the result."""
MIB = KIB * KIB
HALF = slice(0, 24)


def assert_reads(reads, name, selection=...):
    expected = scene(name).expected[selection]
    np.testing.assert_array_equal(reads.values(scene(name).array, selection), expected)


def assert_nothing_is_left(reads):
    reads.device.check()
    gc.collect()  # the traceback of an error may be the last to know a result
    free, total = reads.device.memory_nbytes()
    for pool in reads.decoder._resources.values():
        assert total - free <= len(pool._workspaces) * 2 * 64 * KIB
    assert_calls_keep_nothing(reads)
    reads.decoder.close()
    free, total = reads.device.memory_nbytes()
    assert free == total


def assert_calls_keep_nothing(reads):
    for pool in reads.decoder._resources.values():
        calls = pool.calls
        memory = [calls._memory._lent, calls._memory._idle] if calls._streams else []
        assert not any([calls._queue, calls._under_way, calls.staging, calls.apart, *memory])


def at_once(work, n_threads):
    """Return what each thread's work gives, all of which begin together."""
    start = threading.Barrier(n_threads, timeout=60)
    with ThreadPoolExecutor(n_threads) as threads:
        return list(threads.map(lambda number: (start.wait(), work(number))[1], range(n_threads)))


# Values.


@given(
    name=st.sampled_from(SCENES),
    seed=st.integers(0, 2**32),
    selection=st.sampled_from([..., slice(3, None, 7), slice(40, 5, -3), slice(5, 5)]),
    wave=st.integers(1, 60),
    batch_chunks=st.sampled_from([1, 5, 100]),
    part=st.sampled_from([0, 0.3, 0.8]),
)
def test_values_do_not_depend_on_calls(name, seed, selection, wave, batch_chunks, part):
    reads = CudaReads(SimulatedDevice(seed))

    with limits(batch_chunks=batch_chunks, batch_nbytes=MIB), joint(wave), shared(part):
        assert_reads(reads, name, selection)

    assert_nothing_is_left(reads)


@pytest.mark.every_value
@pytest.mark.parametrize("wave", [1, 7, 64, 1000])
@pytest.mark.parametrize("seed", SEEDS[: usually(2, full=6)])
def test_threads_share_calls(seed, wave):
    device = NotingDevice(seed)
    reads = CudaReads(device)

    def work(number):
        for turn in range(usually(2, full=3)):
            assert_reads(reads, JOINED[(number + turn) % len(JOINED)])

    with limits(batch_chunks=10, batch_nbytes=MIB), joint(wave):
        at_once(work, 6)

    assert_nothing_is_left(reads)
    pool = reads.decoder._resources
    assert not pool


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_what_is_learnt_on_the_way_changes_no_value(seed):
    device = SimulatedDevice(seed)
    reads = CudaReads(device)
    data = counting((600, 40), "i2")
    array = write(MemoryStore(), data, chunks=(2, 40), shards=(600, 40), **V3_CODECS["zstd"])

    def work(_):
        for _ in range(3):
            np.testing.assert_array_equal(reads.values(array), data)

    with limits(batch_chunks=None, batch_nbytes=MIB):
        at_once(work, 4)

    assert_nothing_is_left(reads)


@pytest.mark.parametrize("name", [name for name in JOINED if name not in STRAIGHT])
def test_every_wait_and_the_record_that_it_goes_by_is_needed(name):
    def read(device):
        with limits(batch_chunks=5, batch_nbytes=MIB), joint(12):
            assert_reads(CudaReads(device), name)
        device.check()

    def turns_red(call):
        for seed in SEEDS:
            try:
                read(SimulatedDevice(seed, mutations={call}))
            except (AssertionError, GpuZarrError):
                return True
        return False

    device = NotingDevice(LAZY)
    read(device)
    calls = dict(_of_joint_calls(device.notes))
    green = {call: site for call, site in calls.items() if not turns_red(call)}

    assert len(calls) >= 4
    assert green == {}


def _of_joint_calls(notes):
    """Yield the waits of joint calls and for them, and the records that these go by."""
    recorded = {}
    for note in notes:
        if note.call == "record":
            recorded[note.event] = note
        elif note.call == "wait" and note.site in {"BatchDecoder._join", "BatchDecoder.finish"}:
            for each in (note, recorded[note.event]):
                yield f"{each.call}:{each.number}", each.site


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize("name", ["zstd, scattered", "filters, scattered", "lz4"])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_what_is_said_of_a_batch_stays_until_it_is_looked_at(monkeypatch, name, seed):
    """The first of many batches waits for streams of others, those behind it do not."""
    joins = iter([known()])
    monkeypatch.setattr(Lesson, "joins", lambda *_: next(joins, None))
    monkeypatch.setattr(Lesson, "expect", lambda _, workspace: workspace.calls.staging.setdefault(workspace))

    with limits(batch_chunks=4, batch_nbytes=32 * KIB):
        assert_reads(CudaReads(SimulatedDevice(seed)), name)


# Damage, interrupts, lack of memory.


def damaged():
    """Return an array of which a chunk is no zstd frame."""
    data, store = counting((48, 4096), "i2"), MemoryStore()
    array = write(store, data, chunks=(4, 1024), shards=(8, 2048), **V3_CODECS["zstd"])
    put(store, "c/2/1", with_chunk(take(store, "c/2/1"), 4, 1, b"no zstd frame"))
    return array


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_a_damaged_chunk_is_the_error_of_the_read_that_wants_it(seed):
    reads, array = CudaReads(SimulatedDevice(seed), may_decode_again=True), damaged()

    def work(number):
        if number % 2:
            assert_reads(reads, "zstd, scattered")
        else:
            with pytest.raises(CorruptChunkError, match=r"chunk \(4, 3\)") as raised:
                reads.read(array)
            assert_explains(raised.value)

    with limits(batch_chunks=20, batch_nbytes=MIB), joint(40):
        at_once(work, 4)
    assert_nothing_is_left(reads)


def short():
    return DeviceMemoryError("a", tried="b", found="c", do="d")


def interrupted_at(at, seed, error=KeyboardInterrupt, **keywords):
    """Return a device whose call number `at` is interrupted, once."""
    left = [at]

    def interrupt(note):
        if left and len(device.notes) > left[0] and note.call != "nvcomp":  # nothing gets through a C frame
            left.clear()
            raise error()

    device = NotingDevice(seed, on_call=interrupt, **keywords)
    return device


def read_interrupted(seed, at, error=KeyboardInterrupt, **keywords):
    """Interrupt a read before its call number `at`; nothing is left behind, and the next one is right."""
    reads = CudaReads(interrupted_at(at, seed, error, **keywords))
    with limits(batch_chunks=5, batch_nbytes=MIB), joint(12):
        with suppress(KeyboardInterrupt, DeviceMemoryError):
            reads.read(scene("zstd, scattered").array, HALF)
        assert_calls_keep_nothing(reads)
        assert_reads(reads, "zstd, scattered", HALF)
        assert_nothing_is_left(reads)


@pytest.mark.parametrize("error", [KeyboardInterrupt, short])
def test_an_error_of_any_call_leaves_nothing_behind(error):
    device = NotingDevice(LAZY)
    with limits(batch_chunks=5, batch_nbytes=MIB), joint(12):
        assert_reads(CudaReads(device), "zstd, scattered", HALF)

    for at in range(0, len(device.notes), usually(3, full=1)):
        read_interrupted(SEEDS[at % len(SEEDS)], at, error)


@pytest.mark.parametrize("at", range(20, 300, usually(40, full=20)))
def test_who_is_interrupted_leaves_the_streams_of_others_to_them(at):
    reads = CudaReads(interrupted_at(at, SEEDS[at % len(SEEDS)]))
    interrupted = []

    def work(number):
        for _ in range(2):
            try:
                assert_reads(reads, JOINED[number])
            except KeyboardInterrupt:
                interrupted.append(number)

    with limits(batch_chunks=20, batch_nbytes=MIB), joint(50):
        at_once(work, 4)
        assert len(interrupted) == 1
        assert_reads(reads, "gzip")
        assert_nothing_is_left(reads)


@pytest.mark.parametrize("seed", [LAZY, SEEDS[1]])
def test_a_call_that_finds_no_memory_is_made_shorter(seed):
    def calls(failing):
        numbers = count()
        device = NotingDevice(seed, fail_allocations=lambda _: next(numbers) == failing)
        reads = CudaReads(device)
        with limits(batch_chunks=48, batch_nbytes=MIB), joint(1000):
            assert_reads(reads, "zstd, scattered")
            assert_nothing_is_left(reads)
        return device.calls["nvcomp"]

    assert {calls(failing) for failing in range(14)} == {1, 2, 3}


@pytest.mark.parametrize(("n", "is_kept"), [(4000, True), (8000, False)])
def test_tables_of_usual_calls_stay_pinned(n, is_kept):
    data = counting((n,), "i2")
    array = write(MemoryStore(), data, chunks=(1,), shards=data.shape, **V3_CODECS["zstd"])
    device = NotingDevice(LAZY)
    reads, taken = CudaReads(device), []

    with limits(batch_chunks=n, batch_nbytes=MIB, slot_nbytes=MIB), joint(n):
        for _ in range(7):
            np.testing.assert_array_equal(reads.values(array), data)
            taken.append(device.calls["allocate_pinned"])

    assert (taken[-1] == taken[-2]) == is_kept


def test_no_memory_for_streams_of_others_is_their_error(monkeypatch):
    parts = Parts(known())
    part = parts.part(10, 0)
    parts.calls._queue = [part]
    monkeypatch.setattr(parts.calls, "_give", lambda _: (_ for _ in ()).throw(short()))

    parts.calls.look()
    with pytest.raises(DeviceMemoryError):
        parts.calls.give(part)


# When and how many.


class Parts:
    """A queue of streams that nobody stages."""

    def __init__(self, known):
        self.calls = JointCalls(NotingDevice(LAZY))
        self.known = known

    def due(self, *lengths, staging=0):
        """Return how many streams are due of parts of such lengths, of an owner each, while others are being staged."""
        self.calls._queue = [self.part(n, owner) for owner, n in enumerate(lengths)]
        self.calls.staging = dict.fromkeys(range(-staging, 0))
        return self.calls._due()

    def part(self, n, owner):
        columns, ready = [np.zeros(n, np.int64)] * 4, self.calls._api.event()
        return Part(
            owner=owner, format="zstd", kind=None, columns=columns, ready=ready, known=self.known, is_plain=True
        )


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still."""
    clock = [0.0]
    monkeypatch.setattr(joint_calls, "perf_counter", lambda: clock[0])
    return clock


def known(wave=100, *, is_wave_full=True, overlaps=False):
    learnt = Learnt(wave)
    learnt.is_wave_full, learnt.overlaps = is_wave_full, overlaps
    return learnt


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize(
    ("lengths", "staging", "n"),
    [
        ((), 4, 0),
        ((10,), 1, 0),
        ((10, 20), 3, 0),
        ((10, 20), 0, 30),  # nobody else adds any
        ((60,), 1, 60),  # another one of that length would not fit
        ((90, 90), 2, 90),  # nobody waits for two calls where one is nearly full
        ((30, 90), 2, 100),
        ((400,), 1, 100),
        ((90, 90, 90), 3, 100),
    ],
)
def test_what_is_due_of_a_device_at_rest(lengths, staging, n):
    assert Parts(known()).due(*lengths, staging=staging) == n


@pytest.mark.usefixtures("now")
def test_more_than_are_decoded_at_once_show_how_many_these_are():
    parts = Parts(known(is_wave_full=False))

    assert parts.due(90, 90) == 180
    assert parts.due(60, 60, staging=2) == 0
    assert parts.due(60, 60, 90, staging=3) == 200


@pytest.mark.parametrize(("last_s", "patience_s"), [(None, 0.01), (0.1, 0.05), (0.0, 0.01)])
def test_few_streams_wait_for_half_of_what_a_call_takes(now, last_s, patience_s):
    parts = Parts(known())
    parts.calls._last_s = last_s

    found = []
    for now[0] in (0, 0.98 * patience_s, 1.02 * patience_s):
        found.append(parts.due(10, staging=1))

    assert found == [0, 0, 10]


@pytest.mark.usefixtures("now")
def test_nobody_waits_for_a_time_that_is_none():
    parts = Parts(known())
    parts.calls._last_s = float("nan")

    assert parts.due(10, staging=1) == 10


def test_who_has_added_streams_lately_is_expected_again(now):
    parts = Parts(known())
    parts.calls._last_s, parts.calls._added_s = 0.1, {0: 0.0, 1: 0.0}

    found = []
    for now[0], parts.calls._rested_s in ((0.24, 0.239), (0.24, 0.237), (0.26, 0.259)):
        found.append((parts.due(10), parts.due(10, 20)))

    assert found == [(0, 30), (10, 30), (10, 30)]


@pytest.mark.usefixtures("now")
def test_beside_a_call_only_whole_waves_of_a_longer_queue_are_due():
    parts = Parts(known())
    parts.calls._under_way = [None]

    assert parts.due(90, 90) == 0
    assert parts.due(90, 90, 90) == 100
    parts.calls._under_way = [None] * 4
    assert parts.due(90, 90, 90) == 0


@pytest.mark.parametrize(("second_s", "overlaps"), [(2.0, False), (1.1, True)])
def test_two_calls_at_once_show_whether_they_overlap(monkeypatch, second_s, overlaps):
    data = counting((4 * N_ASKING,), "i2")
    array = write(MemoryStore(), data, chunks=(1,), shards=data.shape, **V3_CODECS["zstd"])
    device = NotingDevice(LAZY)
    times = iter([1.0, 1.0, 0.0, 1.0, 0.0, second_s])  # what each takes; when each begins and ends
    monkeypatch.setattr(device, "elapsed_s", lambda *_: next(times, 1.0))
    monkeypatch.setattr(SharedLock, "n_reading", 2)

    with limits(batch_chunks=None, batch_nbytes=1, slot_nbytes=MIB):
        np.testing.assert_array_equal(CudaReads(device).values(array), data)

    assert learnt_of(device).overlaps is overlaps
    assert device.calls["nvcomp"] == 3


@pytest.mark.parametrize(
    ("nbytes", "apart", "teaches"), [((10, 10), (), True), ((10, 20), (), False), ((10, 10), (1,), False)]
)
def test_calls_beside_others_and_of_chunks_of_several_lengths_teach_nothing(nbytes, apart, teaches):
    seen, learnt = [], known(is_wave_full=False)
    learnt.see_waves = seen.append
    parts = Parts(learnt)
    api = parts.calls._api
    memory = api.allocate(256, api.stream())
    for each in nbytes:
        part = parts.part(1, object())
        part.columns = [np.array([n]) for n in (memory.address, 64, memory.address + 128, each)]
        parts.calls._queue.append(part)
    parts.calls._give(2)
    parts.calls.apart = dict.fromkeys(apart)

    parts.calls.withdraw(None)

    assert bool(seen) is teaches
