"""Selections: the right elements, and no more bytes than they need."""

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits, assert_same_values
from helpers.data.corpus import counting, write
from helpers.data.selections import all_axis_keys, numpy_outer, points
from helpers.older_versions import needs_selections_of_selections
from helpers.stores.fakes import RecordingStore, take
from helpers.stores.shards import index_entries
from hypothesis import given
from hypothesis import strategies as st
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.codecs import BytesCodec, ShardingCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import SelectionError, read_array
from xarray_gpuzarr.process import fetch_options as options
from xarray_gpuzarr.process.fetch_options import FetchOptions

pytestmark = [pytest.mark.every_decoder, pytest.mark.both_ways]

SHAPE = (7, 6, 5)
DATA = counting(SHAPE)
DATA[:4, :3] = 0  # chunks and a shard that are never written
DIMS = ("z", "y", "x")

LAYOUTS = {
    "sharded zstd": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "compressors": ZstdCodec()},
    "sharded raw": {"chunks": (1, 3, 5), "shards": (4, 6, 5), "compressors": None},
    "sharded delta": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "filters": zn.Delta(dtype="<i4")},
    "unsharded raw": {"chunks": (3, 4, 2), "compressors": None},
    "v2 order F": {"chunks": (3, 4, 2), "zarr_format": 2, "order": "F"},
    "one shard": {"chunks": (7, 6, 5), "shards": (7, 6, 5)},
}


@pytest.fixture(scope="module", params=[*LAYOUTS])
def stored(request):
    """The same array in every layout."""
    return write(MemoryStore(), DATA, name="t", **LAYOUTS[request.param])


@pytest.fixture(scope="module", params=[*LAYOUTS])
def lazy(request, tmp_path_factory):
    """A lazily opened variable of every layout, in files."""
    path = tmp_path_factory.mktemp("lazy") / "s.zarr"
    keywords = LAYOUTS[request.param]
    zarr.create_group(path, zarr_format=keywords.get("zarr_format", 3))
    named = (
        {"attributes": {"_ARRAY_DIMENSIONS": list(DIMS)}} if "zarr_format" in keywords else {"dimension_names": DIMS}
    )
    write(LocalStore(path), DATA, name="t", **keywords, **named)
    options = {"consolidated": False, "device": "host", "use_zarr_fill_value_as_mask": False}
    return xr.open_dataset(path, engine="gpuzarr", **options)["t"]


IN_MEMORY = xr.DataArray(DATA, dims=DIMS)


@pytest.mark.every_value
@given(all_axis_keys(SHAPE))
def test_read_array_selects_axis_by_axis(stored, key):
    read = read_array(stored, key, device="host")

    assert_same_bits(np.asarray(read), numpy_outer(DATA, key))


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(..., id="ellipsis"),
        pytest.param((), id="nothing"),
        pytest.param(slice(None, None, -1), id="reversed"),
        pytest.param((..., -1), id="last"),
        pytest.param((slice(5, 1, -3), ..., slice(0, 0)), id="empty"),
        pytest.param((3, 2, 1), id="one element"),
    ],
)
def test_read_array_fills_up_what_is_left_out(stored, key):
    assert_same_bits(read_array(stored, key, device="host"), np.asarray(DATA[key]))


@pytest.mark.every_value
@given(all_axis_keys(SHAPE))
def test_lazy_variable_selects_axis_by_axis(lazy, key):
    picked = lazy.isel(dict(zip(DIMS, key, strict=True)))

    assert_same_values(picked.values, numpy_outer(DATA, key))


@pytest.mark.every_value
@needs_selections_of_selections
@given(all_axis_keys(SHAPE), st.data())
def test_selections_of_lazy_selections(lazy, key, data):
    first = lazy.isel(dict(zip(DIMS, key, strict=True)))
    again = data.draw(all_axis_keys(first.shape))

    second = first.isel(dict(zip(first.dims, again, strict=True)))

    assert_same_values(second.values, numpy_outer(numpy_outer(DATA, key), again))


@pytest.mark.parametrize("backwards", [slice(0, 0, -1), slice(2, 5, -1), slice(0, None, -1), slice(3, 3)])
def test_lazy_variable_takes_backward_slices_of_nothing_or_one(lazy, backwards):
    assert_same_values(lazy.isel(z=backwards).values, IN_MEMORY.isel(z=backwards).values)


@pytest.mark.every_value
@given(points(SHAPE))
def test_lazy_variable_selects_points(lazy, coordinates):
    dims = ("a", "b")[: coordinates[0].ndim]
    indexers = {d: (dims, c) for d, c in zip(DIMS, coordinates, strict=True)}

    assert_same_values(lazy.isel(indexers).values, IN_MEMORY.isel(indexers).values)


def test_points_of_a_lazy_selection(lazy):
    indexers = {"z": ("p", [0, 2, 2, -1]), "x": ("p", [1, 0, 1, -1])}

    picked = lazy.isel(z=slice(None, None, -2), y=[5, 0]).isel(indexers)

    assert_same_values(picked.values, IN_MEMORY.isel(z=slice(None, None, -2), y=[5, 0]).isel(indexers).values)


@pytest.mark.parametrize("order", [("x", "y", "z"), ("y", "z", "x")])
def test_lazy_variable_transposes(lazy, order):
    turned = lazy.transpose(*order).isel(x=slice(1, 4))

    assert_same_values(turned.values, IN_MEMORY.transpose(*order).isel(x=slice(1, 4)).values)


def test_lazy_variable_is_not_read_by_looking_at_it():
    store = RecordingStore(MemoryStore())
    ds = opened(store, chunks=(2, 3, 2), shards=(4, 3, 4))

    assert "t" in repr(ds.isel(z=slice(2)))
    assert (ds["t"].shape, ds["t"].dtype, ds["t"].nbytes) == (SHAPE, DATA.dtype, DATA.nbytes)
    assert store.requests == []


@pytest.mark.parametrize("key", [7, -8, (0, 0, 0, 0), [0, 7], 1.5, (slice(None), [True])])
def test_selection_outside_the_array_is_refused(stored, key):
    with pytest.raises(SelectionError, match="does not fit"):
        read_array(stored, key, device="host")


@pytest.mark.parametrize("chunks", [{"chunks": (2, 6)}, {"chunks": (2, 3), "shards": (4, 6)}])
def test_empty_selection_reads_nothing(chunks):
    store = RecordingStore(MemoryStore())
    array = write(store, counting((8, 6)), name="t", **chunks)
    store.requests.clear()

    assert_same_bits(read_array(array, (slice(3, 3), [0, 5]), device="host"), np.empty((0, 2), "i4"))
    assert store.requests == []


def opened(store, data=DATA, **keywords):
    zarr.create_group(store, overwrite=True)
    write(store, data, name="t", dimension_names=DIMS[-data.ndim :], **keywords)
    store.requests.clear()
    return xr.open_dataset(store, engine="gpuzarr", consolidated=False, device="host")


N_CHUNKS, CHUNK_NBYTES = 16, 256 * 1024
INDEX_NBYTES = 16 * 16 + 4
STEP = CHUNK_NBYTES // 8


@pytest.fixture(scope="module")
def big():
    """One shard of 16 raw chunks of 256 KiB each, in a store that records what is asked of it."""
    store = RecordingStore(MemoryStore())
    data = np.arange(N_CHUNKS * CHUNK_NBYTES // 8, dtype="i8")
    zarr.create_group(store)
    layout = {"chunks": (STEP,), "shards": data.shape, "compressors": None, "dimension_names": ["x"]}
    array = write(store, data, name="t", **layout)
    return store, array, data


def chunk_range(store, first, last=None):
    """(key, first byte, end) of neighbouring chunks, as the index says."""
    entries = index_entries(take(store, "t/c/0"), N_CHUNKS)
    offset, nbytes = entries[first if last is None else last]
    return ("t/c/0", entries[first][0], offset + nbytes)


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        pytest.param(slice(5 * STEP, 5 * STEP + 1), [(5, 5)], id="one element, one chunk"),
        pytest.param(slice(5 * STEP, 6 * STEP), [(5, 5)], id="one chunk"),
        pytest.param(slice(5 * STEP - 1, 6 * STEP + 1), [(4, 6)], id="neighbours are one request"),
        pytest.param([0, 15 * STEP], [(0, 0), (15, 15)], id="far apart are two"),
        pytest.param([0, 2 * STEP], [(0, 0), (2, 2)], id="a gap is skipped while requests are few"),
        pytest.param(slice(None, STEP, None), [(0, 0)], id="the first chunk"),
        pytest.param(slice(6 * STEP, None, -STEP), [(0, 3), (4, 6)], id="backwards, cut at 1 MiB"),
    ],
)
@pytest.mark.host_decoder
def test_only_touched_chunks_are_requested(big, selection, wanted):
    store, array, data = big
    expected = [chunk_range(store, *pair) for pair in wanted]
    store.requests.clear()

    read = read_array(array, selection, device="host")

    assert store.ranges == expected
    assert_same_bits(read, data[selection])


@pytest.mark.parametrize(
    ("selection", "wanted"),
    [
        pytest.param([0, 2 * STEP], [(0, 2)], id="a small gap is read over"),
        pytest.param([0, 5 * STEP], [(0, 5)], id="a gap of 1 MiB is read over"),
        pytest.param([0, 6 * STEP], [(0, 0), (6, 6)], id="a wider one is not"),
        pytest.param(slice(6 * STEP, None, -STEP), [(0, 6)], id="backwards"),
    ],
)
@pytest.mark.host_decoder
def test_gaps_are_read_over_as_asked_for(big, selection, wanted, monkeypatch):
    store, array, data = big
    asked_for = FetchOptions(max_gap_nbytes=1024 * 1024, max_request_nbytes=4 * 1024 * 1024)
    monkeypatch.setattr(options.in_force, "options", asked_for)
    expected = [chunk_range(store, *pair) for pair in wanted]
    store.requests.clear()

    read = read_array(array, selection, device="host")

    assert store.ranges == expected
    assert_same_bits(read, data[selection])


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(slice(None), id="everything"),
        pytest.param(slice(None, None, STEP), id="one element of every chunk"),
        pytest.param(slice(8 * STEP), id="half of the chunks"),
        pytest.param(slice(None, None, -STEP), id="backwards"),
    ],
)
@pytest.mark.host_decoder
def test_most_of_a_small_shard_is_one_request_for_all_of_it(big, selection, monkeypatch):
    store, array, data = big
    monkeypatch.setattr(options.in_force, "options", FetchOptions(max_request_nbytes=1024 * 1024 + INDEX_NBYTES // 4))
    store.requests.clear()

    read = read_array(array, selection, device="host")

    assert store.requests == [("t/c/0", None)]
    assert_same_bits(read, data[selection])


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_a_small_shard_is_asked_for_with_its_index_at_either_end(index_location):
    store = RecordingStore(MemoryStore())
    data = np.pad(counting((5, 7), "f4"), ((3, 4), (2, 9)))
    shards = {"shape": (4, 6), "index_location": index_location}
    array = write(store, data, name="t", chunks=(2, 3), shards=shards)
    store.requests.clear()

    assert_same_bits(read_array(array, device="host"), data)

    assert {wanted for _, wanted in store.requests} == {None}


@pytest.mark.host_decoder
def test_indexes_are_asked_for_ahead_but_not_all_at_once():
    store = RecordingStore(MemoryStore())
    array = write(store, counting((400,)), name="t", chunks=(1,), shards=(4,))
    store.requests.clear()

    read_array(array, slice(None, None, 4), device="host")

    kinds = [type(wanted) for _, wanted in store.requests]
    n_ahead = kinds.index(RangeByteRequest)
    assert 2 <= n_ahead <= 40
    assert kinds.count(SuffixByteRequest) == 100


def test_points_request_only_their_chunks(big):
    store, _, data = big
    ds = xr.open_dataset(store, engine="gpuzarr", consolidated=False, device="host")
    expected = [chunk_range(store, 1), chunk_range(store, 9)]
    store.requests.clear()

    picked = ds["t"].isel(x=("p", [9 * STEP, STEP + 3, STEP + 1]))

    assert_same_values(picked.values, data[[9 * STEP, STEP + 3, STEP + 1]])
    assert store.ranges == expected


def test_sharding_codec_with_one_chunk_a_shard_reads_the_right_shards(store):
    sharding = ShardingCodec(chunk_shape=(3, 2), codecs=[BytesCodec(), ZstdCodec()])
    data = counting((7, 5))
    array = write(store, data, chunks=(3, 2), serializer=sharding, compressors=None)

    assert_same_bits(read_array(array, (slice(2, 7), [4, 0]), device="host"), data[2:7][:, [4, 0]])
