"""Stacked crops on the simulator: whatever decodes a chunk, in any order of work, it comes to all of its places."""

import numpy as np
import pytest
from helpers.data.corpus import counting, write
from helpers.data.stacks import numpy_stack, stacks
from helpers.simulated.reads import LAZY, SEEDS, CudaReads, limits
from helpers.simulated.simulator import SimulatedDevice
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr.cuda.axes import MAX_BLOCKS
from xarray_gpuzarr.decoders.cuda.decoding.placing import fits_kernels
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.plan.crops import Crops
from xarray_gpuzarr.plan.stack import stack_target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read import read_target, stored_array
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")

SHAPE, CHUNKS = (64, 96), (8, 16)
CODECS = {"zstd": ZstdCodec(), "gzip": GzipCodec(), "lz4": zn.LZ4(), "blosc": BloscCodec(), "raw": None}
CASTS = (Cast(dtype="<i2"), Cast(dtype="<f4", mask=(7,), scale=0.5, offset=1.0), Cast(dtype="<f8", scale=2.0))


def starts(*numbers, count, step=1):
    return Crops(start=np.asarray(numbers, np.int64), count=count, step=step)


def written(codec, *, sharded, missing=(), store=None):
    """Return an array of 8 x 6 chunks of 256 bytes, some of which do not exist, and what it holds."""
    data = counting(SHAPE).astype("<i2")
    for row, column in missing:
        data[8 * row : 8 * row + 8, 16 * column : 16 * column + 16] = 0
    shards = (32, 48) if sharded else None
    store = MemoryStore() if store is None else store
    array = write(store, data, chunks=CHUNKS, shards=shards, compressors=CODECS[codec], filters=None, fill_value=0)
    return array, data


def read_stack(stored, stack, decoder, out=None):
    return read_target(stored, stored.spec, stack_target(*stack, stored.spec.grid), decoder, out)


def values_on(device, array, stack):
    """What the consumer's stream finds."""
    result = read_stack(stored_array(array), stack, CudaReads(device).decoder)
    with device.activate():
        return result.get()


@given(
    codec=st.sampled_from([*CODECS]),
    sharded=st.booleans(),
    missing=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=20),
    stack=stacks(SHAPE),
    cast=st.sampled_from(CASTS),
    seed=st.integers(0, 2**32),
    batch_chunks=st.integers(1, 48),
)
def test_stacks_have_the_values_that_the_host_reads(codec, sharded, missing, stack, cast, **given):
    array, data = written(codec, sharded=sharded, missing=missing)
    stored, device = stored_array(array, cast), SimulatedDevice(given["seed"])

    with limits(batch_chunks=given["batch_chunks"]):
        result = read_stack(stored, stack, CudaReads(device).decoder)

    with device.activate():
        values = result.get()
    np.testing.assert_array_equal(values, read_stack(stored, stack, HostDecoder()), strict=True)
    if cast == CASTS[0]:
        np.testing.assert_array_equal(values, numpy_stack(data, *stack))
    del result
    device.check()


STACK = ([starts(3, 0, 40, 40, 60, count=4), starts(0, 50, 14, 7, 80, count=9)], 5)


@pytest.mark.parametrize("seed", SEEDS[:4])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_files_that_the_device_reads_itself(tmp_path, codec, sharded, seed):
    array, data = written(codec, sharded=sharded, missing=[(0, 0), (1, 0)], store=LocalStore(tmp_path))
    device = SimulatedDevice(seed, reads_files=True)
    stored = stored_array(array, storage="gds")

    with limits():
        result = read_stack(stored, STACK, CudaReads(device, may_decode_again=True).decoder)

    with device.activate():
        np.testing.assert_array_equal(result.get(), numpy_stack(data, *STACK), strict=True)
    assert bool(device.calls["read_file"]) == (codec in ("raw", "zstd"))


@pytest.mark.parametrize("codec", CODECS)
def test_each_chunk_is_verified_once(codec):
    array, data = written(codec, sharded=True)
    before = counters.snapshot()

    with limits(verify="all"):
        values = values_on(SimulatedDevice(LAZY), array, STACK)

    np.testing.assert_array_equal(values, numpy_stack(data, *STACK))
    counted = counters.snapshot() - before
    n_chunks = stack_target(*STACK, stored_array(array).spec.grid).n_chunks
    assert (counted.n_verified, counted.n_different) == (n_chunks, 0)


def test_a_given_array_is_filled():
    array, data = written("zstd", sharded=True, missing=[(0, 0)])
    device = SimulatedDevice(LAZY)
    decoder = CudaReads(device).decoder
    out = decoder.empty((5, 4, 9), np.dtype("i2"))

    assert read_stack(stored_array(array), STACK, decoder, out) is out
    with device.activate():
        np.testing.assert_array_equal(out.get(), numpy_stack(data, *STACK))


def n_launches(device, array, stack):
    before = device.calls["launch"]
    values_on(device, array, stack)
    return device.calls["launch"] - before


def test_crops_that_are_chunks_are_decompressed_to_their_place():
    array, data = written("lz4", sharded=True)
    device = SimulatedDevice(LAZY)
    apart = ([starts(8, 0, 40, count=8), starts(16, 32, 0, count=16)], 3)
    twice = ([starts(8, 0, 8, count=8), starts(16, 32, 16, count=16)], 3)

    with limits(batch_chunks=528):  # in one batch
        assert [n_launches(device, array, stack) for stack in (apart, apart, twice)][1:] == [0, 1]
    for stack in (apart, twice):
        np.testing.assert_array_equal(values_on(device, array, stack), numpy_stack(data, *stack))


def test_more_boxes_than_a_launch_takes_are_left_to_the_host():
    grid = ChunkGrid(shape=(2**30,), chunk_shape=(2**30,), chunks_per_shard=(1,))
    n = MAX_BLOCKS // (2**29 // 32)

    fitting, wider = (stack_target([starts(*range(k), count=2**29)], k, grid) for k in (n, n + 1))

    assert (fits_kernels(fitting), fits_kernels(wider)) == (True, False)
