"""With ``array.read_missing_chunks`` off, chunks that are not there are zarr-python's error, in its words."""

import numpy as np
import pytest
import zarr
from helpers.codec_pipeline import opened_by_both, reads_planned
from helpers.data.corpus import counting, write
from helpers.stores.fakes import drop
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore as ObstoreMemory
from zarr.codecs import ZstdCodec
from zarr.errors import ChunkNotFoundError
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from xarray_gpuzarr import explain, zarr_pipeline

DATA = counting((8, 6), "f4")
LAYOUTS = {
    "sharded": {"chunks": (2, 3), "shards": (4, 3)},
    "index at the start": {"chunks": (2, 3), "shards": {"shape": (4, 3), "index_location": "start"}},
    "unsharded": {"chunks": (4, 3)},
    "unsharded raw": {"chunks": (4, 3), "compressors": None},
    "v2": {"chunks": (4, 3), "zarr_format": 2},
}
STORES = {
    "memory": lambda _: MemoryStore(),
    "local": LocalStore,
    "obstore": lambda _: ObjectStore(ObstoreMemory()),
}
REFUSING = {"read_missing_chunks": False}


def key_of(layout, y, x):
    return f"{y}.{x}" if layout == "v2" else f"c/{y}/{x}"


def outcome(read, array):
    """Return the values, or what the error says."""
    try:
        return read(array).tolist()
    except ChunkNotFoundError as error:
        return str(error)


READS = {
    "all": lambda a: a[...],
    "a corner": lambda a: a[:3, :2],
    "steps": lambda a: a[::5, ::4],
    "rows": lambda a: a.oindex[[0, 7], 1:5],
    "points": lambda a: a.vindex[[7, 0, 3], [0, 5, 5]],
    "a block": lambda a: a.blocks[1, 1],
}


@pytest.mark.parametrize("place", STORES)
@pytest.mark.parametrize("layout", LAYOUTS)
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
