"""Reads that host and device share: the same values and errors, whatever is shared out, in any order of work."""

from contextlib import contextmanager, suppress
from itertools import cycle
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from helpers.data.corpus import counting, write
from helpers.data.damage import assert_explains
from helpers.data.selections import numpy_outer
from helpers.loops import require_loops
from helpers.simulated.reads import KIB, LAZY, SCENES, SEEDS, CudaReads, NotingDevice, limits, scene, shared
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import AskedStore, put, take
from helpers.stores.shards import with_chunk
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import CorruptChunkError, DeviceMemoryError, StoreReadError
from xarray_gpuzarr.decoders.cost.taken import Taken
from xarray_gpuzarr.decoders.cuda import decoder as cuda
from xarray_gpuzarr.decoders.cuda.staging.host_share import HostShare
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.process import threads
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read import read, read_points, stored_array
from xarray_gpuzarr.stored.cf import Cast

PARTS = (0.02, 0.3, 0.5, 0.98, 1)
MODES = (0, 1, 2, 3)
CODECS = {"zstd": ZstdCodec(), "gzip": GzipCodec(), "lz4": zn.LZ4(), "blosc": BloscCodec(), "raw": None}
CASTS = (
    Cast(dtype="<i2"),
    Cast(dtype="<f4", mask=(7,), scale=0.5, offset=1.0),
    Cast(dtype="<f8", scale=2.0),
)

parts = st.sampled_from([0, *PARTS]) | st.floats(0, 1)
seeds = st.integers(0, 2**32)


@contextmanager
def new_store(*, is_local):
    """Make a store; of local ones, the compiled loops read the host's chunks."""
    with TemporaryDirectory() as folder:
        yield LocalStore(folder) if is_local else MemoryStore()


def written(store, codec, *, sharded, missing):
    """Return an array of 8 x 6 chunks of 512 bytes, some of which do not exist, and what it holds."""
    data = counting((64, 96)).astype("<i2")
    for row, column in missing:
        data[8 * row : 8 * row + 8, 16 * column : 16 * column + 16] = 0
    shards = (32, 48) if sharded else None
    array = write(store, data, chunks=(8, 16), shards=shards, compressors=CODECS[codec], filters=None, fill_value=0)
    return array, data


@given(
    codec=st.sampled_from([*CODECS]),
    is_local=st.booleans(),
    sharded=st.booleans(),
    missing=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=20),
    box=st.tuples(st.slices(64), st.slices(96) | st.lists(st.integers(0, 95), min_size=1, max_size=30)),
    cast=st.sampled_from(CASTS),
    part=parts,
    seed=seeds,
    n_slots=st.integers(2, 4),
    batch_chunks=st.integers(1, 48),
)
def test_boxes_have_the_values_that_the_host_reads(codec, is_local, sharded, missing, box, cast, **given):
    with new_store(is_local=is_local) as store:
        array, data = written(store, codec, sharded=sharded, missing=missing)
        stored, device = stored_array(array, cast), SimulatedDevice(given["seed"])
        expected = read(stored, box, HostDecoder())

        with limits(n_slots=given["n_slots"], batch_chunks=given["batch_chunks"]), shared(given["part"]):
            values = CudaReads(device).values(stored, box)

    np.testing.assert_array_equal(values, expected, strict=True)
    if cast == CASTS[0]:
        np.testing.assert_array_equal(values, numpy_outer(data, box))
    device.check()


@given(
    is_local=st.booleans(),
    sharded=st.booleans(),
    points=st.lists(st.tuples(st.integers(0, 63), st.integers(0, 95)), min_size=1, max_size=60),
    part=parts,
    seed=seeds,
)
def test_points_have_the_values_that_are_stored(is_local, sharded, points, part, seed):
    device, at = SimulatedDevice(seed), tuple(np.array(points).T)

    with new_store(is_local=is_local) as store, limits(), shared(part):
        array, data = written(store, "zstd", sharded=sharded, missing=[(0, 0), (3, 3)])
        result = read_points(stored_array(array), at, CudaReads(device).decoder)
    with device.activate():
        np.testing.assert_array_equal(result.get(), data[at])
    del result
    device.check()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("sharded", [True, False])
def test_local_chunks_are_decoded_by_the_loops_without_python(codec, sharded, monkeypatch):
    require_loops()
    monkeypatch.setattr(HostShare, "_decode", lambda *_: pytest.fail("a chunk was decoded by Python"))
    monkeypatch.setattr(threads, "n_cores", lambda: 4)
    with new_store(is_local=True) as store, limits(), shared(0.5):
        array, data = written(store, codec, sharded=sharded, missing=[(0, 0), (7, 5), (4, 1)])
        np.testing.assert_array_equal(CudaReads(SimulatedDevice(LAZY)).values(array), data)


@pytest.mark.parametrize("encoded", ["i1", "i2", "f8"])
def test_bytes_that_are_stored_as_other_elements(tmp_path, encoded):
    """They take a step each, which chunks that are placed whole have none of."""
    require_loops()
    data = np.arange(64 * 96).reshape(64, 96).astype("u1") % 100
    filters = zn.AsType(encode_dtype=np.dtype(encoded).str, decode_dtype="|u1")
    serializer = BytesCodec(endian="little" if encoded != "i1" else None)
    keywords = {"chunks": (8, 16), "filters": filters, "serializer": serializer, "compressors": ZstdCodec()}
    array = write(LocalStore(tmp_path), data, **keywords)

    with limits(), shared(0.5):
        np.testing.assert_array_equal(CudaReads(SimulatedDevice(LAZY)).values(array), data, strict=True)


@pytest.mark.every_value
@pytest.mark.parametrize("seed", MODES)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", SCENES)
def test_long_reads_of_every_kind(name, part, seed):
    device = SimulatedDevice(seed)

    with limits(), shared(part):
        values = CudaReads(device).values(scene(name).array)

    np.testing.assert_array_equal(values, scene(name).expected)
    device.check()


@pytest.mark.parametrize("batch_nbytes", [1, 96 * KIB, KIB * KIB])
def test_both_sides_have_their_part_and_all_bytes_are_fetched_once(batch_nbytes, monkeypatch):
    by_host = []
    stage = HostShare.stage
    monkeypatch.setattr(HostShare, "stage", lambda share, pieces: (by_host.append(pieces), stage(share, pieces))[1])
    fetched = []
    for part in (0, 0.25):
        before = counters.snapshot().read_nbytes
        with limits(batch_nbytes=batch_nbytes), shared(part):
            CudaReads(SimulatedDevice(LAZY)).read(scene("zstd, scattered").array)
        fetched.append(counters.snapshot().read_nbytes - before)

    assert sum(piece.hi - piece.lo for pieces in by_host for piece in pieces) == 10  # a quarter of the 42 that exist
    assert fetched[0] == fetched[1] > 0


def test_the_host_has_its_part_of_every_shard_while_the_device_decodes(monkeypatch):
    """Not before the first batches, nor all of it behind the last one."""
    order = []
    note = monkeypatch.setattr
    stage, decompress = HostShare.stage, SimulatedDevice.launch
    note(HostShare, "stage", lambda *given: (order.append("host"), stage(*given))[1])
    note(SimulatedDevice, "launch", lambda *given: (order.append("device"), decompress(*given))[1])

    with limits(batch_nbytes=1), shared(0.5):
        CudaReads(SimulatedDevice(LAZY)).read(scene("zstd, scattered").array)

    assert order[:4] == ["device"] * 4
    assert "device" in order[order.index("host") :]


# ---- what is learnt


@given(
    name=st.sampled_from(SCENES),
    splits=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    is_known=st.booleans(),
    is_little=st.booleans(),
    seed=seeds,
)
def test_values_are_the_same_however_reads_are_steered(name, splits, is_known, is_little, seed):
    """Asked before a read, or again and again while it is under way."""
    device, asked = SimulatedDevice(seed), cycle(splits)
    reads = CudaReads(device)
    with limits(calibration=None), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Taken, "for_host", lambda _, n, *__: round(next(asked) * n))
        patch.setattr(Taken, "is_known", is_known)
        patch.setattr(cuda, "is_little", lambda *_: is_little)
        for _ in range(2):
            np.testing.assert_array_equal(reads.values(scene(name).array), scene(name).expected)
    device.check()


def by_host(call):
    """Return how many chunks threads of the host decode meanwhile."""
    before = counters.snapshot()
    call()
    return (counters.snapshot() - before).n_by_host


def slow(monkeypatch, device):
    """Let 1000 seconds pass on a device whenever an event is recorded."""
    recorded, record = [], device.record

    def counting(event, stream):
        recorded.append(event)
        record(event, stream)

    monkeypatch.setattr(device, "record", counting)
    monkeypatch.setattr(device, "elapsed_s", lambda a, b: 1000.0 * (recorded.index(b) - recorded.index(a)))


def test_reads_show_that_the_host_is_quicker(monkeypatch):
    """The device is slow; from the third read on, which is the first that the host has some of, it has a part."""
    device = SimulatedDevice(LAZY)
    reads, array = CudaReads(device), scene("zstd, scattered").array
    slow(monkeypatch, device)
    monkeypatch.setattr(threads, "n_cores", lambda: 4)
    monkeypatch.setattr(cuda, "is_little", lambda *_: False)

    with limits(calibration=None, batch_chunks=64, batch_nbytes=1 << 20):
        found = [by_host(lambda: reads.values(array)) for _ in range(5)]
        monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "1")
        stored = stored_array(array)
        route = reads.decoder.route(stored.spec, stored.cast)
    with limits():
        assert by_host(lambda: reads.values(array)) == 0

    assert found[:2] == [0, 0]
    assert found[2] > 0
    assert found[3:] == [42, 42]  # all that exist
    assert "as reads have taken so far" in route.why


# ---- what goes wrong


def damaged(change, row, *, sharded=True, store=None):
    data = counting((8, 4096))
    shards = data.shape if sharded else None
    array = write(
        MemoryStore() if store is None else store,
        data,
        name="a/t",
        chunks=(1, 4096),
        shards=shards,
        compressors=ZstdCodec(),
    )
    if sharded:
        put(array.store, "a/t/c/0/0", with_chunk(take(array.store, "a/t/c/0/0"), 8, row, change))
    else:
        put(array.store, f"a/t/c/{row}/0", change)
    return array


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize("change", [b"", b"<html>404 not found</html>", b"\x28\xb5\x2f\xfd" + bytes(40)])
@pytest.mark.parametrize("row", [0, 3, 7])
@pytest.mark.parametrize("is_local", [True, False])
def test_a_damaged_chunk_is_the_same_error_on_either_side(is_local, row, change, sharded):
    said = set()
    for part in (0, 0.5, 1):
        device = SimulatedDevice(LAZY)
        with new_store(is_local=is_local) as store, limits(), shared(part):
            array = damaged(change, row, sharded=sharded, store=store)
            with pytest.raises(CorruptChunkError) as caught:
                CudaReads(device, may_decode_again=True).read(array)
        device.check()
        assert_explains(caught.value, f"chunk ({row}, 0)", "'/a/t'", "zstd")
        said.add(str(caught.value))
    assert len(said) == 1


def test_a_shard_that_vanishes_is_named(monkeypatch):
    array = scene("zstd, scattered").array
    data = counting((8, 64))
    array = write(AskedStore(), data, name="a/t", chunks=(1, 64), shards=(8, 64), compressors=ZstdCodec())
    stage = HostShare.stage

    def vanish(share, pieces):
        array.store._store_dict.pop("a/t/c/0/0", None)
        share._requests = None
        share._waiting.extendleft(reversed(pieces))
        return stage(share, share.take())

    monkeypatch.setattr(HostShare, "stage", vanish)
    device = SimulatedDevice(LAZY)
    with limits(), shared(0.5), pytest.raises(StoreReadError, match="has disappeared"):
        CudaReads(device).read(array)
    device.check()


@pytest.mark.parametrize("kept_nbytes", [60, 100, 200])
def test_what_does_not_fit_the_device_is_placed_in_halves(kept_nbytes, monkeypatch):
    """The result has 384 KiB; decoded chunks of a full slot do not fit beside it and what batches have."""
    n_halved, halve = [], HostShare.halve
    monkeypatch.setattr(HostShare, "halve", lambda *given: (n_halved.append(1), halve(*given))[1])
    device = SimulatedDevice(LAZY, scene("raw").expected.nbytes + kept_nbytes * KIB)

    with limits(), shared(0.5):
        values = CudaReads(device).values(scene("raw").array)

    np.testing.assert_array_equal(values, scene("raw").expected)
    assert n_halved
    device.check()


def test_a_chunk_that_does_not_fit_the_device_is_an_error():
    device = SimulatedDevice(LAZY, scene("raw").expected.nbytes + 4 * KIB)

    with limits(), shared(1), pytest.raises(DeviceMemoryError):
        CudaReads(device).read(scene("raw").array)
    device.check()


@pytest.mark.parametrize("seed", [LAZY, SEEDS[1]])
def test_an_interrupted_read_leaves_nothing_behind(seed):
    """Interrupted before each call of the device in turn; the next read is right."""
    with limits(), shared(0.5):
        counted = NotingDevice(seed)
        CudaReads(counted).read(scene("zstd, scattered").array, slice(0, 24))
        for at in range(0, len(counted.notes), 3):
            interrupted = Interrupted(seed, at)
            reads = CudaReads(interrupted.device)
            with suppress(KeyboardInterrupt):
                reads.read(scene("zstd, scattered").array, slice(0, 24))
            interrupted.at = None
            values = reads.values(scene("zstd, scattered").array, slice(0, 24))
            np.testing.assert_array_equal(values, scene("zstd, scattered").expected[:24])
            interrupted.device.check()


class Interrupted:
    """A device with which a signal comes in before one of its calls."""

    def __init__(self, seed, at, **keywords):
        self.at = at
        self.device = NotingDevice(seed, on_call=self._called, **keywords)

    def _called(self, note):
        if self.at is not None and len(self.device.notes) == self.at + 1 and note.call != "nvcomp":
            raise KeyboardInterrupt


def interrupt_many(**keywords):
    for seed in range(3, 64, 4):
        for at in range(60, 140, 8):
            interrupted = Interrupted(seed, at, **keywords)
            with suppress(KeyboardInterrupt):
                CudaReads(interrupted.device).read(scene("zstd, scattered").array)
            interrupted.device.check()


def test_an_interrupted_read_waits_for_the_stream_beside_batches():
    """The sixth that is waited for. Some device has not begun with it."""
    with limits(), shared(0.9):
        interrupt_many()
        with pytest.raises(AssertionError):
            interrupt_many(mutations={"synchronize:6"})
