"""What xarray and dask see of ``device="cuda"``: device arrays where numbers are, NumPy everywhere else."""

import os
import pickle
import subprocess
import sys

import dask
import numpy as np
import pytest
import xarray as xr
from helpers.compare import assert_same_bits, assert_same_dataset, assert_same_values
from helpers.data.datasets import open_stock
from helpers.kernels import on_host as host_kernels
from helpers.simulated import worker as simulated_worker
from helpers.simulated.array import SimulatedArray
from helpers.simulated.reads import limits
from zarr.codecs import BytesCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr import DeviceUnavailableError
from xarray_gpuzarr.decoders import choice

pytestmark = pytest.mark.filterwarnings("ignore")

ON_DEVICE = ["count", "mask", "t2m", "u10"]
N_SHARDS = 3


@pytest.fixture(params=[0, 3], ids=["lazy", "random"])
def device(request):
    """A GPU that ``device="cuda"`` and ``device="auto"`` find."""
    with simulated_worker.installed(seed=request.param) as device, limits():
        yield device
        device.check()


def open_on_device(store, **keywords):
    return xr.open_dataset(store, engine="gpuzarr", **({"device": "cuda", "consolidated": False} | keywords))


@pytest.mark.parametrize("name", ON_DEVICE)
def test_blocks_are_device_arrays_one_per_shard(path, device, name):
    ds, stock = open_on_device(path, chunks={}), open_stock(path)
    array = ds[name].data

    blocks = dask.compute(*array.to_delayed().ravel(), scheduler="sync")

    assert type(array._meta) is SimulatedArray
    assert (array._meta.dtype, array.dtype) == (stock[name].dtype, stock[name].dtype)
    assert {type(block) for block in blocks} == {SimulatedArray}
    assert device.calls["nvcomp"] == len(blocks) == (1 if name == "mask" else N_SHARDS)


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "chunked"])
@pytest.mark.parametrize("name", ON_DEVICE)
def test_loaded_variables_are_device_arrays(path, device, name, chunks):
    ds = open_on_device(path, chunks=chunks)

    loaded = ds[name].compute().data

    assert type(loaded) is SimulatedArray
    assert_same_values(loaded.get(), open_stock(path)[name].values)


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "chunked"])
def test_to_host_is_the_dataset_of_the_zarr_engine(path, device, chunks):
    host = open_on_device(path, chunks=chunks).gpuzarr.to_host()

    assert {type(host[name].compute().data) for name in ON_DEVICE} == {np.ndarray}
    assert_same_dataset(host, open_stock(path, consolidated=False))


def test_coordinates_times_and_text_are_numpy_on_the_host(path, device):
    ds, stock = open_on_device(path, chunks={}).compute(), open_stock(path)

    assert {name for name in ds.variables if type(ds[name].data) is SimulatedArray} == {
        *ON_DEVICE,
        *("crs", "height", "scalar"),
    }
    for name in ("time", "lat", "lon", "level", "station", "lead", "valid", "time_bounds"):
        assert type(ds[name].data) is np.ndarray
        assert_same_values(ds[name].values, stock[name].values)
    assert ds.indexes["time"].equals(stock.indexes["time"])


GROUPED = {
    "climatology": lambda ds: ds.t2m.groupby("time.hour").mean(),
    "resample": lambda ds: ds.u10.resample(time="1D").max(),
}


@pytest.mark.parametrize("work", GROUPED)
def test_flox_refuses_device_arrays(path, device, work):
    pytest.importorskip("flox")
    ds = open_on_device(path)

    with xr.set_options(use_flox=True), pytest.raises(TypeError, match=r"Unsupported type <class 'numpy\.ndarray'>"):
        GROUPED[work](ds)


KINDS = {
    "zstd": ({"compressors": ZstdCodec()}, "cuda", ""),
    "big": ({"serializer": BytesCodec(endian="big"), "compressors": ZstdCodec()}, "cuda", ""),
    "bytes": ({"compressors": None}, "cuda", ""),
    "chain": (
        {"compressors": [GzipCodec(), ZstdCodec()]},
        "host, then one copy to the device",
        "one compressor, one shuffle and codecs of elements",
    ),
    "bz2": ({"compressors": zn.BZ2(level=1)}, "host, by zarr-python, then one copy to the device", "bz2"),
}
"""Keywords of the array, where it is decoded, and a part of the reason."""


@pytest.fixture(scope="module")
def kinds():
    """A store with one array of each kind."""
    store = MemoryStore()
    for name, (keywords, _, _) in KINDS.items():
        data = xr.Dataset({name: (("y", "x"), np.arange(48, dtype="i4").reshape(6, 8))})
        encoding = {"chunks": (2, 4), "shards": (4, 8), "filters": (), **keywords}
        data.to_zarr(store, encoding={name: encoding}, mode="a", consolidated=False)
    return store


def test_explain_says_where_each_variable_is_decoded_and_why(kinds, device):
    ds = open_on_device(kinds)
    rows = {row.variable: row for row in ds.gpuzarr.explain().rows}

    assert {name: rows[name].where for name in KINDS} == {name: where for name, (_, where, _) in KINDS.items()}
    assert [name for name, (_, _, why) in KINDS.items() if why not in rows[name].why] == []
    assert [name for name, (_, _, why) in KINDS.items() if bool(why) != bool(rows[name].why)] == []
    assert device.calls == {}


@pytest.mark.parametrize("name", KINDS)
def test_values_are_in_the_byte_order_of_the_machine_wherever_they_are_decoded(kinds, device, name):
    ds = open_on_device(kinds, chunks={})

    loaded = ds[name].compute().data

    assert ds[name].dtype.isnative
    assert_same_bits(loaded.get(), np.arange(48, dtype="i4").reshape(6, 8))


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "chunked"])
def test_pickled_dataset_is_small_and_holds_nothing_of_the_device(path, device, chunks):
    ds = open_on_device(path, chunks=chunks)[["t2m", "u10"]].drop_vars(["height", "level"])
    ds.t2m.isel(time=0).compute()

    pickled = pickle.dumps(ds.t2m.variable)

    assert len(pickled) < 8000
    for word in (b"imulated", b"CudaDecoder", b"Workspace", b"Slot"):
        # A meta of no elements is an array of the device's library.
        assert word not in pickled or (chunks == {} and word == b"imulated")
    assert_same_values(pickle.loads(pickled).compute().data.get(), open_stock(path).t2m.values)


def test_missing_device_is_an_error_and_auto_the_host(path, monkeypatch):
    monkeypatch.setattr(choice, "missing_for_cuda", lambda: ["CuPy"])

    with pytest.raises(DeviceUnavailableError, match="missing: CuPy"):
        open_on_device(path)
    assert open_on_device(path, device="auto").gpuzarr.device == "host"


def test_files_straight_to_the_gpu_cost_no_import_before_they_are_asked_for(path):
    host_kernels.require_compiler()
    program = f"""
import sys
import xarray as xr
from helpers.simulated.worker import installed
with installed() as device:
    ds = xr.open_dataset({str(path)!r}, engine="gpuzarr", device="cuda")
    ds.gpuzarr.explain()
    ds.load()
    assert device.calls["upload"]
assert not {{"xarray_gpuzarr.cuda.gds_files", "xarray_gpuzarr.decoders.cuda.staging.direct"}} & set(sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "XARRAY_GPUZARR_LITTLE": "device"}

    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_opening_explaining_and_pickling_import_no_gpu_package(path, tmp_path):
    # zarr and xarray try CuPy and do without it; nobody but this package would try the other two.
    for package, error in {"cupy": "ImportError", "rmm": "SystemExit", "nvidia/libnvcomp": "SystemExit"}.items():
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text(f"raise {error}('{package}')")
    program = f"""
import pickle, sys
import xarray as xr, xarray_gpuzarr.cuda.driver as driver
driver.has_driver = lambda: True
ds = xr.open_dataset({str(path)!r}, engine="gpuzarr")
assert ds.gpuzarr.device == "cuda"
assert ds.gpuzarr.explain().rows[0].where == "cuda"
assert pickle.loads(pickle.dumps(ds.isel(time=slice(2, 5)))).sizes["time"] == 3
assert not {{"matplotlib", "distributed"}} & set(sys.modules)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path[1:]])}

    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
