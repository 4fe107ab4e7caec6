"""Clients that have spent their retries are asked no more: requests are counted, ours beside those of zarr-python."""

from collections import Counter

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.stores.fakes import AskedStore
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS
from zarr.storage import FsspecStore, LocalStore

from xarray_gpuzarr import StoreReadError, configure, read_array
from xarray_gpuzarr.fetch import object_source, version_conflicts
from xarray_gpuzarr.fetch.store_errors import changed_error
from xarray_gpuzarr.fetch.version_conflicts import Care, VersionConflicts

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("honest_again"),
]

DATA = np.arange(64.0).reshape(8, 8)
DATASET = xr.Dataset({"t": (("y", "x"), DATA), "text": ("x", [f"{n}" for n in range(8)])}, coords={"x": np.arange(8.0)})
ENCODING = {"t": {"chunks": (2, 2), "shards": (4, 4)}}
TIMEOUT_S, S3FS_RETRIES, BOTOCORE_TRIES = 0.25, 2, 2
FAULTS = {
    "silence": {"kind": "hang"},
    "server error": {"kind": "status", "value": 500},
    "not allowed": {"kind": "status", "value": 403},
    "connection cut within the body": {"kind": "cut"},
}
OPENINGS = {
    "the root": ("consolidated", "/zarr.json", {}),
    "an index": ("consolidated", "/x/c/", {}),
    "an array": ("not", "/t/zarr.json", {"consolidated": False}),
    "a group": ("groups", "/a/zarr.json", {"group": "a"}),
}
READS = {"index and a range": (slice(2), slice(2)), "whole shards": ...}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    bucket = directory / "bucket"
    DATASET.to_zarr(bucket / "consolidated", encoding=ENCODING)
    DATASET.to_zarr(bucket / "not", encoding=ENCODING, consolidated=False)
    DATASET.to_zarr(bucket / "groups", group="a", encoding=ENCODING, consolidated=False)
    zarr.create_array(LocalStore(bucket / "raw"), data=DATA, chunks=(8, 8), compressors=None)
    with RangeServer(directory) as running:
        yield running


def through(client, server, name):
    store = CLIENTS[client](server.url, f"bucket/{name}", timeout_s=TIMEOUT_S)
    if isinstance(store, FsspecStore):
        store.fs.retries = S3FS_RETRIES
    return store


def spoil(server, fault, path):
    """Let all requests for a path fail, and forget those before."""
    server.spoil({**fault, "path": path}, {**fault, "path": path, "method": "HEAD"})
    server.requests()


def asked(server, path):
    """Return how often each object was asked for, below a path."""
    return Counter(request["path"] for request in server.requests() if path in request["path"])


def assert_no_more(ours, stock):
    assert ours
    assert all(n <= stock[path] for path, n in ours.items()), (ours, stock)


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_an_opening_that_fails_asks_no_more_than_the_stock_engine(server, client, fault, opening):
    name, path, keywords = OPENINGS[opening]
    if "http" in client and name != "consolidated":
        pytest.skip("a web server cannot list")
    counts = []
    for engine in ("zarr", "gpuzarr", "zarr"):  # s3fs asks for more in the first openings of a process
        store = through(client, server, name)
        spoil(server, FAULTS[fault], path)
        with pytest.raises(Exception):  # noqa: B017, PT011  # each client has its own
            xr.open_dataset(store, engine=engine, **keywords)
        counts.append(asked(server, path))

    first, ours, last = counts
    assert_no_more(ours, first | last)


@pytest.mark.parametrize("client", ["obstore s3", "fsspec s3"])
@pytest.mark.parametrize("opens", [xr.open_dataset, xr.open_datatree])
def test_requests_that_fail_beside_each_other_are_made_once(server, client, opens):
    """The first to fail ends the search for groups; others are still under way."""
    store = through(client, server, "not")
    paths = ["/not/t/", "/not/text/", "/not/x/"]
    server.spoil(*({"kind": "hang", "path": path, "method": method} for path in paths for method in ("GET", "HEAD")))
    server.requests()

    with pytest.raises(Exception):  # noqa: B017, PT011
        opens(store, engine="gpuzarr", consolidated=False)

    n_tries = 2 if client.startswith("obstore") else S3FS_RETRIES * BOTOCORE_TRIES
    assert max(asked(server, "/zarr.json").values()) <= n_tries


@pytest.mark.parametrize("selection", READS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_read_that_fails_asks_no_more_than_zarr_python(server, client, fault, selection):
    array = zarr.open_array(through(client, server, "consolidated"), path="t", mode="r")
    path = "/t/c/0/0"
    counts = []
    for read in (lambda: read_array(array, READS[selection], device="host"), lambda: array[READS[selection]]):
        spoil(server, FAULTS[fault], path)
        with pytest.raises(Exception):  # noqa: B017, PT011
            read()
        counts.append(asked(server, path))

    assert_no_more(*counts)


def test_an_error_of_the_stock_engine_is_raised_once_more(server):
    """The error that a request has ended in is that of the opening, though nobody asks again."""
    errors = []
    for engine in ("gpuzarr", "zarr"):
        store = through("fsspec http", server, "consolidated")
        spoil(server, FAULTS["not allowed"], "/zarr.json")
        with pytest.raises(Exception) as caught:  # noqa: PT011
            xr.open_dataset(store, engine=engine)
        errors.append((type(caught.value), str(caught.value)))

    assert errors[0] == errors[1]


# ---- s3fs: what breaks off is asked for again, out of the same retries


def test_a_body_that_breaks_off_is_asked_for_again(server):
    array = zarr.open_array(through("fsspec s3", server, "raw"), mode="r")
    server.spoil({"kind": "cut", "path": "/c/0/0", "times": 1})

    assert_same_bits(read_array(array, device="host"), DATA)


def test_retries_are_shared_by_headers_and_bodies(server):
    store = through("fsspec s3", server, "raw")
    array = zarr.open_array(store, mode="r")
    store.fs.retries = 3
    server.spoil({"kind": "cut", "path": "/c/0/0", "times": 1}, {**FAULTS["silence"], "path": "/c/0/0"})
    server.requests()

    with pytest.raises(StoreReadError):
        read_array(array, device="host")

    assert asked(server, "/c/0/0").total() <= 1 + 2 * BOTOCORE_TRIES


# ---- other places that would ask again


def test_metadata_are_not_asked_for_after_a_server_has_fallen_silent(server):
    """Text is read by zarr-python; after its errors, metadata are compared with those that were opened."""
    array = zarr.open_array(through("obstore s3", server, "consolidated"), path="text", mode="r")
    spoil(server, FAULTS["silence"], "/text/")

    with pytest.raises(StoreReadError, match="zarr-python cannot read"):
        read_array(array, device="host")

    assert not [path for path in asked(server, "/text/") if path.endswith("zarr.json")]


def test_pieces_of_a_long_chunk_are_asked_for_once(server, monkeypatch):
    monkeypatch.setattr("xarray_gpuzarr.process.fetch_options.in_force.options", None)
    configure(max_request_nbytes=128)
    array = zarr.open_array(through("fsspec http", server, "raw"), mode="r")
    spoil(server, FAULTS["server error"], "/c/0/0")

    with pytest.raises(StoreReadError):
        read_array(array, device="host")

    ranges = Counter(request["range"] for request in server.requests() if "/c/0/0" in request["path"])
    assert ranges.most_common(1)[0][1] == 1
    assert None not in ranges


def test_a_tag_is_no_reason_to_ask_a_silent_server_again(server):
    store = through("fsspec http", server, "consolidated")
    array = zarr.open_array(store, path="t", mode="r")
    version_conflicts.care_by_store[object_source(store).identity] = Care.ASK_AGAIN
    server.spoil({"kind": "hang", "path": "/t/c/0/0", "skip": 1})
    server.requests()

    with pytest.raises(StoreReadError):
        read_array(array, READS["index and a range"], device="host")

    assert asked(server, "/t/c/0/0").total() == 2  # the index, and a range


class Silent(AskedStore):
    """A store that does not answer, which counts how often it was asked."""

    n_asked = 0

    async def get(self, *_, **__):
        self.n_asked += 1
        raise TimeoutError("no answer")


def test_a_silent_server_is_not_asked_for_tags():
    store = Silent()
    attempts = VersionConflicts(object_source(store), Care.USUAL)
    for key in ("s/1", "s/2"):
        assert attempts.should_retry(changed_error(key, "A", "B", key))

    with pytest.raises(StoreReadError, match="no answer"):
        attempts.should_retry(changed_error("s/3", "A", "B", "s/3"))

    assert store.n_asked == 1


def test_zarrs_timeout_ends_an_opening_once(server):
    spoil(server, FAULTS["silence"], "/zarr.json")
    store = CLIENTS["obstore http"](server.url, "bucket/consolidated", timeout_s=30)

    with zarr.config.set({"async.timeout": 0.3}), pytest.raises(TimeoutError, match=r"async\.timeout"):
        xr.open_dataset(store, engine="gpuzarr")

    assert asked(server, "/consolidated/zarr.json").total() == 1
