"""Writes that a store refuses or does not answer: one error, which names the object, and nothing stored is lost."""

import asyncio
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.corpus import spec_of
from helpers.data.damage import assert_explains
from helpers.linux import needs_linux
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS
from helpers.writes import contents
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore

from xarray_gpuzarr import StoreWriteError, zarr_pipeline
from xarray_gpuzarr.write.refusals import naming_object

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("honest_again"),
]

LAYOUTS = {"shard": {"chunks": (10, 100), "shards": (100, 100)}, "chunk": {"chunks": (100, 100)}}
PART = slice(150, 155)
"""Of the second shard or chunk, the rest of which has to be read."""
FAULTS = {
    "not allowed": {"kind": "status", "value": 403},
    "server error": {"kind": "status", "value": 500},
    "silence": {"kind": "hang"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RangeServer(tmp_path_factory.mktemp("served")) as running:
        (running.directory / "bucket").mkdir()
        yield running


def new_array(store, layout, path="t"):
    """Create an array of three objects, all ones."""
    array = zarr.create_array(store, name=path, shape=(300, 100), dtype="f8", overwrite=True, **LAYOUTS[layout])
    array[...] = 1
    return array


def opened(store, path="t"):
    with zarr_pipeline():
        return zarr.open_array(store, path=path, mode="r+")


def through(client, server, path="s.zarr"):
    store = CLIENTS[client](server.url, f"bucket/{path}", timeout_s=0.5)
    if isinstance(store, FsspecStore):
        store.fs.retries = 1
    return store


def assert_not_written(array, write, *said, key="t/c/1/0"):
    """Write and fail; return the error."""
    with pytest.raises(StoreWriteError) as caught:
        write(array)
    kind = "shard" if array.shards else "chunk"
    assert caught.value.headline == f"cannot write {kind} '{key}' of array '/t'"
    assert_explains(caught.value, *said)
    assert caught.value.__cause__ is not None
    assert not isinstance(caught.value.__cause__, StoreWriteError)
    return caught.value


def fill(array):
    array[100:200] = 2


def fill_part(array):
    array[PART] = 2


def clear(array):
    array[100:200] = 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("client", ["obstore s3", "fsspec s3"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_a_server_that_does_not_do_it(server, client, fault, layout, method):
    new_array(LocalStore(server.directory / "bucket" / "s.zarr"), layout)
    before = contents(LocalStore(server.directory / "bucket" / "s.zarr"))
    store = through(client, server)
    array = opened(store)
    server.spoil({**FAULTS[fault], "method": method, "path": "/t/c/1/0"})

    error = assert_not_written(array, fill_part)

    assert contents(LocalStore(server.directory / "bucket" / "s.zarr")) == before
    assert error.tried.startswith(f"in {store}: to ")
    server.spoil()
    fill_part(array)
    assert (array[PART] == 2).all()
    assert array[...].sum() == 30_000 + 500


@pytest.mark.parametrize("client", ["obstore s3", "fsspec s3"])
def test_an_object_that_may_not_be_removed(server, client):
    new_array(LocalStore(server.directory / "bucket" / "s.zarr"), "shard")
    array = opened(through(client, server))
    server.spoil(*({**FAULTS["not allowed"], "method": method} for method in ("POST", "DELETE")))

    assert_not_written(array, clear, "to remove it")

    assert (array[...] == 1).all()


def test_a_dataset_that_a_server_does_not_take(server):
    ds = xr.Dataset({"t": (("y", "x"), np.ones((300, 100)))}).chunk(y=100)
    store = through("obstore s3", server, "d.zarr")
    server.spoil({**FAULTS["not allowed"], "method": "PUT", "path": "/t/c/1/0"})

    with pytest.raises(StoreWriteError, match=r"cannot write shard 't/c/1/0' of array '/t'"):
        ds.gpuzarr.to_zarr(store, chunks={"y": 10}, shards={"y": 100})


def test_a_server_that_stores_nothing(server):
    """obstore writes to plain servers by PUT, too."""
    new_array(LocalStore(server.directory / "bucket" / "s.zarr"), "shard")
    store = CLIENTS["obstore http"](server.url, "bucket/s.zarr", timeout_s=0.5).with_read_only(False)
    array = opened(store)
    server.spoil({"kind": "status", "value": 405, "method": "PUT"})

    assert_not_written(array, fill, "405")


def test_an_error_of_a_write_shows_no_secret(server):
    new_array(LocalStore(server.directory / "bucket" / "s.zarr"), "shard")
    url = server.url.replace("://", "://me:Tr0ub4dor@")
    array = opened(CLIENTS["obstore http"](url, "bucket/s.zarr", timeout_s=0.5).with_read_only(False))
    server.spoil({"kind": "status", "value": 403, "method": "PUT"})

    error = assert_not_written(array, fill, "***@127.0.0.1")

    assert "Tr0ub4dor" not in repr(error) + str(error)


class Refusing(WrapperStore):
    """Raises what `error` is when it is written to."""

    error = None

    async def set(self, key, value):
        if self.error is not None:
            raise self.error
        await super().set(key, value)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), LookupError("x"), ValueError("store is read-only")])
def test_whatever_a_store_raises_is_named(error):
    store = Refusing(MemoryStore())
    new_array(store, "shard")
    array = opened(store)
    store.error = array.store.error = error

    assert assert_not_written(array, fill, type(error).__name__).__cause__ is error


@pytest.mark.parametrize("interrupt", [asyncio.CancelledError, KeyboardInterrupt])
def test_an_interrupt_is_none_of_a_stores_errors(interrupt):
    with pytest.raises(interrupt), naming_object(spec_of(new_array({}, "shard")), "c/0", "store", "to store it"):
        raise interrupt


WITHOUT_RIGHTS = """
    import ctypes, os, sys
    if os.geteuid() == 0:  # let modes of files count for root, too: without DAC_OVERRIDE and DAC_READ_SEARCH
        assert [ctypes.CDLL(None).prctl(24, capability, 0, 0, 0) for capability in (1, 2)] == [0, 0]
    os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""
WRITE = """
    import json, sys
    import obstore, zarr
    from zarr.storage import FsspecStore, LocalStore, ObjectStore
    from xarray_gpuzarr import zarr_pipeline
    stores = {
        "zarr": LocalStore,
        "obstore": lambda folder: ObjectStore(obstore.store.LocalStore(folder)),
        "fsspec": lambda folder: FsspecStore.from_url(f"file://{folder}", storage_options={"auto_mkdir": True}),
    }
    for folder, start, stop, value in json.loads(sys.argv[2]):
        with zarr_pipeline():
            array = zarr.open_array(stores[sys.argv[1]](folder), path="t", mode="r+")
        try:
            array[start:stop] = value
        except Exception as err:
            print(type(err).__name__, err.headline, folder in err.tried, type(err.__cause__).__name__, sep=": ")
"""


def no_folder(shard):
    shard.unlink()
    shard.parent.rmdir()
    shard.parent.parent.chmod(0o555)


def a_file(shard):
    shard.unlink()
    shard.parent.rmdir()
    shard.parent.write_text("")


ALL, SOME = (100, 200), (150, 155)
FOLDERS = {
    "a folder that may not be changed": (lambda shard: shard.parent.chmod(0o555), *ALL, 2),
    "the same, to remove": (lambda shard: shard.parent.chmod(0o555), *ALL, 0),
    "a folder that cannot be made": (no_folder, *ALL, 2),
    "a shard that may not be read": (lambda shard: shard.chmod(0), *SOME, 2),
    "a folder that may not be looked into": (lambda shard: shard.parent.chmod(0), *SOME, 2),
    "a file in place of a folder": (a_file, *ALL, 2),
}
CAUSES = {
    "zarr": ["PermissionError"] * 5 + ["NotADirectoryError"],
    "obstore": ["GenericError"] * 6,
    "fsspec": ["PermissionError"] * 4 + ["FileExistsError"],  # it writes into a file that is there
}


@needs_linux
@pytest.mark.parametrize("client", CAUSES)
def test_folders_and_files_without_rights(tmp_path, client):
    writes = []
    for name, (forbid, *write) in FOLDERS.items():
        new_array(LocalStore(tmp_path / name), "shard")
        forbid(tmp_path / name / "t/c/1/0")
        writes.append((str(tmp_path / name), *write))

    programs = [textwrap.dedent(each) for each in (WITHOUT_RIGHTS, WRITE)]
    command = [sys.executable, "-c", *programs, client, json.dumps(writes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    for folder in tmp_path.rglob("c/**/"):
        folder.chmod(0o755)

    said = "StoreWriteError: cannot write shard 't/c/1/0' of array '/t': True: "
    assert done.stdout.splitlines() == [said + cause for cause in CAUSES[client]]
