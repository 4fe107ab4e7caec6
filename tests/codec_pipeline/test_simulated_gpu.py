"""Plain zarr with buffers on a GPU: decoded there, by one read, straight into the buffer where its layout allows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from helpers.codec_pipeline import reads_planned
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.data.selections import all_axis_keys, points
from helpers.every_decoder import SMALL
from helpers.kernels import on_host as host_kernels
from helpers.simulated.simulator import SimulatedDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.buffer import cpu
from zarr.codecs import ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.core.buffer import BufferPrototype, core
from zarr.core.indexing import CoordinateIndexer
from zarr.core.sync import sync
from zarr.storage import MemoryStore

from xarray_gpuzarr import explain, zarr_pipeline
from xarray_gpuzarr.codec_pipeline import explanation, reading
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.process.device_options import in_force

SHAPE = (7, 6, 5)
DATA = counting(SHAPE)
DATA[:4, :3] = 0  # chunks and a shard that are never written
LAYOUTS = {
    "sharded zstd": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "compressors": ZstdCodec()},
    "sharded delta": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "filters": zn.Delta(dtype="<i4")},
    "unsharded raw": {"chunks": (3, 4, 2), "compressors": None},
    "v2 order F": {"chunks": (3, 4, 2), "zarr_format": 2, "order": "F"},
}


@pytest.fixture(scope="module")
def gpu():
    """A device, and zarr's buffers on it."""
    host_kernels.require_compiler()
    device = SimulatedDevice(seed=7)

    class NDBuffer(core.NDBuffer):
        """As zarr's own for CuPy."""

        @classmethod
        def empty(cls, shape: Any, dtype: Any, order: str = "C") -> Any:
            shape = tuple(map(int, shape if order == "C" else shape[::-1]))
            memory = device.empty(shape, np.dtype(dtype), device.consumer_stream())
            return cls(memory if order == "C" else memory.transpose())

        create = empty

        def as_numpy_array(self) -> np.ndarray:
            return self._data.get()

        def __getitem__(self, key: Any) -> Any:
            return type(self)(self._data[key])

        def __setitem__(self, key: Any, value: Any) -> None:
            raise AssertionError("zarr-python's own pipeline was asked")

    decoders = {"cuda": CudaDecoder(lambda: device), "host": HostDecoder()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_force, "options", SMALL)
        patch.setitem(reading._DEVICES, (cpu.Buffer, NDBuffer), "cuda")
        patch.setattr(reading, "missing_for_cuda", list)
        for module in (reading, explanation):
            patch.setattr(module, "decoder_for", decoders.__getitem__)
        yield SimpleNamespace(device=device, prototype=BufferPrototype(buffer=cpu.Buffer, nd_buffer=NDBuffer))
        device.check()


@pytest.fixture(scope="module", params=LAYOUTS)
def array(request, gpu):
    """An array of every layout."""
    store = MemoryStore()
    write(store, DATA, **LAYOUTS[request.param])
    with zarr_pipeline():
        return zarr.open_array(store)


def down(result: Any) -> np.ndarray:
    return result.get() if hasattr(result, "get") else np.asarray(result)


axis = st.one_of(st.integers(-5, 4), st.slices(5).map(lambda s: slice(s.start, s.stop, abs(s.step or 1))))


@settings(max_examples=15)
@given(key=st.tuples(axis, axis, axis))
def test_basic_selections(array, gpu, key):
    with reads_planned():
        found = array.get_basic_selection(key, prototype=gpu.prototype)

    assert_same_bits(down(found), np.asarray(DATA[key]))


def as_zarr_takes_it(key: Any) -> Any:
    """Let no slice go backwards, and an empty list be one of integers."""
    if isinstance(key, slice):
        return slice(key.start, key.stop, abs(key.step or 1))
    return np.asarray(key, int) if isinstance(key, list) else key


@settings(max_examples=15)
@given(key=all_axis_keys(SHAPE))
def test_orthogonal_selections(array, gpu, key):
    key = tuple(map(as_zarr_takes_it, key))
    expected = np.asarray(array.get_orthogonal_selection(key))

    with reads_planned():
        found = array.get_orthogonal_selection(key, prototype=gpu.prototype)

    assert_same_bits(down(found), expected)


@settings(max_examples=15)
@given(key=points(SHAPE))
def test_coordinates(array, gpu, key):
    ours = array.async_array
    indexer = CoordinateIndexer(key, array.shape, ours._chunk_grid)

    with reads_planned():  # `get_coordinate_selection` would bring the result to the host
        found = sync(ours._get_selection(indexer, prototype=gpu.prototype))

    assert_same_bits(down(found).reshape(indexer.sel_shape), DATA[tuple(np.broadcast_arrays(*key))])


def test_c_ordered_results_are_decoded_in_place(array, gpu):
    before = gpu.device.calls["set"]

    found = array.get_basic_selection((slice(None), 2), prototype=gpu.prototype)

    assert gpu.device.calls["set"] - before == (0 if found.flags.c_contiguous else 1)


def test_what_the_machine_lacks_leaves_reads_to_zarr(array, gpu, monkeypatch):
    advice = []
    monkeypatch.setattr(reading, "missing_for_cuda", lambda: ["nvCOMP (nvidia-libnvcomp)"])
    monkeypatch.setattr(reading, "advise", lambda *_, found, do: advice.append(found))
    with zarr_pipeline():
        other = zarr.open_array(array.store)

    for _ in range(2):
        with pytest.raises(AssertionError, match="own pipeline"):
            other.get_basic_selection(..., prototype=gpu.prototype)
    assert advice == ["missing: nvCOMP (nvidia-libnvcomp)"]


def test_what_the_machine_lacks_is_explained(array, gpu, monkeypatch):
    monkeypatch.setattr(explanation, "default_buffer_prototype", lambda: gpu.prototype)
    monkeypatch.setattr(reading, "missing_for_cuda", lambda: ["nvCOMP (nvidia-libnvcomp)"])

    assert str(explain(array)) == "/: zarr-python (missing: nvCOMP (nvidia-libnvcomp))"
