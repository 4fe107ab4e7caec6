"""Stores that are made of others: icechunk, VirtualiZarr's manifests, kerchunk's references, zip files, memory."""

import fsspec
import icechunk
import numpy as np
import pytest
import virtualizarr
import xarray as xr
import zarr
from helpers.compare import assert_same_bits, assert_same_dataset
from helpers.data.corpus import V3_CODECS, counting, write
from helpers.data.datasets import ENCODING, weather
from kerchunk.hdf import SingleHdf5ToZarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore as ObstoreLocal
from virtualizarr.parsers import HDFParser
from zarr.storage import FsspecStore, LocalStore, ZipStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.fetch import index_cache

pytestmark = [pytest.mark.every_decoder, pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

DATA = counting((11, 13), "f4")
SHARDED = {"chunks": (2, 3), "shards": (4, 6)}
PACKED = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 273.15, "_FillValue": -32768}
HDF5_ENCODING = {
    "t2m": {"zlib": True, "shuffle": True, "chunksizes": (2, 3, 4), **PACKED},
    "u10": {"zlib": True, "chunksizes": (4, 6, 8)},
}


def opened(store, engine, **keywords):
    return xr.open_dataset(store, engine=engine, consolidated=False, **keywords)


def assert_opens_as_the_zarr_engine_does(store, **keywords):
    expected = opened(store, "zarr", **keywords).load()
    assert_same_dataset(opened(store, "gpuzarr", device="host", **keywords).load(), expected)
    assert_same_dataset(opened(store, "gpuzarr", device="host", chunks={}, **keywords).load(), expected)


@pytest.fixture(scope="module")
def netcdf(tmp_path_factory):
    """An HDF5 file with chunks that are compressed as Zarr's are."""
    path = tmp_path_factory.mktemp("netcdf") / "w.nc"
    weather().drop_vars("lead").to_netcdf(path, engine="h5netcdf", encoding=HDF5_ENCODING)
    return path


@pytest.fixture(scope="module")
def registry():
    return ObjectStoreRegistry({"file://": ObstoreLocal()})


@pytest.fixture(scope="module")
def manifests(netcdf, registry):
    """VirtualiZarr's own store: the file as if it were Zarr."""
    return HDFParser()(url=f"file://{netcdf}", registry=registry)


def test_virtualizarr_manifests(manifests):
    assert_opens_as_the_zarr_engine_does(manifests, zarr_format=3)


@pytest.fixture(scope="module", params=["by kerchunk", "by VirtualiZarr"])
def references(request, netcdf, registry, tmp_path_factory):
    """kerchunk's references to the chunks of the file."""
    if request.param == "by kerchunk":
        return SingleHdf5ToZarr(str(netcdf), inline_threshold=0).translate()
    path = str(tmp_path_factory.mktemp("references") / "refs.json")
    with virtualizarr.open_virtual_dataset(f"file://{netcdf}", registry=registry, parser=HDFParser()) as virtual:
        virtual.vz.to_kerchunk(path, format="json")
    return path


def test_kerchunk_references_as_a_store(references):
    files = fsspec.filesystem("reference", fo=references, asynchronous=True, remote_protocol="file")

    assert_opens_as_the_zarr_engine_does(FsspecStore(files, read_only=True, path=""), zarr_format=2)


def test_kerchunk_references_at_an_address(references):
    options = {"fo": references, "remote_protocol": "file"}

    assert_opens_as_the_zarr_engine_does("reference://", storage_options=options, zarr_format=2)


@pytest.fixture
def repository(tmp_path):
    """An icechunk repository in local files with the dataset in shards."""
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))
    session = made.writable_session("main")
    weather().to_zarr(session.store, encoding=ENCODING, consolidated=False)
    session.commit("weather")
    return made


def test_icechunk_session(repository):
    assert_opens_as_the_zarr_engine_does(repository.readonly_session("main").store)


@pytest.mark.host_decoder
def test_icechunk_session_in_other_processes(repository):
    ds = opened(repository.readonly_session("main").store, "gpuzarr", device="host", chunks={})

    assert_same_bits(ds["u10"].data.compute(scheduler="processes"), weather()["u10"].values)


def index_requests(monkeypatch, store):
    """Let the list that is returned grow by every request for the end of an object."""
    asked, get = [], type(store).get

    async def counting_get(self, key, prototype, byte_range=None):
        if hasattr(byte_range, "suffix"):
            asked.append(key)
        return await get(self, key, prototype, byte_range)

    monkeypatch.setattr(type(store), "get", counting_get)
    return asked


@pytest.mark.host_decoder
def test_icechunk_index_is_read_once_of_a_snapshot(repository, monkeypatch):
    index_cache.cache.clear()
    store = repository.readonly_session("main").store
    array = zarr.open_array(store, path="u10", mode="r")
    asked = index_requests(monkeypatch, store)

    for x in range(4):
        read_array(array, (0, 0, slice(x, x + 1)), device="host")

    assert asked == ["u10/c/0/0/0"]


def test_icechunk_references_to_a_file(netcdf, registry, tmp_path):
    folder = f"file://{netcdf.parent}/"
    config = icechunk.RepositoryConfig.default()
    files = icechunk.local_filesystem_store(str(netcdf.parent))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(folder, files))
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path)), config, authorize_virtual_chunk_access={folder: None}
    )
    session = repository.writable_session("main")
    with virtualizarr.open_virtual_dataset(f"file://{netcdf}", registry=registry, parser=HDFParser()) as virtual:
        virtual.vz.to_icechunk(session.store)
    session.commit("references")

    assert_opens_as_the_zarr_engine_does(repository.readonly_session("main").store)


EMPTY_CHUNKS = [(slice(2), slice(3)), (slice(2, 4), slice(3)), (slice(2), slice(3, 6))]


def version_of_shards(number):
    """Values whose raw shards are of the same lengths, with other indexes."""
    data = DATA * (number + 1) + 1
    data[EMPTY_CHUNKS[number]] = 0
    return data


@pytest.fixture
def virtual_shards(tmp_path):
    """An icechunk repository with an array that refers to shards that are files, and one with shards of its own."""
    folder, files = f"file://{tmp_path}/files/", LocalStore(tmp_path / "files")
    config = icechunk.RepositoryConfig.default()
    container = icechunk.VirtualChunkContainer(folder, icechunk.local_filesystem_store(str(tmp_path / "files")))
    config.set_virtual_chunk_container(container)
    written = write(files, version_of_shards(0), name="virtual", compressors=None, **SHARDED)
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path / "r")), config, authorize_virtual_chunk_access={folder: None}
    )
    session = repository.writable_session("main")
    write(session.store, DATA, name="own", compressors=None, **SHARDED)
    zarr.create_array(session.store, name="virtual", shape=DATA.shape, dtype="f4", compressors=None, **SHARDED)
    for shard in (files.root / "virtual" / "c").rglob("*/*"):
        place = shard.relative_to(files.root)
        session.store.set_virtual_ref(f"{place}", f"{folder}{place}", offset=0, length=shard.stat().st_size)
    session.commit("both")
    return repository, written


def test_icechunk_references_to_shards_that_are_replaced(virtual_shards):
    """A snapshot fixes the references, not what lies there."""
    index_cache.cache.clear()
    repository, written = virtual_shards
    array = zarr.open_array(repository.readonly_session("main").store, path="virtual", mode="r")
    for number in range(3):
        data = version_of_shards(number)
        if number:
            written[...] = data
        again = zarr.open_array(repository.readonly_session("main").store, path="virtual", mode="r")
        for opened in (array, again):
            for selection in ((slice(2), slice(6)), (slice(3, 9), slice(None)), (slice(None), slice(None))):
                assert_same_bits(read_array(opened, selection, device="host"), data[selection])
    assert not len(index_cache.cache)


@pytest.mark.host_decoder
def test_icechunk_index_of_its_own_shard_is_kept_beside_references(virtual_shards, monkeypatch):
    index_cache.cache.clear()
    store = virtual_shards[0].readonly_session("main").store
    array = zarr.open_array(store, path="own", mode="r")
    asked = index_requests(monkeypatch, store)

    for x in range(3):
        assert_same_bits(read_array(array, (0, slice(x, x + 1)), device="host"), DATA[0, x : x + 1])

    assert asked == ["own/c/0/0"]


@pytest.mark.parametrize("codecs", ["bytes", "zstd"])
@pytest.mark.parametrize("layout", [SHARDED, {"chunks": (2, 3)}], ids=["sharded", "unsharded"])
def test_zip_file(tmp_path, layout, codecs):
    with ZipStore(tmp_path / "s.zip", mode="w") as store:
        write(store, np.pad(DATA, ((3, 5), (0, 8))), name="t", **layout, **V3_CODECS[codecs])

    with ZipStore(tmp_path / "s.zip", mode="r") as store:
        array = zarr.open_array(store, path="t", mode="r")
        assert_same_bits(read_array(array, device="host"), np.pad(DATA, ((3, 5), (0, 8))))
        assert_same_bits(read_array(array, (slice(3, 5), [12, 0]), device="host"), DATA[:2][:, [12, 0]])


def test_zip_file_in_shards_with_dask(tmp_path):
    with ZipStore(tmp_path / "s.zip", mode="w") as store:
        weather().to_zarr(store, encoding=ENCODING, consolidated=False)

    with ZipStore(tmp_path / "s.zip", mode="r") as store:
        assert_opens_as_the_zarr_engine_does(store)
