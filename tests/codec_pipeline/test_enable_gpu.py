"""Plain zarr with buffers on a GPU, by ``zarr.config.enable_gpu()``: read there, into the buffer where it allows."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.core.buffer.gpu as zarr_gpu
from helpers.codec_pipeline import Refusing, reads_planned
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write, write_nested_shards
from helpers.data.selections import all_axis_keys
from helpers.every_decoder import SMALL
from helpers.kernels import on_host as host_kernels
from helpers.simulated.array import SimulatedArray
from helpers.simulated.simulator import SimulatedDevice
from helpers.stores.fakes import drop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import numcodecs as zn
from zarr.errors import ChunkNotFoundError
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import explain, zarr_pipeline
from xarray_gpuzarr.codec_pipeline import explanation, reading
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.process.device_options import in_force

pytestmark = pytest.mark.filterwarnings("ignore:Creating a zarr.buffer.gpu")

DATA = counting((7, 6, 5))
DATA[:4, :3] = 0  # chunks and a shard that are never written
LAYOUTS = {
    "sharded": {"chunks": (2, 3, 2), "shards": (4, 3, 4)},
    "sharded delta": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "filters": zn.Delta(dtype="<i4")},
    "unsharded": {"chunks": (3, 4, 2)},
    "v2 order F": {"chunks": (3, 4, 2), "zarr_format": 2, "order": "F"},
}
ON_HOST = {"buffer": "zarr.buffer.cpu.Buffer", "ndbuffer": "zarr.buffer.cpu.NDBuffer"}


def cupy_of(device):
    """What zarr-python's buffers call of CuPy."""

    def asarray(array):
        return array if isinstance(array, SimulatedArray) else device.place(np.asarray(array))

    def empty(shape, dtype, order="C"):
        memory = device.empty(tuple(shape if order == "C" else shape[::-1]), np.dtype(dtype), device.consumer_stream())
        return memory if order == "C" else memory.transpose()

    def asnumpy(array):
        return array.get() if isinstance(array, SimulatedArray) else np.asarray(array)

    return SimpleNamespace(
        asarray=asarray,
        asanyarray=asarray,
        array=lambda data, dtype: asarray(np.array(data, dtype)),
        frombuffer=lambda data, dtype: asarray(np.frombuffer(data, dtype)),
        concatenate=lambda arrays: asarray(np.concatenate([asnumpy(array) for array in arrays])),
        empty=empty,
        asnumpy=asnumpy,
    )


@pytest.fixture(autouse=True)
def gpu():
    """The device that ``enable_gpu()`` leads to."""
    host_kernels.require_compiler()
    device = SimulatedDevice(seed=11)
    decoders = {"cuda": CudaDecoder(lambda: device), "host": HostDecoder()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr_gpu, "cp", cupy_of(device))
        patch.setattr(in_force, "options", SMALL)
        patch.setattr(reading, "missing_for_cuda", list)
        for module in (reading, explanation):
            patch.setattr(module, "decoder_for", decoders.__getitem__)
        with zarr.config.enable_gpu(), zarr_pipeline():
            yield device
    device.check()


@pytest.fixture(params=LAYOUTS)
def local(request, local):
    """A store with a group of one array, written by the host."""
    with zarr.config.set(ON_HOST):
        write(local, DATA, name="g/a", **LAYOUTS[request.param])
    return local


def opened(store, **keywords):
    return zarr.open_array(store, path="g/a", **keywords)


def down(result):
    """Bring a result of the device to the host."""
    assert isinstance(result, SimulatedArray)
    return result.get()


READS = {
    "all": lambda a: a[...],
    "steps": lambda a: a[1:, ::2, 3],
    "rows": lambda a: a.oindex[[6, 0, 2], :, [4, 1]],
    "a block": lambda a: a.blocks[1, 0],
    "a mask": lambda a: a.vindex[DATA % 3 == 0],
}


@pytest.mark.parametrize("read", READS)
def test_arrays_are_read_to_the_gpu(local, read):
    with zarr.config.set(ON_HOST):
        expected = READS[read](opened(local))
    array = opened(local)

    with reads_planned():
        assert_same_bits(down(READS[read](array)), expected)
    assert str(explain(array)) == "/g/a: cuda; written by zarr-python (arrays on a GPU are written by zarr-python)"


def test_shards_of_shards_are_read_to_the_gpu(memory):
    data = counting((8, 12))
    with zarr.config.set(ON_HOST):
        write_nested_shards(memory, data)

    for _ in range(2):
        with reads_planned():
            assert_same_bits(down(zarr.open_array(memory)[1:, 3:]), data[1:, 3:])
        with zarr.config.set(ON_HOST), reads_planned(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(zarr_gpu.Buffer, "__init__", None)  # none can be made
            assert_same_bits(zarr.open_array(memory)[1:, 3:], data[1:, 3:])


axis = st.integers(-5, 4) | st.slices(5).map(lambda s: slice(s.start, s.stop, abs(s.step or 1)))


@settings(settings.get_profile("few"), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.tuples(axis, axis, axis))
def test_any_box_is_read_to_the_gpu(local, key):
    with reads_planned():
        found = opened(local).get_basic_selection(key)

    assert_same_bits(found.get() if isinstance(found, SimulatedArray) else np.asarray(found), np.asarray(DATA[key]))


def as_zarr_takes_it(key):
    """Let no slice go backwards, and an empty list be one of integers."""
    if isinstance(key, slice):
        return slice(key.start, key.stop, abs(key.step or 1))
    return np.asarray(key, int) if isinstance(key, list) else key


@settings(settings.get_profile("few"), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=all_axis_keys(DATA.shape))
def test_any_product_of_keys_is_read_to_the_gpu(local, key):
    key = tuple(map(as_zarr_takes_it, key))
    with zarr.config.set(ON_HOST):
        expected = np.asarray(opened(local).get_orthogonal_selection(key))

    with reads_planned():
        found = opened(local).get_orthogonal_selection(key)

    assert_same_bits(found.get() if isinstance(found, SimulatedArray) else np.asarray(found), expected)


def test_c_ordered_results_are_decoded_in_place(local, gpu):
    array, before = opened(local), gpu.calls["set"]

    found = array.get_basic_selection((slice(None), 2))

    assert gpu.calls["set"] - before == (0 if found.flags.c_contiguous else 1)


def test_what_the_machine_lacks_leaves_reads_to_zarr(local, monkeypatch):
    advice, left = [], []
    monkeypatch.setattr(reading, "missing_for_cuda", lambda: ["nvCOMP (nvidia-libnvcomp)"])
    monkeypatch.setattr(reading, "advise", lambda *_, found, do: advice.append(found))
    array = opened(local)
    array.async_array.codec_pipeline.own = Refusing(left)

    for _ in range(2):
        with pytest.raises(AssertionError, match="left to zarr-python"):
            array[...]

    assert len(left) == 2
    assert advice == ["missing: nvCOMP (nvidia-libnvcomp)"]
    assert str(explain(opened(local))).startswith("/g/a: zarr-python (missing: nvCOMP (nvidia-libnvcomp))")


def test_members_of_groups_are_read_to_the_gpu(local):
    group = zarr.open_group(local, mode="r")

    with reads_planned():
        assert_same_bits(down(group["g/a"][2:]), DATA[2:])
        for name, member in group["g"].arrays():
            assert (name, member.shape) == ("a", DATA.shape)
            assert_same_bits(down(member[..., 1]), DATA[..., 1])


def test_points_are_what_zarr_would_copy_to_the_host_and_cupy_refuses(local):
    with reads_planned(), pytest.raises(TypeError, match="Implicit conversion"):
        opened(local).vindex[[0, 6], [5, 0], [1, 2]]


def test_an_output_on_the_gpu_is_filled(local, gpu):
    out = zarr_gpu.NDBuffer.create(shape=(7, 5), dtype="i4", fill_value=-1)

    with reads_planned():
        opened(local).get_basic_selection((slice(None), 5), out=out)

    assert_same_bits(down(out.as_ndarray_like()), DATA[:, 5])


@pytest.mark.parametrize(("dtype", "part"), [("u1", "u1"), ("i4", "i4"), ("f8", "f8"), ("c8", "f4"), ("c16", "f8")])
def test_an_output_may_begin_anywhere_in_an_array(memory, gpu, dtype, part):
    """Complex numbers are stored at once, which takes an alignment that the view of an array of their parts lacks."""
    data = counting((6, 32)).astype(dtype)
    with zarr.config.set(ON_HOST):
        write(memory, data, chunks=(2, 16), shards=(6, 32), compressors=None)
    n_parts = data.view(part).size
    whole = gpu.place(np.full(n_parts + 40, 255, part))

    for first in (0, 1, 2, 4, 8, 16, 1, 0):
        elements = whole[first : first + n_parts].view(dtype).reshape(data.shape)
        with reads_planned():
            zarr.open_array(memory).get_basic_selection(out=zarr_gpu.NDBuffer.from_ndarray_like(elements))

        assert_same_bits(elements.get(), data)
        whole[...] = 255


def test_missing_chunks_are_told(local):
    array = opened(local, config={"read_missing_chunks": False})
    (key,) = (key for key in ("c/0/1/0", "0.1.0") if (local.root / "g/a" / key).exists())
    drop(local, f"g/a/{key}")

    with reads_planned(), pytest.raises(ChunkNotFoundError, match=f"(?s)1 chunk.*'g/a/{key}'"):
        array[:, 4:]


def test_open_zarr_gives_arrays_on_the_gpu():
    store = MemoryStore()
    xr.Dataset({"a": (("z", "y", "x"), DATA)}).to_zarr(store, consolidated=False)

    opened = xr.open_zarr(store, chunks=None, consolidated=False, decode_cf=False)

    with reads_planned():
        assert_same_bits(down(opened["a"].isel(z=slice(2, 5), x=3).load().data), DATA[2:5, :, 3])


def test_open_zarr_wants_index_coordinates_on_the_host():
    store = MemoryStore()
    xr.Dataset(coords={"x": np.arange(5.0)}).to_zarr(store, consolidated=False)

    with pytest.raises(TypeError, match="Implicit conversion"):
        xr.open_zarr(store, consolidated=False)


def test_what_is_written_from_the_gpu_is_read(tmp_path, gpu):
    array = zarr.create_array(LocalStore(tmp_path), shape=DATA.shape, dtype="i4", chunks=(2, 3, 2), shards=(4, 3, 4))

    array[...] = gpu.place(DATA)
    array[1:3, 2] = gpu.place(DATA[1:3, 2] + 100)  # parts of chunks
    array[0] = 7

    expected = DATA.copy()
    expected[1:3, 2] += 100
    expected[0] = 7
    with reads_planned():
        assert_same_bits(down(array[...]), expected)
