"""What `docs/decisions/upstream.md` asks of other libraries is missing: once a test fails, a private part can go."""

import threading

import dask
import dask.array as da
import distributed.worker
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.corpus import counting, write_nested_shards
from zarr.buffer import cpu
from zarr.core import sync
from zarr.registry import register_ndbuffer
from zarr.storage import MemoryStore, WrapperStore

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore:Consolidated")


class OtherBuffer(cpu.NDBuffer):
    """Not zarr-python's own."""


class OtherArray(da.Array):
    """Not dask's own."""


def test_a_wrapper_does_not_tell_what_it_wraps():
    assert not hasattr(WrapperStore(MemoryStore()), "wrapped")


def test_a_loop_is_published_before_its_thread_is_started(monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(sync, "loop", [None])
    monkeypatch.setattr(sync, "iothread", [None])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        sync._get_loop()

    (loop,) = sync.loop
    assert loop is not None
    loop.close()


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_nested_shards_are_not_read_into_other_buffers():
    register_ndbuffer(OtherBuffer, "other.NDBuffer")
    store = MemoryStore()
    write_nested_shards(store, counting((8, 6)))
    path = "zarr.core.codec_pipeline.BatchedCodecPipeline"

    with zarr.config.set({"ndbuffer": "other.NDBuffer", "codec_pipeline.path": path}):
        array = zarr.open_array(store)
        with pytest.raises(ValueError, match="Non-default buffer prototypes"):
            array[5:, 1]


def test_a_blosc_frame_cut_short_is_decoded_from_what_lies_behind_it():
    content = bytes(range(100))
    frame = numcodecs.Blosc(clevel=0).encode(content)  # what is cut off stays in memory here

    assert numcodecs.Blosc().decode(memoryview(frame)[:20]) == content


def test_arrays_of_a_subclass_do_not_mix():
    array = da.ones(4, chunks=2)
    other = OtherArray(array.dask, array.name, array.chunks, dtype=array.dtype)
    dataset = xr.Dataset({"a": ("x", array), "b": ("x", other)})

    with pytest.raises(TypeError, match="Mixing chunked array types"):
        dataset.compute()


def test_automatic_chunks_cut_stored_ones_and_unknown_dimensions_are_not_told_of(recwarn):
    store = MemoryStore()
    stored = xr.Dataset({"v": (("time", "latitude"), np.zeros((32, 32)))})
    stored.to_zarr(store, encoding={"v": {"chunks": (8, 16)}})

    with dask.config.set({"array.chunk-size": "100 B"}):
        automatic = xr.open_zarr(store, chunks="auto")
    xr.open_zarr(store, chunks={"lat": 3})

    assert automatic.v.data.chunksize < (8, 16)
    assert not [warned for warned in recwarn if "'lat'" in str(warned.message)]


def test_distributed_does_not_list_the_workers_of_a_process():
    assert not hasattr(distributed.worker, "get_workers")
