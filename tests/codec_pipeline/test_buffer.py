"""Arrays that zarr-python hands out take the memory of dead ones, never that of living ones, and hold what was read."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import checked_shards, counting, write, write_nested_shards
from hypothesis import given
from hypothesis import strategies as st
from zarr.buffer import cpu
from zarr.registry import get_ndbuffer_class, get_pipeline_class
from zarr.storage import MemoryStore

from xarray_gpuzarr import CodecPipeline, NDBuffer, read_array, zarr_pipeline
from xarray_gpuzarr.codec_pipeline.buffer import NDBUFFER_NAME
from xarray_gpuzarr.process import host_memory as module
from xarray_gpuzarr.process.host_memory import ResultMemory

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")

ROOT = Path(__file__).parents[2]
DATA = counting((8, 6))
DATA[:4] = 0  # a shard that is never written


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """Such that any array may be in memory of dead ones."""
    monkeypatch.setattr(module, "MIN_REUSED_NBYTES", 1)
    monkeypatch.setattr(module, "result_memory", ResultMemory())
    return module.result_memory


@pytest.fixture
def array():
    store = MemoryStore()
    write(store, DATA, chunks=(2, 3), shards=(4, 6), fill_value=0)
    with zarr_pipeline():
        yield zarr.open_array(store)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_of_a_dead_array_is_used_again(array):
    first = array[...]
    at = address(first)
    first[...] = 99  # not what the shard that is missing has
    del first

    second = array[...]

    assert address(second) == at
    assert_same_bits(second, DATA)


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a[1:], lambda a: a.T, memoryview])
def test_memory_of_an_array_that_lives_is_not(array, view):
    kept = view(array[...])
    others = [array[...] for _ in range(3)]

    assert not any(np.shares_memory(np.asarray(kept), other) for other in others)
    assert_same_bits(np.asarray(kept), np.asarray(view(DATA)))


@given(data=st.data(), keys=st.lists(st.sampled_from([..., (3,), (slice(5),), (slice(1, 8, 3), 4)]), max_size=6))
def test_reads_are_those_of_zarr_one_after_another(data, keys):
    layouts = [{"chunks": (2, 3), "shards": (4, 6)}, {"chunks": (3, 4)}, {"chunks": (3, 4), "zarr_format": 2}]
    dtypes = ["?", "i2", ">u4", "f8", "c8", "M8[s]", "m8[ns]", "<U3", "V3"]
    pairs = []
    for layout in data.draw(st.lists(st.sampled_from(layouts), min_size=1, max_size=3)):
        order = data.draw(st.sampled_from("CF")) if "shards" not in layout else "C"
        store, dtype = MemoryStore(), data.draw(st.sampled_from(dtypes))
        values = DATA.astype("i1").astype(dtype) if dtype != "V3" else np.zeros(DATA.shape, dtype)
        config = {"config": {"order": order}} if layout.get("zarr_format") != 2 else {"order": order}
        zarr.create_array(store, data=values, **layout, **config)
        own = zarr.open_array(store, mode="r")
        with zarr_pipeline():
            pairs.append((own, zarr.open_array(store, mode="r")))

    for key in keys:
        for own, ours in pairs:
            expected = own[key]
            with zarr_pipeline():
                found = ours[key]
            assert type(found) is type(expected)
            assert_same_bits(np.asarray(found), np.asarray(expected))
            assert np.asarray(found).flags.f_contiguous == np.asarray(expected).flags.f_contiguous


@pytest.mark.parametrize("order", ["C", "F"])
def test_order_and_dtype_are_those_that_were_asked_for(order):
    for dtype in ("i2", ">f8", "M8[s]", "<U5", "O", [("a", "i4"), ("b", "f8")]):
        buffer, own = NDBuffer.empty((3, 4), dtype, order), cpu.NDBuffer.empty((3, 4), dtype, order)

        found, expected = buffer.as_ndarray_like(), own.as_ndarray_like()
        assert (found.dtype, found.shape, found.strides) == (expected.dtype, expected.shape, expected.strides)
        assert found.flags.writeable


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@pytest.mark.parametrize(
    "written",
    [write_nested_shards, lambda store, data: write(store, data, chunks=(4, 6), **checked_shards((2, 3)))],
    ids=["shards of shards", "shards with a checksum around them"],
)
def test_shards_that_zarr_decodes(written):
    store = MemoryStore()
    own = written(store, DATA)

    with zarr_pipeline():
        found, planned = zarr.open_array(store)[...], read_array(own)

    assert_same_bits(found, DATA)
    assert_same_bits(planned, DATA)


@pytest.mark.parametrize("path", ["BatchedCodecPipeline", "FusedCodecPipeline"])
def test_zarrs_own_pipelines_read_and_write_shards_of_shards(path):
    if not hasattr(zarr.core.codec_pipeline, path):
        pytest.skip("not in this version of zarr-python")
    store, expected = MemoryStore(), DATA.copy()
    write_nested_shards(store, DATA)
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{path}"}):
        array = zarr.open_array(store)

    with zarr_pipeline():
        array[1:3, 2:5] = expected[1:3, 2:5] = 77
        array.oindex[[0, 7], [1, 4]] = expected[np.ix_([0, 7], [1, 4])] = -5
        found = array[...], array[5:, 1], array.oindex[[6, 0], [3, 5]]

    assert_same_bits(found[0], expected)
    assert_same_bits(found[1], expected[5:, 1])
    assert_same_bits(found[2], expected[np.ix_([6, 0], [3, 5])])


def test_buffers_equal_those_of_zarr_and_no_others():
    class Other(NDBuffer):
        pass

    assert NDBuffer == cpu.NDBuffer
    assert cpu.NDBuffer == NDBuffer
    assert hash(NDBuffer) == hash(cpu.NDBuffer)
    assert {Other, NDBuffer, object} == {Other, cpu.NDBuffer, object}
    assert Other != cpu.NDBuffer


# ---- which buffer


def test_setting_takes_effect_in_its_block_only():
    with zarr_pipeline():
        assert (get_ndbuffer_class(), get_pipeline_class()) == (NDBuffer, CodecPipeline)
        with zarr_pipeline():
            pass
        assert (get_ndbuffer_class(), get_pipeline_class()) == (NDBuffer, CodecPipeline)
    assert get_ndbuffer_class() is cpu.NDBuffer
    assert get_pipeline_class() is not CodecPipeline


OTHER = {"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}


def names_in_force():
    return zarr.config.get("codec_pipeline.path"), zarr.config.get("ndbuffer")


def test_blocks_around_and_inside_of_another_setting_restore_what_they_have_found():
    ours = ("xarray_gpuzarr.CodecPipeline", NDBUFFER_NAME)
    before = names_in_force()

    for _ in range(2):
        with zarr_pipeline():
            with zarr.config.set(OTHER):
                with zarr_pipeline():
                    assert names_in_force() == ours
                    with zarr_pipeline():
                        pass
                    assert names_in_force() == ours
                assert names_in_force() == (OTHER["codec_pipeline.path"], NDBUFFER_NAME)
            assert names_in_force() == ours
        assert names_in_force() == before


def test_a_block_that_ends_before_one_that_began_later_leaves_the_settings_to_it():
    with zarr.config.set({"codec_pipeline.path": get_pipeline_class().__name__, **OTHER}):
        first, second = zarr_pipeline(), zarr_pipeline()
        zarr.config.set(OTHER)
        third = zarr_pipeline()
        for block in (first, second):
            block.close()
            assert get_pipeline_class() is CodecPipeline

        third.close()

        assert zarr.config.get("codec_pipeline.path") == OTHER["codec_pipeline.path"]


def test_buffers_for_gpus_stay():
    gpu = {"buffer": "zarr.buffer.gpu.Buffer", "ndbuffer": "zarr.buffer.gpu.NDBuffer"}  # what `enable_gpu` sets
    with zarr.config.set(gpu), zarr_pipeline():
        assert zarr.config.get("ndbuffer") == gpu["ndbuffer"]

    with zarr.config.set({"ndbuffer": "zarr.buffer.cpu.NDBuffer"}):
        with zarr_pipeline():
            zarr.config.set(gpu)
        assert zarr.config.get("ndbuffer") == gpu["ndbuffer"]
        zarr.config.set({"buffer": "zarr.buffer.cpu.Buffer"})


def test_the_environment_names_buffer_and_pipeline():
    """zarr-python finds them by their entry points."""
    code = "from zarr import registry; print(registry.get_ndbuffer_class(), registry.get_pipeline_class())"
    settings = {"ZARR_NDBUFFER": NDBUFFER_NAME, "ZARR_CODEC_PIPELINE__PATH": "xarray_gpuzarr.CodecPipeline"}
    environment = os.environ | settings

    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert run.stdout == "<class 'xarray_gpuzarr.NDBuffer'> <class 'xarray_gpuzarr.CodecPipeline'>\n", run.stderr
    assert "gpu" not in NDBUFFER_NAME  # where zarr-python takes a buffer for one of a GPU
