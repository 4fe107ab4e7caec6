"""Devices that do not start, or lack memory for a moment: ``auto`` reads to the host, or once more; nothing is kept."""

import importlib.metadata
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.kernels import on_host as host_kernels
from helpers.simulated import worker as simulated_worker
from helpers.simulated.array import SimulatedArray
from helpers.simulated.planted_faults import Fault, FaultyDevice, engine
from zarr.codecs import GzipCodec, ShardingCodec, ZstdCodec

import xarray_gpuzarr
from xarray_gpuzarr import batches, read_array
from xarray_gpuzarr.cluster.preparation import Preparation
from xarray_gpuzarr.cluster.worker import check_device
from xarray_gpuzarr.cuda.find_gpu import find_gpu
from xarray_gpuzarr.decoders.choice import decoder_for, usable_device
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.cuda.checks import outcome_cache
from xarray_gpuzarr.errors import CudaError, DeviceMemoryError, DeviceUnavailableError, GpuZarrError, GpuZarrWarning
from xarray_gpuzarr.machine.diagnosis import doctor
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force
from xarray_gpuzarr.read import read, stored_array

VALUES = np.arange(40 * 30, dtype="i2").reshape(40, 30)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    host_kernels.require_compiler()
    monkeypatch.setenv("XARRAY_GPUZARR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(advice, "warned", set())
    options = ResourceOptions(slot_nbytes=2**16, n_slots=2, scratch_nbytes=2**28, verify="off", little="device")
    monkeypatch.setattr(in_force, "options", options)


def too_old(*_):
    raise CudaError(
        "a CUDA call failed",
        tried="cudaGetDevice, cudaSetDevice",
        found="cudaErrorInsufficientDriver: CUDA driver version is insufficient; no usable GPU",
        do="the driver has CUDA 12.4: pip install 'xarray-gpuzarr[cuda12]'",
    )


def filled(*_):
    raise DeviceMemoryError(
        "not enough device memory",
        tried="cudaGetDevice, cudaSetDevice",
        found="cudaErrorMemoryAllocation: out of memory",
        do="free memory of the GPU",
    )


class WithoutNvcomp(FaultyDevice):
    """A device that says who it is once nvCOMP is found."""

    @property
    def identity(self):
        raise DeviceUnavailableError(
            "nvCOMP cannot be loaded", tried="libnvcomp", found="nvCOMP 7.0.0", do="pip install it"
        )

    @identity.setter
    def identity(self, _):
        pass


STARTS = {
    "the driver is too old": (too_old, "CUDA driver version is insufficient", "pip install 'xarray-gpuzarr[cuda12]'"),
    "others have filled its memory": (filled, "cudaErrorMemoryAllocation", "free memory of the GPU"),
    "nvCOMP does not load": (lambda *_: WithoutNvcomp(None), "nvCOMP 7.0.0", "pip install it"),
}


FAILED = "copies failed its self-check on NVIDIA Simulator"
STARTS_AND_FAILS = STARTS | {
    "copies are wrong": (Fault("upload", "bytes"), FAILED, "doctor"),
    "copies fail": (Fault("upload", "raise"), FAILED, "doctor"),
    "a check breaks it": (Fault("upload", "raise", first=8), FAILED, "doctor"),
}
never_starts = pytest.mark.parametrize("start", STARTS, indirect=True)


@pytest.fixture(params=STARTS_AND_FAILS)
def start(request, tmp_path, monkeypatch):
    """A store, and a machine whose GPU does not start: why, and what mends it."""
    xr.Dataset({"a": (("y", "x"), VALUES)}).chunk(y=10, x=30).to_zarr(tmp_path / "a.zarr", consolidated=False)
    native_device, found, do = STARTS_AND_FAILS[request.param]
    if isinstance(native_device, Fault):
        device = FaultyDevice(native_device)
        native_device = lambda *_: device  # noqa: E731
    with simulated_worker.installed():
        sys.modules[simulated_worker.MODULE].native_device = native_device
        if request.param == "a check breaks it":  # that of an earlier read
            with warnings.catch_warnings(action="ignore"):
                opened(tmp_path / "a.zarr")["a"].load()
            monkeypatch.setattr(advice, "warned", set())
        yield tmp_path / "a.zarr", found, do


def opened(path, **options):
    return xr.open_dataset(path, engine="gpuzarr", consolidated=False, **options)


def unplanned():
    """Return an array of the same values that zarr-python alone reads: compressed shards."""
    array = zarr.create_array(
        {},
        shape=VALUES.shape,
        chunks=VALUES.shape,
        dtype=VALUES.dtype,
        filters=None,
        serializer=ShardingCodec(chunk_shape=VALUES.shape),
        compressors=[GzipCodec()],
    )
    array[...] = VALUES
    return array


DOORS = {
    "values": lambda path: opened(path)["a"].values,
    "dask": lambda path: opened(path, chunks={})["a"].compute().data,
    "read_array": lambda path: read_array(zarr.open_array(path, path="a", mode="r")),
    "batches": lambda path: np.concatenate([b.a.data[:, 0] for b in batches(opened(path), {"y": 1}, 8)]),
    "by zarr-python": lambda _: read_array(unplanned()),
    "points": lambda path: opened(path)["a"][xr.DataArray([0, 3], dims="p"), xr.DataArray([1, 2], dims="p")].values,
}


@pytest.mark.parametrize("door", DOORS)
def test_auto_reads_to_the_host_and_says_why_once(start, door):
    path, found, do = start
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        block = DOORS[door](path)
        again = DOORS[door](path)
    assert type(block) is np.ndarray
    np.testing.assert_array_equal(block, VALUES[[0, 3], [1, 2]] if door == "points" else VALUES)
    np.testing.assert_array_equal(again, block)
    (text,) = [str(w.message) for w in caught if issubclass(w.category, GpuZarrWarning)]
    assert found in text
    assert do in text


@never_starts
@pytest.mark.filterwarnings("ignore")
def test_explain_and_doctor_say_the_same_reason(start):
    path, found, do = start
    ds = opened(path, chunks={})
    ds["a"].compute()
    (row,) = ds.gpuzarr.explain().rows
    assert (row.where, found in row.why) == ("host", True)

    examined = str(doctor())
    assert found in examined
    assert do in examined


@pytest.mark.filterwarnings("ignore")
def test_cuda_is_an_error_that_says_what_to_do(start):
    path, found, do = start
    with pytest.raises(GpuZarrError) as caught:
        opened(path, device="cuda")["a"].load()
    assert found in str(caught.value)
    assert do in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_a_worker_is_prepared_for_the_host(start):
    preparation = Preparation()

    assert preparation.enter(device="auto", options={}) == "host"
    assert usable_device("auto") == "host"
    preparation.leave()
    with pytest.raises(GpuZarrError):
        preparation.enter(device="cuda", options={})


@never_starts
@pytest.mark.filterwarnings("ignore")
def test_a_gpu_that_starts_later_is_used(start):
    path, *_ = start
    assert type(opened(path)["a"].values) is np.ndarray

    sys.modules[simulated_worker.MODULE].native_device = lambda *_: device
    device = FaultyDevice(None)

    block = read_array(zarr.open_array(path, path="a", mode="r"))
    assert isinstance(block, SimulatedArray)
    (row,) = opened(path).gpuzarr.explain().rows
    assert row.where == "cuda"


def test_a_broken_install_says_what_to_reinstall(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray_gpuzarr.cuda.device", None)
    with pytest.raises(DeviceUnavailableError, match="CuPy or RMM cannot be imported") as caught:
        find_gpu()
    assert "pip install" in caught.value.do


PLACES = ["stream", "event", "allocate", "upload", "download", "scatter", "move", "Zstd", "zstd_blocks"]


@pytest.mark.every_value
@pytest.mark.parametrize("first", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("where", PLACES)
def test_one_thread_that_lacks_memory_for_a_moment_reads_all_the_same(where, first):
    array = stored_array(zarr.create_array({}, data=VALUES, chunks=(10, 30), shards=(20, 30), compressors=ZstdCodec()))
    decoder, device = engine()
    decoder.why_unusable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GpuZarrWarning)
        device.plant(Fault(where, "memory", first=first, times=1))
        for _ in range(2):
            block = read(array, ..., decoder)
            np.testing.assert_array_equal(block.get(), VALUES)
    assert set(outcome_cache.load(device.identity).values()) <= {""}
    assert decoder.why_unusable() is None
    assert decoder.route(array.spec, array.cast).where == "cuda"
    del block
    device.check()


@pytest.mark.parametrize("where", ["Zstd", "scatter", "zstd_blocks"])
def test_what_raised_is_not_remembered_by_the_next_process(where):
    array = stored_array(zarr.create_array({}, data=VALUES, chunks=(10, 30), shards=(20, 30), compressors=ZstdCodec()))
    device = FaultyDevice(Fault(where, "raise"))
    with pytest.warns(GpuZarrWarning, match="failed its self-check"):
        np.testing.assert_array_equal(read(array, ..., CudaDecoder(lambda: device)).get(), VALUES)

    assert set(outcome_cache.load(device.identity).values()) <= {""}
    later = FaultyDevice(None)
    decoder = CudaDecoder(lambda: later)
    np.testing.assert_array_equal(read(array, ..., decoder).get(), VALUES)
    assert decoder.route(array.spec, array.cast).where == "cuda"


def test_the_decoder_is_the_one_of_auto():
    """Else nothing of the above is about ``device="auto"``."""
    with simulated_worker.installed():
        assert isinstance(decoder_for("auto"), CudaDecoder)


# --- another stream on each thread ------------------------------------------------------------------------------------


@pytest.fixture
def streams_of_threads(monkeypatch, tmp_path):
    """A store, on a machine with a GPU whose CuPy works on another stream on each thread."""
    zarr.create_array(tmp_path / "s.zarr/a", data=VALUES, chunks=(10, 30), dimension_names=("y", "x"))
    zarr.open_group(tmp_path / "s.zarr")
    monkeypatch.setenv("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", "1")
    with simulated_worker.installed() as device:
        yield str(tmp_path / "s.zarr"), device


def test_streams_of_threads_are_refused_before_the_first_task(streams_of_threads):
    path, device = streams_of_threads
    doors = [
        lambda: xr.open_dataset(path, engine="gpuzarr", device="cuda", chunks={}),
        lambda: read_array(zarr.open_array(f"{path}/a"), device="cuda"),
        lambda: Preparation().enter(device="cuda", options={}),
        lambda: check_device("cuda", SimpleNamespace(name="w", address="tcp://127.0.0.1:1")),
    ]

    for door in doors:
        with pytest.raises(DeviceUnavailableError, match=r"per-thread default streams(.|\n)*unset CUPY_CUDA_PER"):
            raise door() or AssertionError

    assert device.calls["allocate"] == 0


def test_auto_reads_to_the_host_where_streams_are_of_threads_and_says_so(streams_of_threads):
    path, device = streams_of_threads

    with pytest.warns(GpuZarrWarning, match="unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM"):
        opened = xr.open_dataset(path, engine="gpuzarr")

    np.testing.assert_array_equal(opened.a, VALUES)
    assert device.calls["allocate"] == 0


@pytest.mark.parametrize("setting", ["0", None])
def test_one_stream_for_all_threads_is_no_matter(streams_of_threads, monkeypatch, setting):
    if setting is None:
        monkeypatch.delenv("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM")
    else:
        monkeypatch.setenv("CUPY_CUDA_PER_THREAD_DEFAULT_STREAM", setting)

    assert usable_device("auto") == "cuda"


# --- a folder that is not installed -----------------------------------------------------------------------------------


def test_a_folder_that_is_not_installed_reads_to_the_gpu(tmp_path, monkeypatch):
    asked = importlib.metadata.version

    def version(name):
        if name == "xarray-gpuzarr":
            raise importlib.metadata.PackageNotFoundError(name)
        return asked(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    outcome_cache._package_digest.cache_clear()
    array = zarr.create_array(tmp_path / "a", data=VALUES, chunks=(10, 30), compressors=ZstdCodec())
    device = FaultyDevice(None)

    values = read(stored_array(array), ..., CudaDecoder(lambda *_: device))

    assert values.get().tolist() == VALUES.tolist()
    assert device.calls["nvcomp"] > 0
    assert xarray_gpuzarr.__version__ == ""
    outcome_cache._package_digest.cache_clear()
