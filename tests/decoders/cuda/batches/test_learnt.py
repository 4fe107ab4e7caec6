"""What calls that decode show of a device, on models of both kinds of hardware."""

from heapq import heapify, heapreplace
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.data.corpus import write
from helpers.simulated.reads import LAZY, CudaReads, NotingDevice, limits
from hypothesis import example, given
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr.cuda.joint_calls import Timed
from xarray_gpuzarr.decoders.cost.model import Calibration
from xarray_gpuzarr.decoders.cuda.batches import learnt as learnt_module
from xarray_gpuzarr.decoders.cuda.batches.learnt import Learnt, Lesson, learnt_of
from xarray_gpuzarr.decoders.cuda.batches.sizes import N_AT_ONCE, SHORTEST, BatchLimits
from xarray_gpuzarr.process.device_options import ResourceOptions

LONG = 30.0
"""Of one chunk."""


def in_turn(sizes, slots, apart):
    """Return calls that are there one after another and are decoded one after another."""
    calls, free = [], 0.0
    for number, n in enumerate(sizes):
        free = max(free, number * apart) + -(-n // slots) * LONG
        calls.append(Timed(n=n, begin_s=number * apart, end_s=free))
    return calls


def together(sizes, slots, apart):
    """Return calls that are there one after another and share the slots."""
    calls, free = [], [0.0] * slots
    heapify(free)
    for number, n in enumerate(sizes):
        ends = []
        for _ in range(n):
            ends.append(max(free[0], number * apart) + LONG)
            heapreplace(free, ends[-1])
        calls.append(Timed(n=n, begin_s=number * apart, end_s=max(ends)))
    return calls


def read(learnt, hardware, slots, n_chunks, apart=0.1, chunk_nbytes=1 << 20):
    """Let a read of so many chunks teach something; return the sizes of its batches."""
    of = BatchLimits.of(
        "/t",
        chunk_nbytes=chunk_nbytes,
        needed_nbytes=5 * chunk_nbytes,
        budget_nbytes=1 << 40,
        options=ResourceOptions(),
        wave=learnt.wave,
    )
    sizes, batches = [], of.for_read(n_chunks, learnt, is_watched=True).sizes(n_chunks)
    while sum(sizes) < n_chunks:
        sizes.append(min(next(batches), n_chunks - sum(sizes)))
    learnt.learn(hardware(sizes, slots, apart))
    return sizes


@pytest.mark.parametrize("hardware", [in_turn, together])
@given(slots=st.integers(2 * SHORTEST, 3000), n_chunks=st.integers(4 * N_AT_ONCE, 12 * N_AT_ONCE))
def test_a_long_read_shows_whether_calls_overlap(hardware, slots, n_chunks):
    learnt = Learnt()

    read(learnt, hardware, slots, n_chunks)

    assert learnt.overlaps == (hardware is together)


@given(
    n_chunks=st.integers(6 * N_AT_ONCE, 12 * N_AT_ONCE),
    slots=st.integers(1, 8).map(lambda n: 132 * n),
    chunk_nbytes=st.sampled_from([1 << 14, 64_000, 1 << 20]),
)
@example(n_chunks=4880, slots=1056, chunk_nbytes=64_000)  # all usual batches are of three waves as assumed
@example(n_chunks=4880, slots=1056, chunk_nbytes=1 << 20)
def test_reads_learn_how_many_chunks_are_decoded_at_once_in_turn(n_chunks, slots, chunk_nbytes):
    learnt = Learnt()
    for _ in range(3):
        sizes = read(learnt, in_turn, slots, n_chunks, chunk_nbytes=chunk_nbytes)

    n_waves = sum(-(-size // slots) for size in sizes)
    assert learnt.wave == (1056 if slots >= 1056 else 528)
    assert (528 % slots and slots != 1056) or n_waves == -(-n_chunks // slots)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=5), st.integers(1, 3000))
def test_reads_shorter_than_a_wave_are_one_call_in_turn(lengths, slots):
    learnt = Learnt()
    for n_chunks in lengths:
        sizes = read(learnt, in_turn, slots, n_chunks)

        assert n_chunks > learnt.wave or sizes == [n_chunks]


def test_calls_that_show_nothing_are_taken_to_run_in_turn_in_the_end():
    learnt = Learnt()

    shown = []
    for _ in range(3):
        read(learnt, together, 528, 3200, apart=LONG)
        shown.append(learnt.overlaps)

    assert shown == [None, None, False]


def teach(lesson, device, n_chunks, n_streams):
    """Let a call teach something."""
    stream = device.stream()
    begun, done = lesson.begin(stream), lesson.event()
    device.record(done, stream)
    device.synchronize_event(done)
    lesson.note(n_chunks, n_streams, begun, done)


@pytest.mark.parametrize(
    ("n_chunks", "busy_s"),
    [(N_AT_ONCE, [30, 30, -5, 10]), (N_AT_ONCE // 4, [30, 60, 25, 10])],
    ids=["which fill it", "which do not"],
)
def test_calls_of_several_reads_keep_the_device_busy_together(monkeypatch, n_chunks, busy_s):
    noted, at = [], {}
    device, taken = NotingDevice(LAZY), SimpleNamespace(by_device=lambda seconds, *_: noted.append(seconds))
    monkeypatch.setattr(device, "elapsed_s", lambda a, b: at.get(b, 0) - at.get(a, 0))
    reads = [Lesson(device, None, n_reading=lambda: 2, taken=taken) for _ in range(2)]

    for read, begin, end in ((0, 0, 30), (1, 0, 60), (0, 10, 55), (1, 70, 80)):
        begun, done = device.event(timed=True), device.event(timed=True)
        at[begun], at[done] = begin, end
        reads[read].begin(device.stream())
        reads[read].note(n_chunks, n_chunks, begun, done)

    assert noted == busy_s


def test_times_are_as_fine_after_a_day(monkeypatch):
    """CUDA gives float32."""
    noted, at = [], {}
    device, taken = NotingDevice(LAZY), SimpleNamespace(by_device=lambda seconds, *_: noted.append(seconds))
    monkeypatch.setattr(device, "elapsed_s", lambda a, b: float(np.float32(1e3 * (at.get(b, 0) - at.get(a, 0)))) / 1e3)
    lesson = Lesson(device, None, n_reading=lambda: 1, taken=taken)

    for begin, end in ((0, 0.03), (86_399.0, 86_399.0304)):
        begun, done = device.event(timed=True), device.event(timed=True)
        at[begun], at[done] = begin, end
        lesson.begin(device.stream())
        lesson.note(N_AT_ONCE, N_AT_ONCE, begun, done)

    np.testing.assert_allclose(noted, [0.03, 0.0304], rtol=1e-5)


def test_chunks_of_several_streams_show_nothing():
    device = NotingDevice(LAZY)
    lesson = Lesson(device, None, n_reading=lambda: 1)
    for n in (SHORTEST, SHORTEST, N_AT_ONCE, 2 * N_AT_ONCE):
        teach(lesson, device, n, 9 * n)
    lesson.end()

    learnt = learnt_of(device)
    assert (learnt.overlaps, learnt.wave, learnt.is_wave_full) == (None, N_AT_ONCE, False)


@pytest.mark.parametrize(("wave", "overlaps", "is_on"), [(1056, False, False), (1056, None, True), (None, True, True)])
def test_what_a_calibration_knows_is_not_asked_again(monkeypatch, wave, overlaps, is_on):
    device = NotingDevice(LAZY)
    measured = Calibration(gpu="g", date="d", upload_seconds=1, upload_rate=1, codecs={}, wave=wave, overlaps=overlaps)
    monkeypatch.setattr(learnt_module, "calibration_in_force", lambda _identify: measured)

    lesson = Lesson(device, None, n_reading=lambda: 1)

    assert (lesson.learnt.wave, lesson.learnt.overlaps) == (wave or N_AT_ONCE, overlaps)
    assert lesson.is_on == is_on


def test_only_reads_that_are_alone_are_watched():
    device = NotingDevice(LAZY)

    assert Lesson(device, None, n_reading=lambda: 1).is_on
    assert not Lesson(device, None, n_reading=lambda: 2).is_on
    assert not Lesson(device, 7, n_reading=lambda: 1).is_on


def test_a_read_that_does_not_stay_alone_teaches_nothing():
    device, answers = NotingDevice(LAZY), iter([True, True, False])
    lesson = Lesson(device, None, n_reading=lambda: 1 if next(answers) else 2)
    for _ in range(2):
        teach(lesson, device, SHORTEST, SHORTEST)
    lesson.end()

    assert learnt_of(device).overlaps is None


def test_reads_learn_from_the_times_of_the_device(monkeypatch):
    data = np.arange(4 * N_AT_ONCE, dtype="i2")
    array = write(MemoryStore(), data, chunks=(1,), shards=data.shape, compressors=ZstdCodec(), filters=None)
    device = NotingDevice(LAZY)
    times = cycle([0.0, 1.0])
    monkeypatch.setattr(device, "elapsed_s", lambda _first, _last: next(times))

    with limits(batch_chunks=None, batch_nbytes=1, slot_nbytes=1 << 20):
        np.testing.assert_array_equal(CudaReads(device).values(array), data)

    device.check()
    assert learnt_of(device).overlaps is True
