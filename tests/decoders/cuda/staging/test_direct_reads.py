"""Files read straight into device memory, on the simulator: the same values, every needed wait, and honest errors."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits, assert_same_values
from helpers.data.corpus import V3_CODECS, counting, write
from helpers.data.damage import explained
from helpers.data.datasets import open_stock
from helpers.simulated.files import SimulatedFile, SimulatedFileRead
from helpers.simulated.reads import LAZY, SCENES, SEEDS, CudaReads, decoded_again, limits, scene
from helpers.simulated.simulator import SimulatedDevice
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import DeviceUnavailableError, GpuZarrError, OptionError, StoreReadError, read_array
from xarray_gpuzarr.decoders import choice, cuda
from xarray_gpuzarr.decoders.cuda.staging.direct import DirectStager
from xarray_gpuzarr.read import read_points, stored_array

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]

FEW_SEEDS = SEEDS[:4]
ON_HOST_SIDE = {
    "gzip": "headers",
    "gzip, straight into the result": "headers",
    "zlib, moved first": "headers",
    "lz4": "headers",
    "blosc, shuffled": "headers",
    "filters, straight into the result": "checksums",
    "filters of raw chunks": "checksums",
}
"""Scenes whose bytes the host must see, and why."""


@pytest.fixture(autouse=True)
def few():
    with limits():
        yield


@pytest.fixture(scope="module")
def in_files(tmp_path_factory):
    """Return the array of a scene, copied to local files."""

    def copy(name):
        path = tmp_path_factory.mktemp("scene")
        for key, buffer in scene(name).array.store._store_dict.items():
            file = path / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(buffer.to_bytes())
        return zarr.open_array(LocalStore(path), mode="r")

    made = {}
    return lambda name, storage="gds": stored_array(made.setdefault(name, copy(name)), storage=storage)


def device_of(seed=LAZY, **keywords):
    return SimulatedDevice(seed, reads_files=True, **keywords)


@pytest.mark.every_value
@pytest.mark.parametrize("seed", FEW_SEEDS)
@pytest.mark.parametrize("name", SCENES)
def test_values_are_the_same(in_files, name, seed):
    device = device_of(seed)
    reads = CudaReads(device, may_decode_again=True)

    assert_same_bits(reads.values(in_files(name)), scene(name).expected)

    device.check()
    assert bool(device.calls["read_file"]) == (name not in ON_HOST_SIDE)


@pytest.mark.parametrize("name", [name for name in SCENES if name not in ON_HOST_SIDE])
def test_selections(in_files, name):
    device, array, expected = device_of(), in_files(name), scene(name).expected
    reads = CudaReads(device, may_decode_again=True)

    for key in [(slice(5, 9),), (slice(None, None, -7),), ([47, 0, 3],)]:
        assert_same_bits(reads.values(array, key), np.ascontiguousarray(expected[key]))

    device.check()


CODECS = {
    **{name: V3_CODECS[name] for name in ("bytes", "zstd", "gzip", "transpose", "big-endian", "blosc-lz4-shuffle")},
    "zlib": {"compressors": zn.Zlib(level=1)},
    "lz4": {"compressors": zn.LZ4()},
}
IN_SHARDS, IN_FILES = {"chunks": (5, 7), "shards": (15, 14)}, {"chunks": (5, 7)}


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize("layout", [IN_SHARDS, IN_FILES], ids=["shards", "files"])
@pytest.mark.parametrize("shape", [(61, 43), (1, 1), (5, 7)])
def test_every_layout(tmp_path, codecs, layout, shape):
    data = counting(shape, "f4")
    data[: shape[0] // 3] = 0  # chunks, shards and files that do not exist
    array = write(LocalStore(tmp_path), data, **layout, **CODECS[codecs])
    device = device_of(3)

    assert_same_bits(CudaReads(device).values(array), data)

    device.check()


@pytest.mark.parametrize("n_bytes", [1, 3, 31, 32, 33, 63, 64, 65, 4095, 4096, 4097, 10_000])
def test_chunks_of_any_length_wherever_they_lie(tmp_path, n_bytes):
    data = np.arange(40 * n_bytes, dtype="u1").reshape(40, n_bytes) % 251 + 1
    for name, compressor in {"raw": None, "zstd": ZstdCodec(), "gzip": GzipCodec()}.items():
        array = write(
            LocalStore(tmp_path / name), data, chunks=(1, n_bytes), shards=(20, n_bytes), compressors=compressor
        )
        device = device_of(2)
        assert_same_bits(CudaReads(device, may_decode_again=True).values(array), data)
        device.check()


def test_points(tmp_path):
    data = counting((50, 60), "i2")
    write(LocalStore(tmp_path), data, chunks=(5, 6), shards=(10, 12), dimension_names=["y", "x"])
    device = device_of()

    stored = stored_array(zarr.open_array(tmp_path, mode="r"), storage="gds")

    result = read_points(stored, (np.array([0, 49, 7]), np.array([59, 0, 7])), CudaReads(device).decoder)

    assert_same_bits(result.get(), data[[0, 49, 7], [59, 0, 7]])


@pytest.mark.parametrize(
    ("name", "mutation"),
    [("raw", "finish_read"), ("raw", "wait"), ("zstd, scattered", "finish_read"), ("zstd, scattered", "wait")],
)
def test_every_wait_is_needed(in_files, name, mutation):
    """Without it, some order of events gives other bytes or a race."""
    caught = 0
    for seed in SEEDS:
        device = device_of(seed, mutations=(mutation,))
        try:
            with decoded_again() as numbers:
                values = CudaReads(device, may_decode_again=True).values(in_files(name))
            device.check()
            right = np.array_equal(values, scene(name).expected) and not numbers
        except (AssertionError, GpuZarrError):
            right = False
        caught += not right
    assert caught


def test_nothing_is_staged_but_tables(in_files):
    """Encoded bytes do not cross from the host."""
    device = device_of()

    CudaReads(device).values(in_files("raw"))

    nbytes = sum(f.stat().st_size for f in Path(in_files("raw").source.root).rglob("c/*/*"))
    assert device.calls["read_file"] >= 6
    assert device.nbytes_uploaded < nbytes / 10


@pytest.mark.parametrize("storage", ["auto", "posix", "gds"])
def test_storage_that_was_asked_for(in_files, storage):
    device = device_of()
    stored = in_files("raw", storage)

    assert_same_bits(CudaReads(device).values(stored), scene("raw").expected)

    assert bool(device.calls["read_file"]) == (storage == "gds")


def test_gds_on_a_device_that_reads_no_files_is_an_error(in_files):
    stored = in_files("raw")

    with pytest.raises(DeviceUnavailableError, match="simulated device reads no files") as caught:
        CudaReads(SimulatedDevice()).values(stored)

    assert "storage=" in caught.value.do


def test_gds_for_a_store_that_is_no_directory_is_an_error():
    array = write(MemoryStore(), counting((8,)), chunks=(4,))

    with pytest.raises(OptionError, match="local files"):
        stored_array(array, storage="gds")


@pytest.mark.parametrize(("storage", "message"), [("gds", "the host"), ("tape", "'auto', 'posix', 'gds'")])
def test_storage_that_cannot_be_on_the_host(tmp_path, storage, message):
    array = write(LocalStore(tmp_path), counting((8,)), chunks=(4,))

    with pytest.raises(OptionError, match=message):
        read_array(array, device="host", storage=storage)
    with pytest.raises(OptionError, match=message):
        xr.open_dataset(tmp_path, engine="gpuzarr", device="host", storage=storage, consolidated=False)


@pytest.mark.parametrize(
    ("auto", "do"),
    [
        ("host", "leave storage out: this machine has no usable GPU"),
        ("cuda", 'leave storage out, or say device="cuda"'),
    ],
)
def test_a_gpu_is_offered_where_there_is_one(tmp_path, monkeypatch, auto, do):
    monkeypatch.setattr(choice, "resolve_device", {"auto": auto, "host": "host"}.__getitem__)

    with pytest.raises(OptionError) as caught:
        read_array(write(LocalStore(tmp_path), counting((8,)), chunks=(4,)), device="host", storage="gds")

    assert caught.value.do == do


def damaged(tmp_path, change, compressor=None):
    data = counting((40, 100), "i4")
    array = write(LocalStore(tmp_path), data, chunks=(4, 100), shards=(20, 100), compressors=compressor)
    shard = tmp_path / "c" / "0" / "0"
    shard.write_bytes(change(shard.read_bytes()))
    return array, data


def test_damaged_frame_is_the_error_that_the_host_words(tmp_path):
    array, data = damaged(tmp_path, lambda shard: b"\0\0\0\0" + shard[4:], ZstdCodec())
    device = device_of()
    reads = CudaReads(device, may_decode_again=True)

    with pytest.raises(GpuZarrError) as caught:
        reads.values(stored_array(array, storage="gds"))

    assert "c/0/0" in str(caught.value)
    assert_same_bits(reads.values(array, slice(20, None)), data[20:])
    device.check()


def test_files_are_read_on_a_thread_that_no_signal_interrupts(in_files, monkeypatch):
    """A signal would close a file, or free the memory, while the read is under way."""
    threads = {}

    def noting(name, call):
        return lambda *args: (threads.setdefault(name, set()).add(threading.get_ident()), call(*args))[1]

    for owner, name in ((SimulatedFile, "read"), (SimulatedFileRead, "finish"), (SimulatedFile, "close")):
        monkeypatch.setattr(owner, name, noting(name, getattr(owner, name)))

    CudaReads(device_of()).values(in_files("raw"))

    assert list(threads) == ["read", "finish", "close"]
    assert threading.main_thread().ident not in set.union(*threads.values())


def test_shard_that_is_gone_after_its_index_was_read(tmp_path, monkeypatch):
    array, data = damaged(tmp_path, lambda shard: shard)
    open_file = SimulatedDevice.open_file

    def delete_first(self, path):
        if path.endswith("c/1/0"):
            (tmp_path / "c" / "1" / "0").unlink(missing_ok=True)
        return open_file(self, path)

    monkeypatch.setattr(SimulatedDevice, "open_file", delete_first)
    device = device_of()

    with pytest.raises(StoreReadError, match="c/1/0"):
        CudaReads(device).values(stored_array(array, storage="gds"))

    monkeypatch.undo()
    assert_same_bits(CudaReads(device).values(array), np.concatenate([data[:20], np.zeros((20, 100), "i4")]))


def test_shard_that_is_replaced_during_the_read_is_read_anew(tmp_path, monkeypatch):
    array, data = damaged(tmp_path / "a", lambda shard: shard)
    write(LocalStore(tmp_path / "b"), -data, chunks=(4, 100), shards=(20, 100), compressors=None)
    stage, left = DirectStager.stage, [1]

    def replace_first(self, pieces):
        if left[0]:
            left[0] = 0
            for key in ("c/0/0", "c/1/0"):
                (tmp_path / "b" / key).replace(tmp_path / "a" / key)
        return stage(self, pieces)

    monkeypatch.setattr(DirectStager, "stage", replace_first)
    device = device_of()

    assert_same_bits(CudaReads(device).values(stored_array(array, storage="gds")), -data)

    device.check()


def test_chunk_that_is_replaced_after_its_length_was_asked_for_is_read_anew(tmp_path, monkeypatch):
    data, longer = np.zeros((20, 100), "i4") + 1, counting((20, 100), "i4") + 1
    array = write(LocalStore(tmp_path / "a"), data, chunks=(20, 100), compressors=ZstdCodec())
    write(LocalStore(tmp_path / "b"), longer, chunks=(20, 100), compressors=ZstdCodec())
    open_file = SimulatedDevice.open_file

    def replace_first(self, path):
        (tmp_path / "b/c/0/0").exists() and (tmp_path / "b/c/0/0").replace(path)
        return open_file(self, path)

    monkeypatch.setattr(SimulatedDevice, "open_file", replace_first)
    device = device_of()

    assert_same_bits(CudaReads(device).values(stored_array(array, storage="gds")), longer)

    device.check()


def test_file_that_ends_too_soon_is_an_error(tmp_path, monkeypatch):
    array, _ = damaged(tmp_path, lambda shard: shard)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, offset: pread(fd, n // 2, offset))

    with pytest.raises(StoreReadError, match="shorter"):
        CudaReads(device_of()).values(stored_array(array, storage="gds"))


def test_file_that_cannot_be_asked_for_its_length_is_an_error(tmp_path):
    array = write(LocalStore(tmp_path), counting((8, 5)), chunks=(4, 5))
    (tmp_path / "c/0/0").unlink()
    (tmp_path / "c/0/0").symlink_to(tmp_path / "c/0/0")

    with explained(StoreReadError, "c/0/0"):
        CudaReads(device_of()).values(stored_array(array, storage="gds"))


def test_directory_in_place_of_a_file_is_a_missing_chunk(tmp_path):
    array = write(LocalStore(tmp_path), counting((8, 5)), chunks=(4, 5))
    (tmp_path / "c/0/0").unlink()
    (tmp_path / "c/0/0").mkdir()

    assert_same_bits(CudaReads(device_of()).values(stored_array(array, storage="gds")), array[...])


@pytest.fixture(params=[True, False], ids=["reads files", "reads none"])
def found_device(request, monkeypatch):
    """A GPU that ``device="cuda"`` finds."""
    simulated = SimulatedDevice(reads_files=request.param)
    monkeypatch.setattr(choice, "missing_for_cuda", list)
    monkeypatch.setattr(cuda, "CudaDecoder", lambda: CudaReads(simulated, may_decode_again=True).decoder)
    choice.decoder_for.cache_clear()
    yield simulated
    choice.decoder_for.cache_clear()


def test_dataset_and_its_explanation(path, found_device):
    reads = found_device.why_no_gds() is None
    ds = xr.open_dataset(path, engine="gpuzarr", device="cuda", storage="gds" if reads else "auto", consolidated=False)

    explained = ds.gpuzarr.explain()
    loaded = ds[["u10", "t2m"]].load().gpuzarr.to_host()

    rows = {row.variable: row for row in explained.rows}
    assert rows["u10"].storage == ("gds" if reads else 'posix: GPUDirect Storage was not asked for (storage="gds")')
    assert rows["time"].storage == ""
    assert bool(found_device.calls["read_file"]) == reads
    for name in ("u10", "t2m"):
        assert_same_values(loaded[name], open_stock(path)[name])


def test_gds_is_checked_when_a_store_is_opened(path, found_device):
    if found_device.why_no_gds() is None:
        assert xr.open_dataset(path, engine="gpuzarr", device="cuda", storage="gds", consolidated=False)
        return
    with pytest.raises(DeviceUnavailableError, match="reads no files"):
        xr.open_dataset(path, engine="gpuzarr", device="cuda", storage="gds", consolidated=False)


def test_what_the_host_must_see_is_explained(tmp_path, found_device):
    zarr.create_group(LocalStore(tmp_path))
    layout = {"chunks": (4, 4), "compressors": BloscCodec(), "dimension_names": ["y", "x"]}
    write(LocalStore(tmp_path), counting((8, 8)), name="t", **layout)
    ds = xr.open_dataset(tmp_path, engine="gpuzarr", device="cuda", consolidated=False)

    (row,) = ds.gpuzarr.explain().rows

    assert row.storage.startswith("posix: the headers of blosc")
