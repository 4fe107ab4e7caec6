"""Plain zarr with this package's pipeline gives what zarr-python's own gives, whatever is stored and selected."""

from itertools import cycle, product

import numcodecs
import numpy as np
import pytest
import zarr
from helpers.codec_pipeline import assert_same_reads, opened_by_both, reads_planned
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.data.selections import all_axis_keys, points
from helpers.every_pair import usually
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import zarr_pipeline

SHAPE = (7, 6, 5)
DATA = counting(SHAPE)
DATA[:4, :3] = 0  # chunks and a shard that are never written

LAYOUTS = {
    "sharded zstd": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "compressors": ZstdCodec()},
    "sharded raw": {"chunks": (1, 3, 5), "shards": (4, 6, 5), "compressors": None},
    "sharded delta": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "filters": zn.Delta(dtype="<i4")},
    "sharded transposed": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "filters": TransposeCodec(order=(2, 0, 1))},
    "big-endian": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "serializer": BytesCodec(endian="big")},
    "unsharded raw": {"chunks": (3, 4, 2), "compressors": None},
    "order F in memory": {"chunks": (3, 4, 2), "config": {"order": "F"}},
    "v2 keys": {"chunks": (3, 4, 2), "chunk_key_encoding": {"name": "v2", "separator": "."}},
    "dots": {"chunks": (3, 4, 2), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "v2 order F": {"chunks": (3, 4, 2), "zarr_format": 2, "order": "F"},
    "v2 lz4": {"chunks": (3, 4, 2), "zarr_format": 2, "compressors": numcodecs.LZ4()},
    "v2 slashes": {
        "chunks": (3, 4, 2),
        "zarr_format": 2,
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
}


PLACES = usually(
    [*product(LAYOUTS, ["memory"]), *zip(LAYOUTS, cycle(["local", "root"]))],
    full=[*product(LAYOUTS, ["memory", "local", "root"])],
)
"""Each layout in memory and in files: there in a group or at the root of the store."""


@pytest.fixture(scope="module", params=PLACES, ids=" in ".join)
def arrays(request, tmp_path_factory):
    """(The array opened with zarr-python's pipeline, with this package's)."""
    layout, place = request.param
    store = MemoryStore() if place == "memory" else LocalStore(tmp_path_factory.mktemp("s"))
    written = write(store, DATA, **LAYOUTS[layout], **({} if place == "root" else {"name": "a/b"}))
    return opened_by_both(store, path=written.path, config=LAYOUTS[layout].get("config"))


basic = st.tuples(
    *(
        st.one_of(
            st.integers(-n, n - 1),
            st.builds(slice, st.none() | st.integers(-n, n), st.none() | st.integers(-n, n), st.integers(1, n + 1)),
        )
        for n in SHAPE
    )
)


@pytest.mark.every_value
@given(key=basic)
def test_basic_selections(arrays, key):
    with reads_planned():
        assert_same_reads(arrays, lambda a: a[key])


def forwards(keys):
    """Whether zarr-python takes the slices of a selection: none goes backwards."""
    return not any(isinstance(key, slice) and key.step is not None and key.step < 1 for key in keys)


@pytest.mark.every_value
@given(key=all_axis_keys(SHAPE).filter(forwards))
def test_orthogonal_selections(arrays, key):
    with reads_planned():
        assert_same_reads(arrays, lambda a: a.oindex[key])


@pytest.mark.every_value
@given(key=points(SHAPE))
def test_coordinates(arrays, key):
    with reads_planned():
        assert_same_reads(arrays, lambda a: a.vindex[key])


@pytest.mark.every_value
@given(seed=st.integers(0, 99), density=st.sampled_from([0.0, 0.02, 0.5, 1.0]))
def test_masks(arrays, seed, density):
    mask = np.random.default_rng(seed).random(SHAPE) < density

    with reads_planned():
        assert_same_reads(arrays, lambda a: a.vindex[mask])


@pytest.mark.parametrize("key", [(0, 0, 0), (1, slice(1, 2), -1), (slice(None), 0), ()])
def test_blocks(arrays, key):
    with reads_planned():
        assert_same_reads(arrays, lambda a: a.blocks[key])


@pytest.mark.parametrize("key", [..., (), (3,), (3, 1, 2), (slice(2, 2),), (slice(None), np.int64(4))])
def test_results_are_of_the_type_that_zarr_gives(arrays, key):
    own, ours = arrays[0][key], arrays[1][key]

    assert type(ours) is type(own)
    assert_same_bits(np.asarray(ours), np.asarray(own))


def test_memory_order_is_the_one_asked_for(arrays):
    own, ours = arrays[0][...], arrays[1][...]

    assert (ours.flags.c_contiguous, ours.flags.f_contiguous) == (own.flags.c_contiguous, own.flags.f_contiguous)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_without_axes(zarr_format):
    store = MemoryStore()
    own = zarr.create_array(store, shape=(), dtype="f8", zarr_format=zarr_format, fill_value=2.5)
    with zarr_pipeline():
        ours = zarr.open_array(store)

    with reads_planned():
        assert ours[()] == 2.5
        own[()] = 7
        assert ours[()] == 7
        assert ours[...].shape == ()


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", ">i4", "<f2", ">f8", "c8"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_every_kind_of_number(dtype, zarr_format):
    store, data = MemoryStore(), counting((9, 4)).astype(dtype)
    zarr.create_array(store, data=data, chunks=(4, 3), zarr_format=zarr_format)

    with reads_planned():
        assert_same_reads(opened_by_both(store), lambda a: a[1:, ::2])


def test_shards_within_shards():
    store = MemoryStore()
    inner = ShardingCodec(chunk_shape=(1, 3, 5), codecs=[BytesCodec()])
    write(store, DATA, chunks=(4, 6, 5), serializer=inner, compressors=None)

    with reads_planned():
        assert_same_reads(opened_by_both(store), lambda a: a[2:5, 1, ::3])
