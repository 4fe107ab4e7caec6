"""What counts as a missing object is the store's to say: the same fill values and errors as zarr-python's."""

import aiohttp
import numpy as np
import pytest
import zarr
from fsspec.asyn import AsyncFileSystem
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.data.damage import explained
from helpers.stores.fakes import ScriptedStore
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import obstore_http, s3fs_options
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, WrapperStore, ZipStore

from xarray_gpuzarr import GpuZarrError, read_array
from xarray_gpuzarr.fetch import index_cache

pytestmark = [pytest.mark.both_ways, pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

DATA = counting((16, 8), "f4")
LAYOUTS = {
    "unsharded": {"chunks": (8, 8)},
    "sharded": {"chunks": (4, 2), "shards": (8, 8)},
    "index at the start": {"chunks": (4, 2), "shards": {"shape": (8, 8), "index_location": "start"}},
}
SELECTIONS = {"all": ..., "one chunk": (slice(4), slice(2))}
USUAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class OfOurOwnError(PermissionError):
    """A subclass of what a user allows."""


RAISED = [FileNotFoundError, IsADirectoryError, NotADirectoryError, KeyError, PermissionError, OfOurOwnError, OSError]
ALLOWED = {
    "the usual": USUAL,
    "and PermissionError": (*USUAL, PermissionError),
    "and OSError": (*USUAL, OSError),
    "KeyError alone": (KeyError,),
    "none": (),
}


def outcome(read):
    """Return what a read gives: an array, or the word for an error."""
    try:
        return read()
    except Exception:  # noqa: BLE001  # zarr-python raises whatever the store does
        return "an error"


def assert_same_outcome(array, selection):
    """Compare with zarr-python: the same values, or both an error; ours is one of ours."""
    index_cache.cache.clear()
    expected = outcome(lambda: array[selection])
    if isinstance(expected, str):
        with explained(GpuZarrError, "c/0/0"):
            read_array(array, selection, device="host")
    else:
        assert_same_bits(read_array(array, selection, device="host"), expected)


class RefusingFiles(AsyncFileSystem):
    """Files in a dictionary; those of one shard or chunk cannot be had, for a reason of the test's choice."""

    cachable = False

    def __init__(self, files, error, **keywords):
        super().__init__(asynchronous=True, **keywords)
        self.files, self.error = files, error

    async def _cat_file(self, path, start=None, end=None, **_):
        if path.endswith("c/0/0"):
            raise self.error("no")
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][slice(start, end)]

    async def _info(self, path, **_):
        return {"name": path, "size": len(self.files[path]), "type": "file"}


@pytest.fixture(scope="module", params=[*LAYOUTS])
def files(request):
    """The objects of an array, by key below ``s``."""
    memory = MemoryStore()
    write(memory, DATA, **LAYOUTS[request.param])
    return {f"s/{key}": buffer.to_bytes() for key, buffer in memory._store_dict.items()}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=[*SELECTIONS])
@pytest.mark.parametrize("allowed", ALLOWED.values(), ids=[*ALLOWED])
@pytest.mark.parametrize("raised", RAISED)
def test_exceptions_that_a_file_system_raises(files, raised, allowed, selection):
    store = FsspecStore(RefusingFiles(files, raised), path="s", read_only=True)
    array = zarr.open_array(store, mode="r")
    array.store.allowed_exceptions = allowed

    assert_same_outcome(array, selection)


class AzureBlobFileSystem(RefusingFiles):
    """As adlfs: what it asks Azure for with a negative offset is refused."""

    __module__ = "adlfs.spec"

    async def _cat_file(self, path, start=None, end=None, **_):
        if start is not None and start < 0:
            raise ValueError("Required Content-Range response header is missing or malformed.")
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][slice(start, end)]

    async def _info(self, path, **_):
        if path not in self.files:
            raise FileNotFoundError(path)
        return await super()._info(path)


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=[*SELECTIONS])
@pytest.mark.parametrize("missing", [None, "c/0/0"])
def test_azure_is_not_asked_for_the_last_bytes(files, selection, missing):
    there = {path: data for path, data in files.items() if missing is None or not path.endswith(missing)}
    array = zarr.open_array(FsspecStore(AzureBlobFileSystem(there, None), path="s", read_only=True), mode="r")
    expected = DATA.copy()
    if missing:
        shard = array.shards or array.chunks
        expected[: shard[0], : shard[1]] = 0

    wanted = np.ascontiguousarray(zarr.array(expected).oindex[selection])
    assert_same_bits(read_array(array, selection, device="host"), wanted)


def lost(error):
    """A script for a store that raises for one object, or says that it is not there."""

    def script(key, byte_range, answer):
        if not key.endswith("c/0/0"):
            return answer
        if error is not None:
            raise error("no")
        return None

    return script


@pytest.mark.every_decoder
@pytest.mark.usefixtures("usual_pipeline")
@pytest.mark.parametrize("wrap", [lambda store: store, LoggingStore, WrapperStore], ids=["plain", "logging", "wrapped"])
@pytest.mark.parametrize("raised", [None, *RAISED])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_exceptions_that_a_store_of_the_users_raises(memory, layout, raised, wrap):
    write(memory, DATA, **LAYOUTS[layout])
    store = ScriptedStore(memory.with_read_only(read_only=True), lost(raised))

    assert_same_outcome(zarr.open_array(wrap(store), mode="r"), ...)


PLACES = {
    "local": LocalStore,
    "wrapped": lambda path: WrapperStore(LocalStore(path, read_only=True)),
    "logged": lambda path: LoggingStore(LocalStore(path, read_only=True)),
    "fsspec": lambda path: FsspecStore.from_url(f"file://{path}"),
}


@pytest.mark.every_decoder
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_folder", [True, False])
def test_directories_in_the_place_of_objects_and_files_in_that_of_directories(tmp_path, layout, place, is_folder):
    write(LocalStore(tmp_path), DATA, **LAYOUTS[layout])
    (tmp_path / "c/0/0").unlink()
    if is_folder:
        (tmp_path / "c/0/0").mkdir()
    else:
        (tmp_path / "c/0").rmdir()
        (tmp_path / "c/0").write_bytes(b"x")

    assert_same_outcome(zarr.open_array(PLACES[place](tmp_path), mode="r"), ...)


@pytest.mark.every_decoder
@pytest.mark.parametrize("layout", LAYOUTS)
def test_objects_that_a_zip_file_lacks(tmp_path, layout):
    with ZipStore(tmp_path / "s.zip", mode="w") as store:
        write(store, np.where(np.arange(16)[:, None] < 8, np.float32(0), DATA), **LAYOUTS[layout])

    with ZipStore(tmp_path / "s.zip", mode="r") as store:
        assert_same_outcome(zarr.open_array(store, mode="r"), ...)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    for layout, keywords in LAYOUTS.items():
        write(LocalStore(directory / "bucket" / "s.zarr"), DATA, name=layout, **keywords)
    with RangeServer(directory) as running:
        yield running


def s3(url, allowed):
    store = FsspecStore.from_url("s3://bucket/s.zarr", storage_options=s3fs_options(url), read_only=True)
    store.fs.retries = 1  # else it waits for 500 to pass
    store.allowed_exceptions = allowed
    return store


def http(url, allowed):
    return FsspecStore.from_url(f"{url}/bucket/s.zarr", read_only=True, allowed_exceptions=allowed)


OF_SERVERS = {name: ALLOWED[name] for name in ("the usual", "and PermissionError", "and OSError")} | {
    "and ClientResponseError": (*USUAL, aiohttp.ClientResponseError),
    "and ClientError": (*USUAL, aiohttp.ClientError),
}
FAULTS = {
    "403": {"kind": "status", "value": 403},
    "404": {"kind": "status", "value": 404},
    "500": {"kind": "status", "value": 500},
    "cut": {"kind": "cut"},
}


def assert_same_outcome_of_a_fault(server, store, fault, layout, selection):
    array = zarr.open_array(store, path=layout, mode="r")
    server.spoil({**FAULTS[fault], "path": f"/{layout}/c/0/0"})
    try:
        assert_same_outcome(array, selection)
    finally:
        server.spoil()


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=[*SELECTIONS])
@pytest.mark.parametrize("layout", ["unsharded", "sharded"])
@pytest.mark.parametrize("allowed", OF_SERVERS.values(), ids=[*OF_SERVERS])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("client", [s3, http])
def test_exceptions_that_the_clients_of_servers_raise(server, client, fault, allowed, layout, selection):
    assert_same_outcome_of_a_fault(server, client(server.url, allowed), fault, layout, selection)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_zarrs_obstore_knows_no_other_exceptions(server, layout, fault):
    store = obstore_http(server.url, "bucket/s.zarr", timeout_s=1)

    assert_same_outcome_of_a_fault(server, store, fault, layout, ...)
