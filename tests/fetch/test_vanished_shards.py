"""Shards that are deleted while they are read: an error, and the fill value once no index of theirs is known."""

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.data.damage import explained
from helpers.stores.mirrors import LONG_AGO, Mirrors, Node
from helpers.stores.remote import CLIENTS
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import StoreReadError, read_array, zarr_pipeline
from xarray_gpuzarr.fetch import index_cache, shard_indexes, version_conflicts

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

DATA = counting((16, 12), "f4")
LAYOUT = {"chunks": (2, 3), "shards": (8, 12), "compressors": None}
ONE_CHUNK = (slice(2, 4), slice(3, 6))
WITHOUT = np.concatenate([np.zeros((8, 12), "f4"), DATA[8:]])
SHARD = "bucket/s.zarr/t/c/0/0"


@pytest.fixture(autouse=True)
def nothing_known():
    for known in (index_cache.cache, version_conflicts.care_by_store):
        known.clear()


def served():
    memory = MemoryStore()
    write(memory, DATA, name="t", **LAYOUT)
    files = {f"bucket/s.zarr/{key}": buffer.to_bytes() for key, buffer in memory._store_dict.items()}
    return Node(files, tag=lambda path: f'"{path[-3:]}"', modified=LONG_AGO)


def read_chunk(store, device="host"):
    return read_array(zarr.open_array(store, path="t", mode="r"), ONE_CHUNK, device=device)


@pytest.mark.every_decoder
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("is_known", [False, True], ids=["index is read", "index is known"])
def test_a_shard_that_vanishes_after_its_index_was_read_is_an_error(client, is_known):
    node = served()
    with Mirrors([node], lambda *_: 0) as server:
        store = CLIENTS[client](server.url, "bucket/s.zarr")
        if is_known:
            assert_same_bits(read_chunk(store), DATA[ONE_CHUNK])
        n_answered = server.n_of_data + (not is_known)

        def delete(request):
            if request == n_answered:
                del node.files[SHARD]

        server.before = delete

        with explained(StoreReadError, "shard 't/c/0/0' of array '/t' has disappeared"):
            read_chunk(store)
        server.before = lambda _: None
        assert_same_bits(read_chunk(store), WITHOUT[ONE_CHUNK])


@pytest.mark.every_decoder
def test_a_local_shard_that_vanishes_after_its_index_was_read_is_an_error(tmp_path, monkeypatch):
    write(LocalStore(tmp_path), DATA, name="t", **LAYOUT)
    decode = shard_indexes.decode_shard_index

    def decode_then_delete(*args, **keywords):
        (tmp_path / "t/c/0/0").unlink(missing_ok=True)
        return decode(*args, **keywords)

    monkeypatch.setattr(shard_indexes, "decode_shard_index", decode_then_delete)

    with explained(StoreReadError, "shard 't/c/0/0' of array '/t' has disappeared"):
        read_chunk(LocalStore(tmp_path))


@pytest.mark.parametrize("path", ["t", ""], ids=["from its group", "alone"])
def test_a_shard_that_this_process_has_removed_is_the_fill_value(tmp_path, monkeypatch, path):
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
    write(LocalStore(tmp_path), DATA, name="t", **LAYOUT)
    assert_same_bits(read_chunk(LocalStore(tmp_path)), DATA[ONE_CHUNK])

    with zarr_pipeline():
        zarr.open_array(LocalStore(tmp_path if path else tmp_path / "t"), path=path)[:8] = 0

    assert not (tmp_path / "t/c/0/0").exists()
    assert_same_bits(read_chunk(LocalStore(tmp_path)), WITHOUT[ONE_CHUNK])


def test_a_shard_whose_known_index_has_nothing_of_what_is_wanted_may_be_deleted():
    """Its chunks are the fill value whether it is there or not."""
    node, empty = served(), (slice(8, 10), slice(3))
    memory = MemoryStore()
    sparse = DATA.copy()
    sparse[empty] = 0
    write(memory, sparse, name="t", **LAYOUT)
    node.files["bucket/s.zarr/t/c/1/0"] = memory._store_dict["t/c/1/0"].to_bytes()
    with Mirrors([node], lambda *_: 0) as server:
        array = zarr.open_array(CLIENTS["obstore http"](server.url, "bucket/s.zarr"), path="t", mode="r")
        assert_same_bits(read_array(array, (slice(8, 10), slice(3, 6)), device="host"), DATA[8:10, 3:6])
        del node.files["bucket/s.zarr/t/c/1/0"]

        assert not read_array(array, empty, device="host").any()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_shard_that_was_never_seen_is_the_fill_value(client):
    node = served()
    del node.files[SHARD]
    with Mirrors([node], lambda *_: 0) as server:
        array = zarr.open_array(CLIENTS[client](server.url, "bucket/s.zarr"), path="t", mode="r")

        assert_same_bits(read_array(array, device="host"), WITHOUT)
