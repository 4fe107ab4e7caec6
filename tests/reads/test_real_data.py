"""Real ERA-Interim winds, packed as int16, rewritten as sharded and unsharded stores and read back every way."""

import os
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits, assert_same_values
from helpers.data.datasets import open_ours
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn

from xarray_gpuzarr import read_array

SOURCE = Path(os.environ.get("XARRAY_GPUZARR_ERAINT", Path(__file__).parents[3] / "shared" / "data" / "eraint_uvz.nc"))

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.skipif(not SOURCE.exists(), reason=f"no ERA-Interim file at {SOURCE} (set XARRAY_GPUZARR_ERAINT)"),
    pytest.mark.filterwarnings("ignore"),
]

FILL_VALUE = np.int16(-32768)
CHUNKS, SHARDS = (1, 1, 60, 120), (1, 3, 120, 480)
V3 = {
    "none": None,
    "zstd": ZstdCodec(),
    "zstd-checksum": ZstdCodec(checksum=True),
    "gzip": GzipCodec(level=1),
    "lz4": zn.LZ4(acceleration=1),
    "zlib": zn.Zlib(level=1),
    "blosc-lz4": BloscCodec(cname="lz4", shuffle="shuffle", typesize=2),
    "blosc-zstd-bitshuffle": BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=2),
    "blosc-blosclz": BloscCodec(cname="blosclz", shuffle="bitshuffle", typesize=2),
    "blosc-zlib-noshuffle": BloscCodec(cname="zlib", clevel=1, shuffle="noshuffle", typesize=2),
}
V2 = {
    "none": None,
    "zstd": numcodecs.Zstd(),
    "gzip": numcodecs.GZip(level=1),
    "zlib": numcodecs.Zlib(level=1),
    "lz4": numcodecs.LZ4(),
    "blosc-lz4": numcodecs.Blosc(cname="lz4", shuffle=1),
    "blosc-zstd-bitshuffle": numcodecs.Blosc(cname="zstd", shuffle=2),
    "blosc-blosclz": numcodecs.Blosc(cname="blosclz", shuffle=2),
}
STORES = [("v3", name) for name in V3] + [("v2", name) for name in V2]


@pytest.fixture(scope="module")
def winds():
    """The file's u and v as they are stored: packed integers, attributes and all.

    Its fill value is NaN, which no integer can have; both formats get one that no wind has.
    """
    with xr.open_dataset(SOURCE, mask_and_scale=False) as ds:
        packed = ds[["u", "v"]].load().drop_encoding()
    packed["u"].attrs["_FillValue"] = packed["v"].attrs["_FillValue"] = FILL_VALUE
    return packed


@pytest.fixture(scope="module", params=STORES, ids="-".join)
def path(request, winds, tmp_path_factory):
    """A store of the winds in one format with one codec."""
    zarr_format, codec = request.param
    path = tmp_path_factory.mktemp("era") / "winds.zarr"
    layouts = {
        "v3": {"chunks": CHUNKS, "shards": SHARDS, "compressors": V3.get(codec)},
        "v2": {"chunks": (1, 1, 120, 480), "compressors": V2.get(codec)},
    }
    encoding = dict.fromkeys(("u", "v"), layouts[zarr_format])
    winds.to_zarr(path, encoding=encoding, zarr_format=int(zarr_format[1]))
    return path


@pytest.fixture(scope="module")
def physical():
    """What netCDF and xarray make of the file."""
    with xr.open_dataset(SOURCE) as ds:
        return ds[["u", "v"]].load()


@pytest.mark.every_value
def test_lazily_read_winds_are_those_of_the_file(path, physical):
    ds = open_ours(path)

    assert_same_values(ds["u"].values, physical["u"].values)
    assert_same_values(
        ds["v"].isel(level=1, latitude=slice(None, None, -7)).values,
        physical["v"].isel(level=1, latitude=slice(None, None, -7)).values,
    )


@pytest.mark.every_value
def test_chunked_winds_are_those_of_the_file(path, physical):
    ds = open_ours(path, chunks={})

    xr.testing.assert_equal(ds.compute(), physical)


@pytest.mark.every_value
def test_packed_winds_through_read_array(path, winds):
    array = zarr.open_group(path, mode="r")["u"]

    assert_same_bits(read_array(array, device="host"), winds["u"].values)
    picked = read_array(array, (1, [2, 0], slice(200, 10, -3), [7, 7, -1]), device="host")
    assert_same_bits(picked, winds["u"].values[1][[2, 0], 200:10:-3][:, :, [7, 7, -1]])
