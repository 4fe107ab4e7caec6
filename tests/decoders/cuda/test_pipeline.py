"""The order of a read's work on the device, and how many calls it takes."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import zstandard
from helpers.data.corpus import counting, write
from helpers.data.damage import assert_explains
from helpers.simulated.reads import (
    KIB,
    LAZY,
    ON_HOST,
    SCENES,
    SEEDS,
    CudaReads,
    NotingDevice,
    decoded_again,
    limits,
    scene,
)
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import AskedStore, put, take
from helpers.stores.shards import with_chunk
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr import GpuZarrError, StoreReadError
from xarray_gpuzarr.decoders.cuda.decoding.receipt import Receipt
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager


def assert_reads(device, name, selection=...):
    """Read a scene; nothing is left behind."""
    expected = scene(name).expected[selection]
    np.testing.assert_array_equal(CudaReads(device).values(scene(name).array, selection), expected)
    device.check()


@given(
    name=st.sampled_from(SCENES),
    seed=st.integers(0, 2**32),
    selection=st.sampled_from([..., slice(3, None, 7), slice(40, 5, -3), slice(5, 5)]),
    n_slots=st.integers(2, 5),
    slot_nbytes=st.integers(64 * KIB, 256 * KIB),
    batch_nbytes=st.integers(1, 512 * KIB),
)
def test_values_do_not_depend_on_the_order_of_work_or_on_sizes(name, seed, selection, **options):
    with limits(**options):
        assert_reads(SimulatedDevice(seed), name, selection)


@pytest.mark.parametrize("name", SCENES)
def test_scenes_take_several_batches_and_segments(name):
    uploads = Counter(n.site for n in noted(name).notes if n.call == "upload")

    assert uploads["BatchTable.upload"] == 4
    assert uploads["Upload.send"] >= 7
    assert uploads["upload_pageable"] == (name.startswith("gzip"))


def noted(name, **options):
    """Read a scene as late as possible; return the device, which has noted its calls."""
    device = NotingDevice(LAZY)
    with limits(**options):
        assert_reads(device, name)
    return device


def needed(notes):
    """Return the calls that keep order: what waits, and the record that each of those goes by.

    A synchronisation that does not block on the lazy device is not needed: that device does nothing but what earlier
    waits have asked for, so the event has been reached on every other device too.
    """
    recorded = {}
    for note in notes:
        if note.call == "record":
            recorded[note.event] = note
        elif note.call == "wait" or note.blocks:
            yield note
            yield recorded.get(note.event, note)


def goes_wrong(assert_reads, ignored):
    """Say whether a read without one call goes wrong under some seed."""
    for seed in dict.fromkeys((*(SEEDS[n] for n in (0, 6, 4)), *SEEDS)):  # these see most
        try:
            assert_reads(SimulatedDevice(seed, mutations={ignored}))
        except (AssertionError, GpuZarrError):
            return True
    return False


@pytest.mark.parametrize("name", [*SCENES, ON_HOST])
def test_every_wait_and_the_record_that_it_goes_by_is_needed(name):
    calls = {f"{n.call}:{n.number}": n.site for n in needed(noted(name, n_batches=4).notes)}
    with limits(n_batches=4):  # on a stream each: who waits for the last batch of a stream, has waited for all of it
        assert_right = partial(assert_reads, name=name)
        green = {call: site for call, site in calls.items() if not goes_wrong(assert_right, call)}

    assert len(calls) >= 9
    assert green == {}


@pytest.mark.parametrize("name", SCENES)
def test_host_waits_for_staging_slots_and_for_the_oldest_batch_alone(name):
    blocking = {n.site for n in noted(name).notes if n.blocks}

    assert blocking <= {"Upload.__init__", "upload_pageable", "Read._retire"}


@pytest.mark.parametrize("name", SCENES)
def test_tables_cross_before_the_next_slot(name, monkeypatch):
    """On a stream of their own they would stand behind it: there is one engine for copies up."""
    device, streams = SimulatedDevice(LAZY), set()
    upload = device.upload

    def noting(to, data, stream):
        streams.add(stream.handle)
        upload(to, data, stream)

    monkeypatch.setattr(device, "upload", noting)
    with limits():
        assert_reads(device, name)

    assert len(streams) == 1


@pytest.mark.parametrize("n_batches", [1, 2, 3])
def test_batches_are_under_way_before_the_host_waits_for_the_first(n_batches):
    notes = noted("zstd, scattered", n_slots=16, n_batches=n_batches).notes
    first = next(i for i, n in enumerate(notes) if n.blocks)

    assert notes[first].site == "Read._retire"
    assert [n.call for n in notes[:first]].count("nvcomp") == n_batches + 1


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_result_is_ready_for_any_stream(seed):
    device = SimulatedDevice(seed)
    reads, mine, other = CudaReads(device), device.stream(), device.stream()

    with limits(), mine:
        result = reads.read(scene("zlib, moved first").array)
    with other:
        np.testing.assert_array_equal(result.get(), scene("zlib, moved first").expected)
    del result
    device.check()


SHAPES = {"scattered": lambda n: ((n, 64), (2, 32)), "straight into the result": lambda n: ((n * 32,), (32,))}


def calls_of_second_read(place, n_chunks, compressor):
    """Return how often each member is called by a read of one shard, once another one has warmed everything up."""
    shape, chunks = SHAPES[place](n_chunks)
    data = counting(shape)
    array = write(MemoryStore(), data, chunks=chunks, shards=shape, compressors=compressor, filters=None)
    device = NotingDevice(LAZY)
    reads = CudaReads(device)
    with limits(slot_nbytes=1024 * KIB, batch_chunks=1000):
        reads.read(array)
        before, n_notes = Counter(device.calls), len(device.notes)
        np.testing.assert_array_equal(reads.values(array), data)
    device.check()
    blocks = sum(n.blocks for n in device.notes[n_notes:])
    return Counter(device.calls) - before + Counter({"blocks": blocks})


@pytest.mark.parametrize("n_chunks", [10, 30])
@pytest.mark.parametrize(
    ("place", "compressor", "expected"),
    [
        ("scattered", ZstdCodec(), {"upload": 3, "nvcomp": 1, "launch": 2, "download": 1, "allocate": 4}),
        (
            "straight into the result",
            ZstdCodec(),
            {"upload": 3, "nvcomp": 1, "launch": 1, "download": 1, "allocate": 4},
        ),
        ("scattered", None, {"upload": 3, "nvcomp": 0, "launch": 1, "download": 0, "allocate": 4}),
    ],
)
def test_calls_of_one_task(place, compressor, expected, n_chunks):
    calls = calls_of_second_read(place, n_chunks, compressor)

    assert {name: calls[name] for name in expected} == expected
    assert (calls["blocks"], calls["synchronize"], calls["wait"]) == (1, 0, 2)
    assert (calls["array_in"], calls["stream"], calls["allocate_pinned"]) == (1, 0, 0)


def test_calls_of_a_task_of_many_chunks_grow_with_its_batches():
    calls = calls_of_second_read("scattered", 2200, ZstdCodec())

    assert {name: calls[name] for name in ("upload", "nvcomp", "launch", "download")} == {
        "upload": 1 + 2 * 3,
        "nvcomp": 3,
        "launch": 2 * 3,
        "download": 3,
    }
    assert calls["allocate_pinned"] == 0


@pytest.mark.parametrize("n_rows", [1, 2])
def test_long_gzip_chunks_are_moved_to_where_looking_ahead_reads_them(n_rows):
    data = np.frombuffer(np.random.default_rng(2).bytes(8 << 17), "i2").reshape(8, -1)
    array = write(MemoryStore(), data, chunks=(n_rows, 1 << 16), shards=data.shape, compressors=GzipCodec())
    device = SimulatedDevice(SEEDS[1])

    np.testing.assert_array_equal(CudaReads(device).values(array), data)
    device.check()


def refused(n_doubtful):
    """Return an array, some of whose frames are followed by an empty one, and what it holds."""
    right = counting((8, 4096))
    array = write(AskedStore(), right, name="t", chunks=(2, 1024), shards=(4, 4096), compressors=ZstdCodec())
    empty = zstandard.compress(b"")
    for row in range(n_doubtful):
        first, key = 2 + row % 2 * 4, f"t/c/{row % 2}/0"  # of either shard
        frame = zstandard.compress(right[first : first + 2, row * 1024 : (row + 1) * 1024].tobytes())
        put(array.store, key, with_chunk(take(array.store, key), 8, 4 + row, frame + empty))
    return array, right


@pytest.mark.parametrize("n_doubtful", [1, 4])
@pytest.mark.parametrize("selection", [..., (slice(1, 7, 2), slice(3, 3000, 7))])
def test_chunks_that_the_device_cannot_decode_are_decoded_by_the_host(n_doubtful, selection):
    array, right = refused(n_doubtful)
    for seed in SEEDS[:8]:
        device = SimulatedDevice(seed)
        with limits(batch_nbytes=32 * KIB), decoded_again() as numbers:
            values = CudaReads(device, may_decode_again=True).values(array, selection)
        np.testing.assert_array_equal(values, right[selection])
        assert len(numbers) == n_doubtful if selection is ... else 0 < len(numbers) <= n_doubtful
        device.check()


@pytest.mark.parametrize(("unusual", "n_again"), [(0, 0), (2, 1)], ids=["first", "another"])
def test_zstd_frame_of_another_writer(unusual, n_again):
    """The host looks at the first frame of a slot; only where that is usual is it left to the device to find others."""
    right = counting((2, 4096))
    array = write(MemoryStore(), right, name="t", chunks=(2, 1024), compressors=ZstdCodec())
    chunk = right[:, 1024 * unusual : 1024 * (unusual + 1)].tobytes()
    put(array.store, f"t/c/0/{unusual}", zstandard.ZstdCompressor(write_checksum=True).compress(chunk))
    device = SimulatedDevice(LAZY)

    with limits(), decoded_again() as numbers:
        values = CudaReads(device, may_decode_again=True).values(array)

    np.testing.assert_array_equal(values, right)
    assert len(numbers) == n_again
    device.check()


def test_every_wait_of_the_second_decoding_and_the_record_that_it_goes_by_is_needed(monkeypatch):
    array, right = refused(4)
    device = NotingDevice(LAZY)
    stage_decoded, starts = Stager.stage_decoded, []

    def noting(*arguments):
        starts.append(len(device.notes))
        return stage_decoded(*arguments)

    def assert_right(device):
        np.testing.assert_array_equal(CudaReads(device, may_decode_again=True).values(array), right)
        device.check()

    monkeypatch.setattr(Stager, "stage_decoded", noting)
    with limits():
        assert_right(device)
        calls = [f"{n.call}:{n.number}" for n in needed(device.notes[starts[0] :])]
        green = [call for call in calls if not goes_wrong(assert_right, call)]

    assert len(calls) >= 4
    assert green == []


def refused_object():
    """Return an unsharded array, one of whose frames is followed by an empty one."""
    right = counting((8, 4096))
    array = write(AskedStore(), right, name="t", chunks=(2, 1024), compressors=ZstdCodec())
    put(array.store, "t/c/1/2", zstandard.compress(right[2:4, 2048:3072].tobytes()) + zstandard.compress(b""))
    return array


@pytest.mark.parametrize(
    ("array", "key", "words"),
    [
        (refused(1)[0], "t/c/0/0", ("shard 't/c/0/0' of array '/t' has disappeared", "after its index had been read")),
        (refused_object(), "t/c/1/2", ("object 't/c/1/2' of array '/t' has disappeared", "once more", "chunk (1, 2)")),
    ],
    ids=["shard", "object"],
)
def test_chunk_that_vanishes_before_it_is_decoded_again_is_named(array, key, words, monkeypatch):
    failed_chunks = Receipt.failed_chunks

    def vanish(self):
        array.store._store_dict.pop(key, None)
        return failed_chunks(self)

    monkeypatch.setattr(Receipt, "failed_chunks", vanish)
    device = SimulatedDevice(LAZY)
    with limits(), pytest.raises(StoreReadError, match="has disappeared") as caught:
        CudaReads(device, may_decode_again=True).read(array)
    device.check()
    assert_explains(caught.value, *words)
