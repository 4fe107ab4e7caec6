"""Long raw chunks that are objects of a server, read by several requests: one version of each, or one request."""

import time

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.data.damage import explained
from helpers.stores.fakes import ScriptedStore
from helpers.stores.mirrors import LONG_AGO, Mirrors, Node, at_random
from helpers.stores.remote import CLIENTS
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError, FetchOptions, StoreReadError, read_array
from xarray_gpuzarr.fetch import index_cache, object_source, version_conflicts
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process import fetch_options as options

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

DATA = counting((40, 6), "f4")
ONE_CHUNK = {"chunks": (20, 6), "compressors": None}
N_PIECES = 5
"""Pieces of a chunk of 480 bytes."""


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(options.in_force, "options", FetchOptions(max_request_nbytes=96))
    for known in (index_cache.cache, version_conflicts.care_by_store, version_conflicts.uncut_stores, advice.warned):
        known.clear()


def files(data):
    memory = MemoryStore()
    write(memory, data, name="t", **ONE_CHUNK)
    return {f"bucket/s.zarr/{key}": buffer.to_bytes() for key, buffer in memory._store_dict.items()}


def node(data, tag='"a"'):
    return Node(files(data), tag=lambda _: tag, modified=LONG_AGO)


def opened(server, client="obstore http"):
    return zarr.open_array(CLIENTS[client](server.url, "bucket/s.zarr"), path="t", mode="r")


def assert_each_chunk_is_of_one_version(values, versions):
    for rows in (slice(20), slice(20, 40)):
        assert any(np.array_equal(values[rows], version[rows]) for version in versions)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("number", range(2 * N_PIECES + 1))
def test_an_object_that_is_replaced_between_two_pieces_is_read_anew(client, number):
    served = node(DATA)
    with Mirrors([served], lambda *_: 0) as server:
        array = opened(server, client)

        def replace_once(request):
            if request == number:
                served.files, served.tag = files(-DATA), lambda _: '"b"'

        server.before = replace_once

        assert_each_chunk_is_of_one_version(read_array(array, device="host"), [DATA, -DATA])
        assert_same_bits(read_array(array, device="host"), -DATA)


@pytest.mark.parametrize("client", CLIENTS)
def test_servers_of_different_versions_are_never_mixed(client):
    servers = [node(DATA, '"a"'), node(-DATA, '"b"'), Node({k: v for k, v in files(DATA).items() if "/c/" not in k})]
    with Mirrors(servers, at_random(3, 1)) as server:
        array = zarr.open_array(CLIENTS[client](server.url, "bucket/s.zarr"), path="t", mode="r")
        for _ in range(10):
            versions = [DATA, -DATA, np.zeros_like(DATA)]
            assert_each_chunk_is_of_one_version(read_array(array, device="host"), versions)


@pytest.mark.parametrize("client", ["fsspec http", "fsspec s3"])
def test_answers_without_a_version_are_asked_for_whole_and_from_then_on(client):
    with Mirrors([Node(files(DATA))], lambda *_: 0) as server:
        array = opened(server, client)

        assert_same_bits(read_array(array, device="host"), DATA)

        assert [request.range for request in server.of_data].count(None) == 2
        assert object_source(array.store).identity in version_conflicts.uncut_stores


@pytest.mark.parametrize("client", ["fsspec http", "fsspec s3"])
def test_an_object_that_was_just_written_is_requested_whole(client):
    """Tags of some servers are made of a time in whole seconds and a length: two versions of a second share one."""
    served = Node(files(DATA), tag=lambda _: '"a"', modified=time.time())
    with Mirrors([served], lambda *_: 0) as server:
        array = opened(server, client)

        def replace(request):
            served.files = files(-DATA if request % 2 else DATA)

        server.before = replace

        assert_each_chunk_is_of_one_version(read_array(array, device="host"), [DATA, -DATA])


@pytest.mark.parametrize("client", ["fsspec http", "fsspec s3"])
def test_a_long_chunk_of_a_shard_without_a_version_comes_in_one_answer(client):
    memory = MemoryStore()
    write(memory, DATA, name="t", chunks=(20, 6), shards=(40, 6), compressors=None)
    stored = {f"bucket/s.zarr/{key}": buffer.to_bytes() for key, buffer in memory._store_dict.items()}
    with Mirrors([Node(stored)], lambda *_: 0) as server:
        assert_same_bits(read_array(opened(server, client), slice(3), device="host"), DATA[:3])
        assert_same_bits(read_array(opened(server, client), slice(20), device="host"), DATA[:20])

        assert {request.range for request in server.of_data if request.range != "bytes=-36"} == {"bytes=0-479"}


def test_stores_that_tell_no_version_are_asked_once_for_each_object():
    requests = []

    def script(key, byte_range, answer):
        requests.append((key, byte_range))
        return answer

    memory = MemoryStore()
    write(memory, DATA, name="t", **ONE_CHUNK)

    values = read_array(zarr.open_array(ScriptedStore(memory, script), path="t", mode="r"), device="host")

    assert_same_bits(values, DATA)
    assert sorted(requests) == [("t/c/0/0", None), ("t/c/1/0", None)]


@pytest.mark.parametrize("client", CLIENTS)
def test_pieces_are_requested_where_answers_tell_the_version(client):
    with Mirrors([node(DATA)], lambda *_: 0) as server:
        assert_same_bits(read_array(opened(server, client), device="host"), DATA)

        assert len(server.of_data) == 2 * N_PIECES


@pytest.mark.parametrize("client", CLIENTS)
def test_an_object_that_is_missing_is_the_fill_value(client):
    partly, expected = node(DATA), DATA.copy()
    del partly.files["bucket/s.zarr/t/c/1/0"]
    expected[20:] = 0
    with Mirrors([partly], lambda *_: 0) as server:
        assert_same_bits(read_array(opened(server, client), device="host"), expected)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("n_more", [-480, -400, -384, -1, 1, 500])
def test_an_object_of_another_length_is_damage(client, n_more):
    damaged = node(DATA)
    path = "bucket/s.zarr/t/c/1/0"
    damaged.files[path] = (damaged.files[path] + bytes(500))[: 480 + n_more]
    with Mirrors([damaged], lambda *_: 0) as server:
        array = opened(server, client)
        with explained((CorruptChunkError, StoreReadError), "t/c/1/0"):
            read_array(array, device="host")

        assert len(server.of_data) <= 4 * N_PIECES


def without_ranges(status, said, body):
    """Send all of the object, whatever was requested."""
    return (200, {"ETag": '"a"'}, files(DATA)["bucket/s.zarr/t/c/0/0"]) if status == 206 else (status, said, body)


@pytest.mark.parametrize("client", CLIENTS)
def test_servers_without_ranges_are_asked_for_whole_objects(client):
    with Mirrors([node(DATA)], lambda *_: 0, spoil=without_ranges) as server:
        assert_same_bits(read_array(opened(server, client), slice(20), device="host"), DATA[:20])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_refuses_is_not_asked_for_the_whole_object(client):
    with Mirrors([node(DATA)], lambda *_: 0, spoil=lambda *_: (403, {}, b"")) as server:
        array = opened(server, client)
        with explained(StoreReadError, "t/c/0/0"):
            read_array(array, slice(20), device="host")

        assert [request.range for request in server.of_data].count(None) == 0
