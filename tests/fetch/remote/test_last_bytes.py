"""The last bytes of objects of Azure, which knows no suffix ranges: two requests, which have to see one version."""

import obstore
import pytest
from helpers.stores.fakes import put
from obstore.store import MemoryStore as ObstoreMemory
from zarr.abc.store import SuffixByteRequest
from zarr.core.sync import sync
from zarr.storage import MemoryStore, ObjectStore

from xarray_gpuzarr.fetch.remote.obstore_client import ObstoreClient
from xarray_gpuzarr.fetch.remote.store_clients import AdlfsClient

SHORT, LONG = bytes(range(40)), bytes(range(100, 200))


class Replaced(MemoryStore):
    """An object that is replaced after each of the first answers to a question for its length."""

    def __init__(self, n_times: int) -> None:
        super().__init__()
        self.versions = iter([LONG, SHORT, LONG, SHORT][:n_times])

    async def getsize(self, key: str) -> int:
        nbytes = await super().getsize(key)
        new = next(self.versions, None)
        if new is not None:
            self._store_dict[key] = type(self._store_dict[key]).from_bytes(new)
        return nbytes


@pytest.mark.parametrize("n_times", [0, 1, 2])
def test_adlfs_reads_the_end_of_one_version(n_times):
    store = Replaced(n_times)
    put(store, "k", SHORT)

    answer = sync(AdlfsClient(store).get("k", SuffixByteRequest(8)))

    assert bytes(answer.data) in (SHORT[-8:], LONG[-8:])


def test_adlfs_gives_up_on_an_object_that_keeps_changing():
    store = Replaced(4)
    put(store, "k", SHORT)

    with pytest.raises(OSError, match="length of the object changed"):
        sync(AdlfsClient(store).get("k", SuffixByteRequest(80)))


@pytest.mark.parametrize("n_times", [0, 1, 2])
def test_obstore_reads_the_end_of_one_version(monkeypatch, n_times):
    client, versions = ObstoreMemory(), iter([LONG, SHORT][:n_times])
    obstore.put(client, "k", SHORT)
    get, head = obstore.get_async, obstore.head_async

    async def get_without_suffixes(store, path, *, options):
        if isinstance(options.get("range"), dict) and "suffix" in options["range"]:
            raise obstore.exceptions.NotSupportedError("Azure")
        return await get(store, path, options=options)

    async def head_then_replace(store, path):
        meta = await head(store, path)
        new = next(versions, None)
        if new is not None:
            obstore.put(store, path, new)
        return meta

    monkeypatch.setattr(obstore, "get_async", get_without_suffixes)
    monkeypatch.setattr(obstore, "head_async", head_then_replace)

    answer = sync(ObstoreClient(ObjectStore(client).store).get("k", SuffixByteRequest(8)))

    assert bytes(answer.data) == (SHORT, LONG, SHORT)[n_times][-8:]
