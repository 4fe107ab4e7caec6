"""With ``array.read_missing_chunks`` off, objects that are not there are zarr-python's error, at every door."""

import pickle
import re
from functools import partial

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.codec_pipeline import opened_by_both, reads_planned
from helpers.data.corpus import counting, write
from helpers.stores.fakes import drop
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore as ObstoreLocal
from zarr.codecs import ZstdCodec
from zarr.errors import ChunkNotFoundError
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from xarray_gpuzarr import GpuZarrError, batches, explain, read_array, zarr_pipeline

DATA = counting((8, 6), "f4")
LAYOUTS = {
    "sharded": {"chunks": (2, 3), "shards": (4, 3)},
    "index at the start": {"chunks": (2, 3), "shards": {"shape": (4, 3), "index_location": "start"}},
    "unsharded": {"chunks": (4, 3)},
    "unsharded raw": {"chunks": (4, 3), "compressors": None},
    "v2": {"chunks": (4, 3), "zarr_format": 2},
    "by zarr-python": {"chunks": (4, 3), "compressors": zarr.codecs.numcodecs.LZMA()},
}
STORES = {
    "memory": lambda _: MemoryStore(),
    "local": LocalStore,
    "obstore": lambda path: ObjectStore(ObstoreLocal(path, mkdir=True)),
}
REFUSING = {"read_missing_chunks": False}


def key_of(layout, y, x):
    return f"{y}.{x}" if layout == "v2" else f"c/{y}/{x}"


KEY = re.compile(r"'(c/\d/\d|\d\.\d)'")


def outcome(read, array):
    """Return the values, or the keys that the error names."""
    try:
        return read(array).tolist()
    except ChunkNotFoundError as error:
        return set(KEY.findall(str(error)))


READS = {
    "all": lambda a: a[...],
    "a corner": lambda a: a[:3, :2],
    "steps": lambda a: a[::5, ::4],
    "rows": lambda a: a.oindex[[0, 7], 1:5],
    "points": lambda a: a.vindex[[7, 0, 3], [0, 5, 5]],
    "a block": lambda a: a.blocks[1, 1],
}


@pytest.mark.every_value
@pytest.mark.parametrize("place", STORES)
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(settings.get_profile("few"))  # there are sixteen
@given(gone=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 1))))
def test_errors_are_those_of_zarr(place, layout, gone, tmp_path_factory):
    store = STORES[place](tmp_path_factory.mktemp("s"))
    write(store, DATA, **LAYOUTS[layout])
    own, ours = opened_by_both(store, config=REFUSING)
    assert outcome(READS["all"], ours) == DATA.tolist()  # and indexes are kept
    for y, x in gone:
        drop(store, key_of(layout, y, x))

    with reads_planned():
        for read in READS.values():
            assert outcome(read, ours) == outcome(read, own)


def test_chunks_that_a_shard_lacks_are_the_fill_value(store):
    zarr.create_array(store, shape=(8, 6), dtype="i4", fill_value=7, chunks=(2, 3), shards=(4, 3))[:2, :3] = 1
    _, ours = opened_by_both(store, config=REFUSING)

    with reads_planned():
        np.testing.assert_array_equal(ours[:4, :3], [[1] * 3] * 2 + [[7] * 3] * 2)
        with pytest.raises(ChunkNotFoundError, match=r"3 chunk\(s\)"):
            ours[...]


def test_a_large_chunk_that_is_decoded_as_it_is_read(local):
    data = np.arange(5_000_000, dtype="f4")
    write(local, data, chunks=(2_500_000 * 2,), compressors=ZstdCodec(level=1))
    _, ours = opened_by_both(local, config=REFUSING)

    with reads_planned():
        np.testing.assert_array_equal(ours[...], data)
        drop(local, "c/0")
        with pytest.raises(ChunkNotFoundError, match="c/0"):
            ours[...]


def test_a_chunk_that_is_back_is_not_missing(local):
    write(local, DATA, **LAYOUTS["sharded"])
    path = local.root / "c/0/0"
    with zarr_pipeline():
        array = zarr.open_array(local, config=REFUSING)
    path.rename(local.root / "aside")
    with pytest.raises(ChunkNotFoundError):
        array[...]

    (local.root / "aside").rename(path)

    with reads_planned():
        np.testing.assert_array_equal(array[...], DATA)
    assert explain(array).ours


def written(store, layout, **keywords):
    """Write a group with one array, of which two objects are missing, and return its values."""
    zarr.create_group(store, zarr_format=keywords.get("zarr_format", 3))
    dims = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}} if layout == "v2" else {"dimension_names": ["y", "x"]}
    write(store, DATA, name="a", **LAYOUTS[layout], **dims)
    for y, x in ((0, 1), (1, 1)):
        drop(store, f"a/{key_of(layout, y, x)}")
    return np.where(np.arange(6) < 3, DATA, 0)


def opened(store, **keywords):
    return xr.open_dataset(store, engine="gpuzarr", device="host", consolidated=False, **keywords)


def by_points(store):
    a = opened(store).a
    y, x = (xr.DataArray(np.arange(n), dims=dim) for n, dim in ((8, "y"), (6, "x")))
    return lambda box: a[y[box[0]], x[box[1]]].values


def pickled(array):
    return pickle.loads(pickle.dumps(array)).compute(scheduler="synchronous")


def joined(dataset):
    return np.concatenate([batch.a.data[:, 0] for batch in batches(dataset, {"y": 1}, 3)])


def of(opened, read):
    """Return what opens a store and returns what reads a box of it."""
    return lambda store: partial(read, opened(store))


DOORS = {
    "read_array": of(partial(zarr.open_array, path="a", mode="r"), partial(read_array, device="host")),
    "engine": of(opened, lambda ds, box: ds.a[box].values),
    "points": by_points,
    "dask": of(partial(opened, chunks={}), lambda ds, box: ds.a[box].compute().values),
    "dask, pickled": of(partial(opened, chunks={}), lambda ds, box: pickled(ds.a[box]).values),
    "batches": of(opened, lambda ds, box: joined(ds.isel(y=box[0], x=box[1]))),
}
"""Given a store, what reads a box of its array; the array is opened at once."""


@pytest.mark.every_value
@pytest.mark.parametrize("place", STORES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_what_is_missing(tmp_path, door, layout, place):
    store = STORES[place](tmp_path / "s")
    values = written(store, layout, zarr_format=2 if layout == "v2" else 3)
    there, not_there = (slice(None), slice(3)), (slice(None), slice(6))
    usual = DOORS[door](store)
    with zarr.config.set({"array.read_missing_chunks": False}):
        refusing = DOORS[door](store)
        np.testing.assert_array_equal(np.nan_to_num(usual(not_there)), values)  # CF masks the fill value of format 2

    np.testing.assert_array_equal(refusing(there), values[there])
    for _ in range(2):  # once nothing is known of the store, then with known indexes
        with pytest.raises(ChunkNotFoundError) as caught:
            refusing(not_there)
        assert isinstance(caught.value, GpuZarrError)
        assert any(key_of(layout, y, 1) in str(caught.value) for y in (0, 1))  # dask ends with the first task
    np.testing.assert_array_equal(np.nan_to_num(usual(not_there)), values)


HARMLESS = {
    "array.order": "F",
    "async.concurrency": 1,
    "async.timeout": 30,
    "threading.max_workers": 1,
    "array.write_empty_chunks": True,
    "codec_pipeline.batch_size": 3,
    "default_zarr_format": 2,
    "json_indent": None,
}
"""zarr-python's other settings that may be in force while something is read."""


@pytest.mark.every_value
@pytest.mark.parametrize("setting", HARMLESS)
@pytest.mark.parametrize("door", DOORS)
def test_other_settings_change_no_value(tmp_path, door, setting):
    store = STORES["local"](tmp_path / "s")
    values = written(store, "sharded", zarr_format=3)
    box = (slice(1, 7), slice(3))
    with zarr.config.set({setting: HARMLESS[setting]}):
        read = DOORS[door](store)(box)
        np.testing.assert_array_equal(read, zarr.open_array(store, path="a", mode="r")[box])

    np.testing.assert_array_equal(read, values[box])
