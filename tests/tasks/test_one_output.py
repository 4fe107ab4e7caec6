"""Computing a whole dask array of this engine reads its blocks into one array; everything else is plain dask."""

import pickle
import threading

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from dask.array.optimization import optimize
from dask.callbacks import Callback
from dask.core import flatten
from helpers.compare import assert_same_values
from helpers.data.corpus import GRIDS, V3_CODECS, V3_CODECS_BY_ZARR, V3_FILTERS, counting, write
from helpers.data.datasets import open_ours
from helpers.stores.fakes import RecordingStore, drop, put, take
from zarr.codecs import BytesCodec, ShardingCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.errors import CorruptChunkError
from xarray_gpuzarr.read import read, stored_array
from xarray_gpuzarr.tasks.one_output import OneOutputOptimization, Output

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated", "ignore:Numcodecs codecs", "ignore:Duplicate name")

DATA = counting((7, 5))
SHARDED = {"chunks": (2, 3), "shards": (4, 3)}
N_BLOCKS = 4


@pytest.fixture
def store():
    return RecordingStore(MemoryStore())


@pytest.fixture
def array(store):
    """A dask array of four shards, no two of them side by side in one run of memory."""
    return dask_array(store, DATA, **SHARDED)


def dask_array(store, data, name="a", **keywords):
    zarr.open_group(store, mode="a")
    written = write(store, data, name=name, dimension_names=[f"d{n}" for n in range(data.ndim)], **keywords)
    assert_same_values(written[...], data)
    return open_ours(store, chunks={}, consolidated=False)[name].data


def blocks_of(compute):
    """Call `compute` and return its result and the blocks that tasks gave while it ran."""
    blocks = []

    def keep(_key, value, *_):
        if isinstance(value, np.ndarray):
            blocks.append(value)

    with Callback(posttask=keep):
        result = compute()
    return result, [block for block in blocks if block is not result]


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_blocks_are_parts_of_the_result(array, scheduler):
    result, blocks = blocks_of(lambda: array.compute(scheduler=scheduler))

    assert len(blocks) == N_BLOCKS
    assert all(block.base is result for block in blocks)
    assert result.flags.carray
    assert result.flags.owndata


@pytest.mark.parametrize("grid", GRIDS)
def test_grids(store, grid):
    shape, chunks, shards = GRIDS[grid]

    array = dask_array(store, counting(shape), chunks=chunks, shards=shards or None)

    assert_same_values(np.asarray(array), counting(shape))


@pytest.mark.parametrize("codecs", [*V3_CODECS, *V3_FILTERS, *V3_CODECS_BY_ZARR])
def test_codecs(store, codecs):
    array = dask_array(store, DATA, chunks=(4, 3), **(V3_CODECS | V3_FILTERS | V3_CODECS_BY_ZARR)[codecs])

    result, blocks = blocks_of(array.compute)

    assert_same_values(result, DATA)
    assert {id(block.base) for block in blocks} == {id(result)}


def test_array_that_only_zarr_can_read(store):
    inner = ShardingCodec(chunk_shape=(2, 3), codecs=[BytesCodec()])
    nested = ShardingCodec(chunk_shape=(2, 6), codecs=[inner])
    data = counting((8, 12))

    result, blocks = blocks_of(dask_array(store, data, chunks=(4, 6), serializer=nested, compressors=None).compute)

    assert_same_values(result, data)
    assert {id(block.base) for block in blocks} == {id(result)}


def test_missing_shard_is_fill_value(store, array):
    drop(store, "a/c/1/0")

    expected = DATA.copy()
    expected[4:, :3] = 0
    assert_same_values(array.compute(), expected)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda a: a.isel(d0=slice(None, None, -1)), id="backwards"),
        pytest.param(lambda a: a.isel(d0=2), id="int"),
        pytest.param(lambda a: a.isel(d1=[4, 0, 0]), id="list"),
        pytest.param(lambda a: a.isel(d0=slice(1, 7, 2), d1=slice(1, 4)), id="steps"),
        pytest.param(lambda a: a.isel(d0=("p", [0, 5]), d1=("p", [1, 4])), id="points"),
        pytest.param(lambda a: a.transpose("d1", "d0"), id="transpose"),
    ],
)
def test_chunking_after_a_lazy_selection(store, array, change):
    lazy = open_ours(store, consolidated=False)["a"]

    chunked = change(lazy).chunk(2).data

    assert_same_values(chunked.compute(), change(xr.DataArray(DATA, dims=("d0", "d1"))).values)


def test_blocks_have_keys_of_one_computation(array):
    """A cache of blocks, such as dask's opportunistic one, must not find what the user may since have changed."""
    keys = []
    for _ in range(2):
        with Callback(pretask=lambda key, *_: keys.append(key)):
            array.compute()

    blocks = {key for key in keys if isinstance(key, tuple)}
    assert len(blocks) == 2 * N_BLOCKS
    assert not blocks & set(flatten(array.__dask_keys__()))


def test_one_delayed_graph_computed_twice_at_once(array):
    delayed = dask.delayed(lambda values: values)(array)
    results = []
    threads = [threading.Thread(target=lambda: results.append(delayed.compute())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not np.shares_memory(*results)
    for result in results:
        assert_same_values(result, DATA)


@pytest.mark.parametrize("wanted", ["array first", "sum first", "twice"])
def test_blocks_that_others_need_too_are_read_once(store, array, wanted):
    store.requests.clear()
    collections = {
        "array first": (array, array.sum()),
        "sum first": (array.sum(), array),
        "twice": (array, array),
    }[wanted]

    results = dask.compute(*collections)

    assert sorted(store.opened) == ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1"]
    for collection, result in zip(collections, results, strict=True):
        assert_same_values(result, DATA if collection is array else DATA.sum())


def test_several_arrays_at_once(store, array):
    other = dask_array(store, DATA * 2, name="b", **SHARDED)

    (first, second), blocks = blocks_of(lambda: dask.compute(array, other))

    assert_same_values(first, DATA)
    assert_same_values(second, DATA * 2)
    assert {id(block.base) for block in blocks if block.shape != DATA.shape} == {id(first), id(second)}


def test_persisted_blocks_have_memory_of_their_own(array):
    persisted = array.persist()
    blocks = dask.compute(*persisted.to_delayed().ravel())

    assert type(persisted) is da.Array
    assert all(block.base is None or block.base.nbytes == block.nbytes for block in blocks)
    assert_same_values(persisted.compute(), DATA)


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_pickled_array_is_plain_dask(tmp_path, pickler):
    array = dask_array(tmp_path / "a.zarr", DATA, **SHARDED)

    restored = pickler.loads(pickler.dumps(array))

    assert (type(restored), restored.name, restored.chunks) == (da.Array, array.name, array.chunks)
    assert_same_values(restored.compute(), DATA)


def test_nothing_of_it_reaches_another_process():
    assert pickle.loads(pickle.dumps(OneOutputOptimization())) is optimize
    assert pickle.loads(pickle.dumps(Output((3,), np.dtype("i4")))).array is None


def test_optimization_switched_off(array):
    assert_same_values(array.compute(optimize_graph=False), DATA)
    with dask.config.set(array_optimize=False):
        assert_same_values(array.compute(), DATA)
    with dask.config.set({"optimization.fuse.active": False}):
        assert_same_values(array.compute(), DATA)


def test_optimization_of_the_user_is_used(array):
    calls = []

    def configured(graph, keys, **keywords):
        calls.append(keys)
        return optimize(graph, keys, **keywords)

    with dask.config.set(array_optimize=configured):
        assert_same_values(array.compute(), DATA)
    assert len(calls) == 1


def test_optimized_array_computes_more_than_once(array):
    (optimized,) = dask.optimize(array)

    first, second = optimized.compute(), optimized.compute()

    assert not np.shares_memory(first, second)
    assert_same_values(first, DATA)


def test_lock_is_taken_by_every_read(store, array):
    lock = threading.Lock()
    lazy = open_ours(store, consolidated=False)["a"]
    lock.acquire()
    computed = threading.Thread(target=lazy.variable.chunk(2, lock=lock).data.compute)

    computed.start()
    computed.join(0.2)

    assert computed.is_alive()
    lock.release()
    computed.join()


def test_failed_read_is_that_error_and_the_next_one_works(store, array):
    good = take(store, "a/c/1/1")
    put(store, "a/c/1/1", b"\xff" * 8 + good[8:])
    with pytest.raises(CorruptChunkError, match="a/c/1/1"):
        array.compute()
    put(store, "a/c/1/1", good)

    assert_same_values(array.compute(), DATA)


def test_decoder_leaves_an_output_alone_that_does_not_fit():
    array = write(MemoryStore(), DATA, **SHARDED)
    other_shape, other_dtype = np.zeros((5, 7), "i4"), np.zeros((7, 5), "i8")

    for out in (other_shape, other_dtype):
        assert_same_values(read(stored_array(array), ..., HostDecoder(), out), DATA)
        assert not out.any()
