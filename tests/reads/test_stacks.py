"""Crops that are stacked: the right elements, each chunk read and decoded once, and honest errors."""

from itertools import product

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import GRIDS, V2_CODECS, V2_FILTERS, V3_CODECS, V3_CODECS_BY_ZARR, V3_FILTERS, counting, write
from helpers.data.damage import changed_chunk, damaged, explained
from helpers.data.stacks import numpy_stack, stacks
from helpers.stores.fakes import RecordingStore
from hypothesis import given, settings
from zarr.codecs import BytesCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import CorruptChunkError
from xarray_gpuzarr.plan.crops import Crops
from xarray_gpuzarr.plan.stack import stack_target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read import read, read_target, reading, stored_array
from xarray_gpuzarr.stored.cf import Cast

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.both_ways,
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]


def read_stack(array, axes, n_samples, cast=None, out=None):
    stored = stored_array(array, cast)
    target = stack_target(axes, n_samples, stored.spec.grid)
    if out is None:  # memory that NumPy uses again might hold what is expected
        out = np.full(target.shape, 99, stored.cast.dtype)
    return read_target(stored, stored.spec, target, reading.decoder_for("host"), out)


def starts(*numbers, count, step=1):
    return Crops(start=np.asarray(numbers, np.int64), count=count, step=step)


some = settings(max_examples=settings().max_examples // 2)
"""Of one layout, of which there are many."""


def expected_stack(array, axes, n_samples):
    """What zarr-python reads, cropped and stacked by NumPy."""
    return np.ascontiguousarray(numpy_stack(np.asarray(array[...]), axes, n_samples))


SHAPE = (7, 6, 5)
DATA = counting(SHAPE)
DATA[:4, :3] = 0  # chunks and a shard that are never written

LAYOUTS = {
    "sharded zstd": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "compressors": ZstdCodec()},
    "sharded raw": {"chunks": (1, 3, 5), "shards": (4, 6, 5), "compressors": None},
    "sharded delta": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "filters": zn.Delta(dtype="<i4")},
    "unsharded raw": {"chunks": (3, 4, 2), "compressors": None},
    "unsharded zstd": {"chunks": (1, 6, 2), "compressors": ZstdCodec()},
    "big-endian": {"chunks": (2, 3, 5), "serializer": BytesCodec(endian="big"), "compressors": None},
    "transposed": {"chunks": (2, 3, 5), "filters": TransposeCodec(order=(1, 2, 0))},
    "v2 order F": {"chunks": (3, 4, 2), "zarr_format": 2, "order": "F"},
    "by zarr-python": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "compressors": zn.BZ2(level=1)},
    "one shard": {"chunks": (7, 6, 5), "shards": (7, 6, 5)},
}
CASTS = {
    "as stored": None,
    "wider": Cast(dtype="<f8"),
    "masked and scaled": Cast(dtype="<f4", mask=(7.0,), scale=0.5, offset=-2.0),
}


@pytest.fixture(scope="module", params=[*LAYOUTS])
def stored(request):
    """The same array in every layout."""
    return write(MemoryStore(), DATA, name="t", **LAYOUTS[request.param])


@pytest.mark.parametrize("cast", CASTS)
def test_values_are_those_of_a_read_of_everything(stored, cast):
    everything = read(stored_array(stored, CASTS[cast]), ..., reading.decoder_for("host"))

    @some
    @given(stacks(SHAPE))
    def check(stack):
        found = read_stack(stored, *stack, CASTS[cast])
        np.testing.assert_array_equal(found, numpy_stack(everything, *stack), strict=True)

    check()


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
def test_arrays_of_every_shape(grid, sharded):
    shape, chunks, shards = GRIDS[grid]
    data = counting(shape, "u2")
    array = write(MemoryStore(), data, chunks=chunks, shards=shards if sharded and shape else None)

    @some
    @given(stacks(shape))
    def check(stack):
        assert_same_bits(read_stack(array, *stack), np.ascontiguousarray(numpy_stack(data, *stack)))

    check()


CHAINS = {f"v3 {name}": keywords for name, keywords in (V3_CODECS | V3_FILTERS | V3_CODECS_BY_ZARR).items()}
CHAINS |= {f"v2 {name}": {"zarr_format": 2} | keywords for name, keywords in (V2_CODECS | V2_FILTERS).items()}
CROPS = [starts(1, 0, 5, 5, 2, 0, 4, count=4), starts(3, 0, 7, 7, 6, 8, 0, count=5)]
"""Of (9, 13): across borders, on them, twice the same."""


@pytest.mark.every_value
@pytest.mark.parametrize(
    ("chain", "shards"), [*product(CHAINS, [None]), *((chain, (8, 6)) for chain in CHAINS if chain.startswith("v3"))]
)
@pytest.mark.doubtful_frames
def test_every_chain_of_codecs(chain, shards):
    data = counting((9, 13))
    data[4:8, :6] = 0
    array = write(MemoryStore(), data, chunks=(4, 3), shards=shards, **CHAINS[chain])

    assert_same_bits(read_stack(array, CROPS, 7), expected_stack(array, CROPS, 7))


def test_more_axes_than_kernels_have():
    array = write(MemoryStore(), counting((2, 3) * 4), chunks=(1, 2) * 4)
    axes = [starts(0, 1, count=1), starts(1, 0, count=2)] * 4

    assert_same_bits(read_stack(array, axes, 2), expected_stack(array, axes, 2))


CHUNK_LAYOUTS = {"sharded": {"chunks": (4, 4), "shards": (8, 8)}, "unsharded": {"chunks": (4, 4)}}


@pytest.mark.parametrize("layout", CHUNK_LAYOUTS)
@pytest.mark.parametrize("store", ["memory", "local"], indirect=True)
def test_chunks_that_crops_share_are_decoded_once(store, layout):
    array = write(store, counting((16, 16)), name="t", compressors=ZstdCodec(), **CHUNK_LAYOUTS[layout])
    axes = [starts(3, 2, 4, 3, 9, count=3), starts(1, 0, 5, 1, 9, count=4)]
    before = counters.snapshot()

    read = read_stack(array, axes, 5)

    counted = counters.snapshot() - before
    assert_same_bits(read, expected_stack(array, axes, 5))
    assert counted.n_reads == 1
    assert counted.decoded_nbytes == (2 * 3 + 1) * (4 * 4 * 4)  # rows 2 to 6 by columns 0 to 8, and 9 to 12 of either


def test_no_samples_read_nothing():
    store = RecordingStore(MemoryStore())
    array = write(store, counting((12, 4)), name="t", chunks=(3, 4), shards=(6, 4))
    store.requests.clear()

    assert_same_bits(read_stack(array, [starts(count=3), slice(None)], 0), np.empty((0, 3, 4), "i4"))
    assert_same_bits(read_stack(array, [starts(0, 5, count=0), slice(None)], 2), np.empty((2, 0, 4), "i4"))
    assert store.requests == []


@pytest.mark.parametrize("layout", ["sharded zstd", "unsharded raw", "big-endian"])
@pytest.mark.host_decoder
def test_crops_fill_memory_of_any_layout(layout):
    array = write(MemoryStore(), DATA, **LAYOUTS[layout])
    axes = [starts(0, 5, 2, count=2), starts(3, 0, 3, count=3), slice(None)]
    memory = np.full((5, 3, 2, 6), -1, "i4")
    out = memory[::-1, :, :, ::2].transpose(1, 2, 3, 0)

    read = read_stack(array, axes, 3, out=out)

    assert read is out
    np.testing.assert_array_equal(out, expected_stack(array, axes, 3))
    assert (memory[..., 1::2] == -1).all()


@pytest.mark.parametrize("codecs", ["zstd", "bytes", "blosc-lz4-shuffle"])
@pytest.mark.doubtful_frames
def test_damaged_chunk_is_named(memory, codecs):
    array = damaged(memory, changed_chunk(lambda chunk: chunk[: len(chunk) // 2]), **V3_CODECS[codecs])

    with explained(CorruptChunkError, "'/a/t'", "a/t/c/0/0", "chunk (1, 1)"):
        read_stack(array, [starts(4, 1, 3, count=2), starts(1, 2, 5, count=3)], 3)


N = 4_200_000
"""Elements of a chunk of 16.8 MB, which the host decodes as it is read."""


@pytest.mark.every_value
@pytest.mark.parametrize("layout", [{"chunks": (N,), "shards": (4 * N,)}, {"chunks": (N,)}])
def test_large_chunks(layout, tmp_path):
    array = zarr.create_array(LocalStore(tmp_path), shape=(4 * N,), dtype="i4", fill_value=5, **layout)
    data = np.full(4 * N, 5, "i4")
    data[: 2 * N] = np.arange(2 * N) // 100
    array[: 2 * N] = data[: 2 * N]
    crops = [starts(N, 0, 2 * N - 9, 2 * N, count=N)]

    assert_same_bits(read_stack(array, crops, 4), numpy_stack(data, crops, 4))
