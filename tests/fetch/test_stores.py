"""Every kind of store that zarr-python opens, and files that TensorStore wrote."""

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits, assert_same_dataset
from helpers.data.corpus import V3_CODECS, counting, tensorstore_write, write
from helpers.stores.fakes import Wrapper
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import MemoryStore as ObstoreMemory
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

from xarray_gpuzarr import read_array

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
]

DATA = counting((11, 13), "f4")
SHARDED = {"chunks": (2, 3), "shards": (4, 6)}

STORES = {
    "memory": lambda _path: MemoryStore(),
    "local": lambda path: LocalStore(path / "s.zarr"),
    "wrapped local": lambda path: Wrapper(LocalStore(path / "s.zarr")),
    "fsspec memory": lambda path: FsspecStore.from_url(f"memory://{path.name}/s.zarr"),
    "fsspec file": lambda path: FsspecStore.from_url(f"file://{path}/s.zarr", storage_options={"auto_mkdir": True}),
    "obstore memory": lambda _path: ObjectStore(ObstoreMemory()),
    "obstore local": lambda path: ObjectStore(ObstoreLocal(path)),
}


@pytest.fixture(params=[*STORES])
def any_store(request, tmp_path):
    return STORES[request.param](tmp_path)


def dataset():
    """A small dataset with a packed variable, one with holes and one unsharded."""
    gaps = DATA.copy()
    gaps[:4] = np.nan
    return xr.Dataset(
        {"packed": (("y", "x"), DATA), "gaps": (("y", "x"), gaps), "plain": ("x", np.arange(13))},
        coords={"y": np.arange(11.0), "label": ("x", [f"n{i}" for i in range(13)])},
        attrs={"title": "any"},
    )


ENCODING = {
    "packed": {**SHARDED, "dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1},
    "gaps": {**SHARDED, "fill_value": np.nan},
}


def opened(store, engine, **keywords):
    return xr.open_dataset(store, engine=engine, **keywords)


@pytest.mark.parametrize("layout", [SHARDED, {"chunks": (2, 3)}], ids=["sharded", "unsharded"])
@pytest.mark.parametrize("codecs", ["bytes", "zstd", "blosc-lz4-shuffle"])
def test_array_in_any_store(any_store, layout, codecs):
    array = write(any_store, DATA, name="t", **layout, **V3_CODECS[codecs])

    assert_same_bits(read_array(array, device="host"), DATA)
    assert_same_bits(read_array(array, (slice(3, 9), [12, 0]), device="host"), DATA[3:9][:, [12, 0]])


@pytest.mark.every_value
def test_dataset_in_any_store(any_store):
    dataset().to_zarr(any_store, encoding=ENCODING)

    ours, stock = opened(any_store, "gpuzarr", device="host"), opened(any_store, "zarr")

    assert_same_dataset(ours.load(), stock.load())


@pytest.mark.parametrize(
    ("url", "storage_options"),
    [
        ("memory://urls/{name}/s.zarr", None),
        ("file://{path}/s.zarr", None),
        ("{path}/s.zarr", None),
        ("{path}/with space and ü.zarr", None),
        ("local://{path}/o.zarr", {"auto_mkdir": True}),
    ],
)
def test_dataset_at_a_url(tmp_path, url, storage_options):
    place = url.format(path=tmp_path, name=tmp_path.name)
    # As a path: zarr-python before 3.2 makes no folders at such a URL.
    dataset().to_zarr(place.removeprefix("file://"), encoding=ENCODING, storage_options=storage_options)

    ours = opened(place, "gpuzarr", device="host", storage_options=storage_options)

    assert_same_dataset(ours.load(), opened(place, "zarr", storage_options=storage_options).load())


TS_GRID = {"name": "regular", "configuration": {"chunk_shape": [4, 6]}}
TS_BYTES, TS_CRC32C = {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}


def ts_sharded(*compressors, index_location="end", checksum=True, before=()):
    index = {"index_codecs": [TS_BYTES, TS_CRC32C][: 1 + checksum], "index_location": index_location}
    sharding = {"chunk_shape": [2, 3], "codecs": [*before, TS_BYTES, *compressors], **index}
    codecs = [{"name": "sharding_indexed", "configuration": sharding}]
    return {"driver": "zarr3", "metadata": {"chunk_grid": TS_GRID, "codecs": codecs}}


def ts_v2(**metadata):
    return {"driver": "zarr", "metadata": {"chunks": [4, 6], **metadata}}


TS_TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
TS_BLOSC = {"cname": "zstd", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4, "blocksize": 0}
TENSORSTORE_FILES = {
    "raw": ts_sharded(),
    "zstd": ts_sharded({"name": "zstd", "configuration": {"level": 3}}),
    "gzip": ts_sharded({"name": "gzip", "configuration": {"level": 6}}),
    "blosc": ts_sharded({"name": "blosc", "configuration": TS_BLOSC}),
    "crc32c": ts_sharded(TS_CRC32C),
    "gzip+crc32c": ts_sharded({"name": "gzip", "configuration": {"level": 6}}, TS_CRC32C),
    "transpose": ts_sharded(before=[TS_TRANSPOSE]),
    "index at the start": ts_sharded(index_location="start"),
    "index without checksum": ts_sharded(checksum=False),
    "unsharded": {"driver": "zarr3", "metadata": {"chunk_grid": TS_GRID}},
    "v2 raw": ts_v2(compressor=None),
    "v2 order F": ts_v2(order="F", compressor=None),
    "v2 slashes": ts_v2(dimension_separator="/"),
    "v2 zstd": ts_v2(compressor={"id": "zstd", "level": 1}),
    "v2 zlib": ts_v2(compressor={"id": "zlib", "level": 1}),
    "v2 blosc": ts_v2(compressor={"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}),
}


@pytest.mark.parametrize("spec", TENSORSTORE_FILES.values(), ids=[*TENSORSTORE_FILES])
def test_file_that_tensorstore_wrote(tmp_path, spec):
    tensorstore_write(f"{tmp_path}/t", DATA, spec)

    assert_same_bits(read_array(zarr.open_array(tmp_path / "t", mode="r"), device="host"), DATA)
