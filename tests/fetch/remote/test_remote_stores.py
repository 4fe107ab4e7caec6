"""Stores behind real servers on loopback: the same values as anywhere, with few requests, several of them at once."""

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client
from helpers.compare import assert_same_bits, assert_same_dataset
from helpers.data.corpus import V3_CODECS, counting, write
from helpers.data.datasets import ENCODING, weather
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS, fsspec_s3, obstore_s3, s3fs_options
from helpers.stores.s3_server import BUCKET, S3Server
from obstore.exceptions import PermissionDeniedError
from zarr.core.sync import _get_loop
from zarr.storage import LocalStore

from xarray_gpuzarr import FetchOptions, StoreReadError, read_array
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.fetch import index_cache, object_source
from xarray_gpuzarr.fetch.remote import request_limits
from xarray_gpuzarr.plan.byte_range import ByteRange
from xarray_gpuzarr.process import fetch_options as options
from xarray_gpuzarr.read import read, stored_array

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

DATA = counting((30, 40), "f4")
LAYOUTS = {
    "sharded": {"chunks": (3, 4), "shards": (15, 20)},
    "index at the start": {"chunks": (3, 4), "shards": {"shape": (15, 20), "index_location": "start"}},
    "unsharded": {"chunks": (3, 4)},
}
SELECTIONS = [..., (slice(3, 6), slice(4, 8)), (slice(None, None, -1), [39, 0, 17])]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of the store ``bucket/s.zarr``: an array for each layout and codec, and a dataset."""
    directory = tmp_path_factory.mktemp("served")
    store = LocalStore(directory / "bucket" / "s.zarr")
    weather().to_zarr(store, encoding=ENCODING)
    for layout, keywords in LAYOUTS.items():
        for codecs in ("bytes", "zstd"):
            write(store, DATA, name=f"{layout}/{codecs}", **keywords, **V3_CODECS[codecs])
    holes = np.pad(DATA[:14, :19], ((16, 0), (0, 21)))
    write(store, holes, name="holes", **LAYOUTS["sharded"])
    with RangeServer(directory) as running:
        yield running


@pytest.fixture(autouse=True)
def no_known_indexes():
    index_cache.cache.clear()


@pytest.fixture(params=[*CLIENTS])
def store(request, server):
    """``bucket/s.zarr`` through each client."""
    return CLIENTS[request.param](server.url, "bucket/s.zarr")


def opened(store, name="sharded/zstd"):
    return zarr.open_array(store, path=name, mode="r")


@pytest.mark.every_decoder
@pytest.mark.every_value
@pytest.mark.parametrize("codecs", ["bytes", "zstd"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_those_that_were_written(store, layout, codecs):
    array = opened(store, f"{layout}/{codecs}")

    for selection in SELECTIONS:
        expected = DATA[...] if selection is ... else DATA[selection[0]][:, selection[1]]
        assert_same_bits(read_array(array, selection, device="host"), np.ascontiguousarray(expected))


@pytest.mark.every_decoder
def test_missing_chunks_and_shards_are_fill_values(store):
    assert_same_bits(read_array(opened(store, "holes"), device="host"), np.pad(DATA[:14, :19], ((16, 0), (0, 21))))


@pytest.mark.every_value
@pytest.mark.parametrize("chunks", [None, {}])
def test_dataset_is_the_zarr_engines(store, chunks):
    ours = xr.open_dataset(store, engine="gpuzarr", device="host", chunks=chunks)
    stock = xr.open_dataset(store, engine="zarr")

    assert_same_dataset(ours.load(), stock.load())


@pytest.mark.every_decoder
@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_dataset_at_an_address(server, scheme):
    address = f"{server.url}/bucket/s.zarr" if scheme == "http" else "s3://bucket/s.zarr"
    keywords = {"storage_options": s3fs_options(server.url) if scheme == "s3" else None}

    ours = xr.open_dataset(address, engine="gpuzarr", device="host", **keywords)

    assert_same_dataset(ours.load(), xr.open_dataset(address, engine="zarr", **keywords).load())


@pytest.mark.parametrize(
    ("layout", "index"), [("sharded", "bytes=-404"), ("index at the start", "bytes=0-403")], ids=["end", "start"]
)
def test_one_chunk_is_an_index_and_a_range(store, server, layout, index):
    array = opened(store, f"{layout}/zstd")
    server.requests()

    read_array(array, (slice(3), slice(4)), device="host")

    first, second = server.requests()
    assert first["path"].partition("/zstd/")[2] == second["path"].partition("/zstd/")[2] == "c/0/0"
    assert index in (first["range"], second["range"])


def test_gap_and_length_of_requests_are_tunable(store, server, monkeypatch):
    array = opened(store, "sharded/bytes")

    def n_requests(selection, **chosen):
        monkeypatch.setattr(options.in_force, "options", FetchOptions(index_cache_nbytes=0, **chosen))
        server.requests()
        read_array(array, selection, device="host")
        return len(server.requests())

    column, shard = (slice(15), slice(4)), (slice(15), slice(20))
    assert n_requests(column) == 2
    assert n_requests(column, max_gap_nbytes=0) == 4  # zarr stores chunks along a Z-shaped curve
    assert n_requests(shard, max_request_nbytes=3 * 48) == 10  # the index and 25 chunks of 48 bytes, three at a time


@contextmanager
def slow(server, latency_s):
    """Let a server take its time, and count anew how many requests it has at once."""
    server.set(latency_s=latency_s)
    server.most_at_once()
    try:
        yield
    finally:
        server.set(latency_s=0)


def test_requests_are_bounded_for_the_whole_process(store, server, monkeypatch):
    monkeypatch.setattr(options.in_force, "options", FetchOptions(max_requests=3))
    array = opened(store, "unsharded/zstd")
    with slow(server, 0.01), ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: read_array(array, slice(9), device="host"), range(4)))

    assert server.most_at_once() == 3
    for result in results:
        assert_same_bits(result, DATA[:9])


@pytest.mark.every_value
@pytest.mark.parametrize("most", [24, 30, 48], ids=["long", "shorter", "short"])
def test_requests_of_one_read_are_under_way_at_once(store, server, most, monkeypatch):
    array = opened(store, "unsharded/zstd")
    longest = stored_array(array).spec.expected_nbytes
    monkeypatch.setattr(request_limits, "OUTSTANDING_NBYTES", {24: 0, 30: 30 * longest, 48: 10**9}[most])
    with slow(server, 0.05):
        read_array(array, device="host")

    opens_ten = "S3" in type(getattr(store, "fs", None)).__name__  # connections, as s3fs does
    assert (8 if opens_ten else most // 2 + 1) <= server.most_at_once() <= most


def test_requests_follow_answers_that_nobody_has_taken_yet(store, server):
    source = object_source(store).for_one_read()
    with slow(server, 0.02), zarr.config.set({"async.timeout": 10}):
        wanted = [ByteRange(offset=n, nbytes=1) for n in range(source.lookahead)]
        pending = [source.start([("unsharded/bytes/c/0/0", one)]) for one in wanted]
        answered = [one(bytearray) for one in reversed(pending)]  # the last one, while no other was taken

    assert [len(data) for (data,) in answered] == [1] * source.lookahead
    assert source.lookahead > 24
    assert 8 <= server.most_at_once() <= 24  # s3fs opens ten connections


def test_read_from_a_running_loop(store, monkeypatch):
    array = opened(store)
    made = []
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: made.append(1))

    async def cell():
        return [read_array(array, slice(n), device="host") for n in (7, 30)]

    loop = asyncio.SelectorEventLoop()
    try:
        first, second = loop.run_until_complete(cell())
    finally:
        loop.close()

    assert_same_bits(first, DATA[:7])
    assert_same_bits(second, DATA)
    assert not made


def test_read_inside_zarrs_own_loop_is_refused_rather_than_locked_up(store):
    array = opened(store)

    async def inside():
        return read_array(array, device="host")

    with pytest.raises(StoreReadError, match="itself"):
        asyncio.run_coroutine_threadsafe(inside(), _get_loop()).result(10)


@pytest.mark.every_decoder
def test_reads_from_many_threads(store):
    array = opened(store)
    together = threading.Barrier(8)

    def work(number):
        together.wait(10)
        return read_array(array, slice(number, None, 3), device="host")

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))

    for number, result in enumerate(results):
        assert_same_bits(result, DATA[number::3])


@pytest.mark.parametrize("client", CLIENTS)
def test_workers_of_a_cluster_read_shards(server, client):
    """Each task unpickles its source; two workers' threads share one process, zarr's loop and the limit of requests."""
    store = CLIENTS[client](server.url, "bucket/s.zarr")
    ds = xr.open_dataset(store, engine="gpuzarr", device="host", chunks={})

    with Client(n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None):
        loaded = ds.compute()

    assert_same_dataset(loaded, xr.open_dataset(store, engine="zarr").load())


def test_forked_process_is_told_rather_than_locked_up(store):
    array = opened(store)
    read_array(array, device="host")

    assert "in a forked process" in message_of_forked_read(array)


def message_of_forked_read(array):
    """Fork, read in the child, and return the error that it meets there."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it if it is locked up
        try:
            read_array(array, device="host")
        except StoreReadError as err:
            os.write(send, str(err).encode())
        finally:
            os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    message = os.read(receive, 10_000).decode()
    os.close(receive)
    return message


@pytest.fixture(scope="module")
def s3():
    """Another's S3 server, which checks keys, with the dataset written to it through obstore."""
    with S3Server() as running:
        store = obstore_s3(running.url, f"{BUCKET}/w.zarr", running.key_id, running.secret)
        weather().to_zarr(store, encoding=ENCODING)
        running.check_keys()
        yield running


S3_CLIENTS = {"obstore": obstore_s3, "s3fs": fsspec_s3}


@pytest.mark.parametrize("client", S3_CLIENTS)
@pytest.mark.parametrize("chunks", [None, {}])
def test_dataset_on_another_s3_server(s3, client, chunks):
    store = S3_CLIENTS[client](s3.url, f"{BUCKET}/w.zarr", s3.key_id, s3.secret)

    ours = xr.open_dataset(store, engine="gpuzarr", device="host", chunks=chunks).load()

    assert_same_dataset(ours, xr.open_dataset(store, engine="zarr").load())


@pytest.mark.parametrize("client", S3_CLIENTS)
def test_keys_that_the_server_refuses(s3, client):
    good = S3_CLIENTS[client](s3.url, f"{BUCKET}/w.zarr", s3.key_id, s3.secret)
    bad = S3_CLIENTS[client](s3.url, f"{BUCKET}/w.zarr", s3.key_id, "wrong")
    stored = stored_array(opened(good, "u10"))

    with pytest.raises(StoreReadError, match="u10/c/0/0/0") as caught:
        read(replace(stored, source=object_source(bad)), ..., HostDecoder())

    assert isinstance(caught.value.__cause__, PermissionError | PermissionDeniedError)
    assert_same_bits(read(stored, ..., HostDecoder()), weather()["u10"].values)
