"""Servers that fail, lie or fall silent: an error within the client's time-out, never a wrong number."""

import time

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import V3_CODECS, counting, write
from helpers.data.damage import assert_explains, explained
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS
from zarr.codecs import Crc32cCodec
from zarr.storage import LocalStore

from xarray_gpuzarr import GpuZarrError, ShardIndexError, StoreReadError, read_array

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("honest_again"),
]

DATA = counting((30, 40), "f4")
SHARDED = {"chunks": (3, 4), "shards": (15, 20)}
RAW = {**SHARDED, "compressors": None, "overwrite": True}
TIMEOUT_S = 1.0
READS = {
    "index and a range": ("zstd", (slice(3, 6), slice(4, 8))),
    "whole shards": ("zstd", ...),
    "chunks that are objects": ("unsharded", ...),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    store = LocalStore(directory / "bucket" / "s.zarr")
    write(store, DATA, name="zstd", **SHARDED, **V3_CODECS["zstd"])
    write(store, DATA, name="raw", **RAW)
    write(store, DATA, name="checked", **SHARDED, compressors=Crc32cCodec())
    write(store, DATA, name="unsharded", chunks=(15, 20), **V3_CODECS["zstd"])
    with RangeServer(directory) as running:
        yield running


@pytest.fixture(params=[*CLIENTS])
def store(request, server):
    return CLIENTS[request.param](server.url, "bucket/s.zarr", timeout_s=TIMEOUT_S)


def opened(store, name):
    return zarr.open_array(store, path=name, mode="r")


FAULTS = {
    "server error": {"kind": "status", "value": 500},
    "not now": {"kind": "status", "value": 503},
    "not allowed": {"kind": "status", "value": 403},
    "connection cut within the body": {"kind": "cut"},
}


def fails_in_time(store, server, fault, reading):
    """Read with a fault, then without; return the error and check that it came in time."""
    name, selection = READS[reading]
    array = opened(store, name)
    server.spoil({**fault, "path": f"/{name}/c"})
    start = time.perf_counter()
    with pytest.raises(GpuZarrError) as caught:
        read_array(array, selection, device="host")
    assert time.perf_counter() - start < 10 * TIMEOUT_S
    assert_explains(caught.value, f"{name}/c/")
    server.spoil()
    assert_same_bits(read_array(array, selection, device="host"), DATA if selection is ... else DATA[selection])
    return caught.value


@pytest.mark.parametrize("reading", READS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_an_error_in_time(store, server, fault, reading):
    if "s3fs" in repr(type(getattr(store, "fs", None))):
        store.fs.retries = 2  # 5 by default, each later than the one before

    assert isinstance(fails_in_time(store, server, FAULTS[fault], reading), StoreReadError)


@pytest.mark.every_decoder
@pytest.mark.parametrize("reading", READS)
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_an_error_of_every_decoder(server, fault, reading):
    store = CLIENTS["obstore http"](server.url, "bucket/s.zarr", timeout_s=TIMEOUT_S)

    assert isinstance(fails_in_time(store, server, FAULTS[fault], reading), StoreReadError)


@pytest.mark.parametrize("client", CLIENTS)
def test_silence_is_an_error_in_time(client, server):
    store = CLIENTS[client](server.url, "bucket/s.zarr", timeout_s=TIMEOUT_S / 2)
    if "s3fs" in repr(type(getattr(store, "fs", None))):
        store.fs.retries = 1

    assert isinstance(fails_in_time(store, server, {"kind": "hang"}, "index and a range"), StoreReadError)


@pytest.mark.parametrize("reading", READS)
def test_half_of_a_body_is_an_error(store, server, reading):
    """Half of what was asked for as a whole cannot be told from an object that was cut."""
    fails_in_time(store, server, {"kind": "short"}, reading)


@pytest.mark.parametrize("name", ["zstd", "raw", "checked"])
@pytest.mark.parametrize("kind", ["wrong range", "no ranges"])
def test_other_bytes_than_asked_for_are_noticed(store, server, kind, name):
    array = opened(store, name)
    server.spoil({"kind": kind, "path": f"/{name}/c"})

    try:
        read = read_array(array, (slice(3, 6), slice(4, 8)), device="host")
    except StoreReadError as err:
        assert_explains(err, f"{name}/c/0/0")
    else:  # the whole object was sent, and the bytes were found in it
        assert kind == "no ranges"
        assert_same_bits(read, DATA[3:6, 4:8])


@pytest.mark.parametrize("name", ["zstd", "checked"])
def test_bytes_moved_by_one_fail_every_checksum(store, server, name):
    array = opened(store, name)
    server.spoil({"kind": "wrong bytes", "path": f"/{name}/c"})

    with pytest.raises(ShardIndexError, match="checksum"):
        read_array(array, (slice(3, 6), slice(4, 8)), device="host")

    server.spoil({"kind": "wrong bytes", "path": f"/{name}/c", "skip": 1})
    with pytest.raises(GpuZarrError, match="c/0/0"):
        read_array(array, (slice(3, 6), slice(4, 8)), device="host")


def test_a_retry_of_the_client_mends_what_passes(store, server):
    array = opened(store, "zstd")
    server.spoil({"kind": "status", "value": 503, "path": "/zstd/c", "times": 1})

    try:
        assert_same_bits(read_array(array, device="host"), DATA)
    except StoreReadError:
        assert "HTTPFileSystem" in repr(store)  # it never tries again
    assert_same_bits(read_array(array, device="host"), DATA)


def test_zarrs_timeout_ends_a_wait_that_the_client_would_go_on_with(server):
    store = CLIENTS["obstore http"](server.url, "bucket/s.zarr", timeout_s=30)
    array = opened(store, "zstd")
    server.spoil({"kind": "hang", "path": "/zstd/c"})
    start = time.perf_counter()

    with zarr.config.set({"async.timeout": 0.3}), pytest.raises(StoreReadError, match=r"async\.timeout") as caught:
        read_array(array, device="host")

    assert time.perf_counter() - start < 10
    assert_explains(caught.value, "zstd/c/", "no answer in 0.3 s")


def test_a_read_that_fails_gives_up_its_other_requests(server, monkeypatch):
    """Else they would fill this process's share of requests until they time out."""
    monkeypatch.setenv("XARRAY_GPUZARR_MAX_REQUESTS", "4")
    monkeypatch.setattr("xarray_gpuzarr.process.fetch_options.in_force.options", None)
    store = CLIENTS["obstore http"](server.url, "bucket/s.zarr", timeout_s=30)
    array = opened(store, "unsharded")
    server.spoil({"kind": "status", "value": 403, "path": "/unsharded/c/0/0"}, {"kind": "hang", "path": "/unsharded/c"})

    with pytest.raises(StoreReadError, match="c/0/0"):
        read_array(array, device="host")
    server.spoil()

    start = time.perf_counter()
    assert_same_bits(read_array(array, device="host"), DATA)
    assert time.perf_counter() - start < 10


def test_server_that_is_gone(tmp_path):
    write(LocalStore(tmp_path / "bucket" / "s.zarr"), DATA, name="t", **SHARDED)
    with RangeServer(tmp_path) as short_lived:
        arrays = [opened(CLIENTS[c](short_lived.url, "bucket/s.zarr", timeout_s=TIMEOUT_S), "t") for c in CLIENTS]
        assert_same_bits(read_array(arrays[0], device="host"), DATA)

    for array in arrays:
        with explained(StoreReadError, "t/c/"):
            read_array(array, device="host")


@pytest.mark.every_decoder
@pytest.mark.parametrize("selection", [(slice(3, 6), slice(4, 8)), (slice(15), slice(4))])
def test_shard_replaced_between_its_index_and_its_chunks_is_read_anew(store, server, selection):
    prepare_other_versions(server, 1)
    array = opened(store, "raw")
    server.spoil({"kind": "replaced", "value": "bucket/other-0", "path": "/raw/c/0/0", "skip": 1, "times": 1})

    assert_same_bits(read_array(array, selection, device="host"), -DATA[selection])

    restore(server)


@pytest.mark.every_decoder
def test_shard_that_is_replaced_over_and_over_comes_in_one_answer(store, server):
    prepare_other_versions(server, 8)
    array = opened(store, "raw")
    once = {"kind": "replaced", "path": "/raw/c/0/0", "skip": 1, "times": 1}
    server.spoil(*({**once, "value": f"bucket/other-{n}"} for n in range(8)))

    read = read_array(array, (slice(3, 6), slice(4, 8)), device="host")

    assert np.array_equal(abs(read), DATA[3:6, 4:8])
    assert np.unique(np.sign(read)).size == 1
    server.spoil()
    restore(server)
    assert_same_bits(read_array(array, device="host"), DATA)


def test_shard_replaced_by_a_shorter_one_is_read_anew(store, server, monkeypatch):
    """The ranges that the known index names lie behind its end."""
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
    last = (slice(12, 15), slice(16, 20))
    array = opened(store, "raw")
    assert_same_bits(read_array(array, last, device="host"), DATA[last])
    sparse = np.zeros_like(DATA)
    sparse[last] = -1
    write(LocalStore(server.directory / "bucket" / "s.zarr"), sparse, name="raw", **RAW)

    assert_same_bits(read_array(array, last, device="host"), sparse[last])

    restore(server)


def prepare_other_versions(server, n):
    """Write shards of the same length with other values beside the store, each of another age."""
    bucket = server.directory / "bucket"
    write(LocalStore(bucket / "negative.zarr"), -DATA, name="raw", **RAW)
    shard = (bucket / "negative.zarr" / "raw" / "c" / "0" / "0").read_bytes()
    for number in range(n):
        (bucket / f"other-{number}").write_bytes(shard)


def restore(server):
    store = LocalStore(server.directory / "bucket" / "s.zarr")
    write(store, DATA, name="raw", **RAW)
