"""Objects that end too soon and stores that fail are told apart by status and length, whatever the words are."""

import asyncio
from types import SimpleNamespace

import aiohttp
import numpy as np
import obstore
import pytest
import zarr
from helpers.data.corpus import counting, write
from helpers.data.damage import explained
from helpers.stores.fakes import FailAfter, ScriptedStore, put
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import MemoryStore as ObstoreMemory
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, ObjectStore, WrapperStore

from xarray_gpuzarr import ShardIndexError, StoreReadError, read_array
from xarray_gpuzarr.fetch import object_source
from xarray_gpuzarr.fetch.remote.failures import http_status, is_unanswered
from xarray_gpuzarr.fetch.remote.store_clients import is_too_short
from xarray_gpuzarr.plan.byte_range import ByteRange

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

DATA = counting((16, 8), "f4")
LAYOUTS = {"unsharded": {"chunks": (8, 8)}, "sharded": {"chunks": (4, 2), "shards": (8, 8)}}
SELECTIONS = {"all": ..., "one chunk": (slice(4), slice(2))}
WORDS = [
    "GET http://127.0.0.1:416/c/0/0 failed: connection reset",
    "no route to host 416",
    "bucket/416/InvalidRange/c/0/0: not satisfiable by this peer",
    "gave up; but object was only half there",
]
TEN = b"0123456789"


@pytest.mark.every_decoder
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=[*SELECTIONS])
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_words_of_an_error_are_not_a_status(memory, layout, words, selection):
    """Of one that says something else."""
    write(memory, DATA, **LAYOUTS[layout])
    store = ScriptedStore(memory, FailAfter(ConnectionError(words)))

    with explained(StoreReadError, "/0", words):  # several requests fail, and any of them may be the first
        read_array(zarr.open_array(store, mode="r"), selection, device="host")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Stores whose addresses hold what servers say of ranges, and objects of ten bytes and none."""
    directory = tmp_path_factory.mktemp("served")
    place = directory / "bucket" / "416" / "InvalidRange"
    for layout, keywords in LAYOUTS.items():
        write(LocalStore(place / "s.zarr"), DATA, name=f"416/{layout}", **keywords)
    (place / "s.zarr" / "ten").write_bytes(TEN)
    (place / "s.zarr" / "none").write_bytes(b"")
    with RangeServer(directory) as running:
        yield running


@pytest.fixture(params=[*CLIENTS])
def store(request, server, honest_again):
    store = CLIENTS[request.param](server.url, "bucket/416/InvalidRange/s.zarr", timeout_s=1)
    if "s3" in request.param and isinstance(store, FsspecStore):
        store.fs.retries = 1
    return store


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", [{"kind": "cut"}, {"kind": "status", "value": 500}, {"kind": "status", "value": 403}])
def test_broken_connection_below_an_address_with_416(store, server, fault, layout):
    array = zarr.open_array(store, path=f"416/{layout}", mode="r")
    server.spoil({**fault, "path": "c/0/0"})

    with pytest.raises(StoreReadError, match="cannot read"):
        read_array(array, device="host")


def test_index_of_an_empty_shard_is_an_error_of_the_shard(store, server):
    place = server.directory / "bucket" / "416" / "InvalidRange" / "s.zarr"
    write(LocalStore(place), DATA, name="emptied", overwrite=True, **LAYOUTS["sharded"])
    (place / "emptied" / "c" / "0" / "0").write_bytes(b"")

    with pytest.raises(ShardIndexError, match="c/0/0"):
        read_array(zarr.open_array(store, path="emptied", mode="r"), (slice(4), slice(2)), device="host")


def filled(store):
    """Return a store of zarr's with an object of ten bytes and an empty one."""
    put(store, "ten", TEN)
    put(store, "none", b"")
    return store


HERE = {
    "obstore local": lambda path: filled(ObjectStore(ObstoreLocal(path))),
    "obstore memory": lambda _: filled(ObjectStore(ObstoreMemory())),
    "wrapped obstore": lambda path: WrapperStore(LoggingStore(filled(ObjectStore(ObstoreLocal(path))))),
    "fsspec file": lambda path: filled(FsspecStore.from_url(f"file://{path}/s", storage_options={"auto_mkdir": True})),
    "memory": lambda _: filled(MemoryStore()),
    "wrapped local": lambda path: WrapperStore(filled(LocalStore(path / "s"))),
}


@pytest.mark.parametrize("kind", HERE)
def test_ranges_behind_the_end_in_stores_without_a_server(tmp_path, kind):
    assert_ranges_behind_the_end_are_short(HERE[kind](tmp_path))


def test_ranges_behind_the_end_in_stores_of_servers(store):
    assert_ranges_behind_the_end_are_short(store)


def assert_ranges_behind_the_end_are_short(store):
    source = object_source(store).for_one_read()
    for key, nbytes in (("ten", 10), ("none", 0)):
        for wanted in (ByteRange(nbytes, 2), ByteRange(nbytes + 10, 10), ByteRange(max(0, nbytes - 5), 10)):
            with pytest.raises(StoreReadError, match="shorter"):
                source.start([(key, wanted)])(bytearray)
        assert bytes(source.start_edge(key, "end", 20)().data) in (TEN[:nbytes], b"")
        assert bytes(source.start_edge(key, "start", 20)().data) in (TEN[:nbytes], b"")
        assert bytes(source.start_whole(key)().data) == TEN[:nbytes]


ERRORS = {
    "aiohttp": SimpleNamespace(status=416),
    "azure": SimpleNamespace(status_code=416),
    "gcsfs": SimpleNamespace(code=416),
    "botocore": SimpleNamespace(response={"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": 416}}),
    "requests": SimpleNamespace(response=SimpleNamespace(status_code=416)),
}


def bearing(of, cause=None):
    """Return an error with the attributes of a client's."""
    err = OSError("words")
    vars(err).update(vars(of))
    err.__cause__ = cause
    return err


WITHOUT_STATUS = [SimpleNamespace(), SimpleNamespace(code="416"), SimpleNamespace(code=1, response={})]


@pytest.mark.parametrize(
    ("of", "status"), [*((of, 416) for of in ERRORS.values()), *((of, None) for of in WITHOUT_STATUS)]
)
def test_status_that_an_error_or_its_cause_bears(of, status):
    err = bearing(of)

    assert http_status(err) == status
    assert http_status(bearing(SimpleNamespace(), cause=bearing(SimpleNamespace(), cause=err))) == status


GENERIC = obstore.exceptions.GenericError
ADDRESS = "Error performing GET http://h/HTTP%20error:%20/416%20-%20Server"


@pytest.mark.parametrize(
    ("err", "status", "unanswered"),
    [
        (GENERIC(f"Generic S3 error: {ADDRESS} in 1ms - Server returned non-2xx status code: 416 Range"), 416, False),
        (
            GENERIC(
                f"Generic HTTP error: {ADDRESS} in 3s, after 1 retries, max_retries: 1, retry_timeout: 2s  - "
                "Server returned non-2xx status code: 503 Slow: Server returned non-2xx status code: 416"
            ),
            503,
            False,
        ),
        (GENERIC(f"Generic GCS error: {ADDRESS} in 1s  - HTTP error: error sending request"), None, True),
        (GENERIC("Generic S3 error: HTTP error: request or response body error"), None, True),
        (GENERIC("Generic LocalFileSystem error: Requested range at HTTP error: 416"), None, False),
        (obstore.exceptions.PermissionDeniedError("Server returned non-2xx status code: 416"), 403, False),
    ],
)
def test_what_obstores_errors_begin_with_tells_the_status(err, status, unanswered):
    """Keys and what servers say may hold anything, behind it."""
    assert (http_status(err), is_unanswered(err)) == (status, unanswered)


@pytest.mark.parametrize("err", [TimeoutError(), ConnectionRefusedError(), aiohttp.ServerDisconnectedError()])
def test_a_server_that_did_not_answer_is_not_asked_for_lengths(err):
    assert not asyncio.run(is_too_short(err, RangeByteRequest(5, 9), never_asked))
    assert not asyncio.run(is_too_short(bearing(SimpleNamespace(), cause=err), RangeByteRequest(5, 9), never_asked))
    assert is_unanswered(err)


async def never_asked():
    raise AssertionError("a status is enough")


@pytest.mark.parametrize(("status", "expected"), [(416, True), (500, False), (403, False)])
def test_a_status_decides_alone(status, expected):
    err = bearing(SimpleNamespace(status=status))

    assert asyncio.run(is_too_short(err, RangeByteRequest(0, 5), never_asked)) is expected


@given(nbytes=st.integers(0, 12), first=st.integers(0, 12), length=st.integers(1, 12))
def test_without_a_status_the_length_decides(nbytes, first, length):
    data = np.arange(12)[:nbytes]

    async def ask_nbytes():
        return nbytes

    def said(request):
        return asyncio.run(is_too_short(obstore.exceptions.GenericError("416"), request, ask_nbytes))

    assert said(RangeByteRequest(first, first + length)) == (len(data[first : first + length]) == 0)
    assert said(OffsetByteRequest(first)) == (len(data[first:]) == 0)
    assert said(SuffixByteRequest(length)) == (len(data[-length:]) == 0)


def test_without_status_and_length_the_store_has_failed():
    err = obstore.exceptions.GenericError("416 Range Not Satisfiable")

    assert not asyncio.run(is_too_short(err, RangeByteRequest(5, 9), never_asked))
    assert not asyncio.run(is_too_short(err, RangeByteRequest(5, 9), None))
