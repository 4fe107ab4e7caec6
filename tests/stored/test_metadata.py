"""What an array was found to be: kept while its metadata object lives, refused where zarr-python reads it wrongly."""

import gc

import numpy as np
import pytest
import zarr
from helpers.data.corpus import counting, spec_of, write
from zarr.codecs import BytesCodec, ZstdCodec, numcodecs
from zarr.storage import MemoryStore

from xarray_gpuzarr import UnsupportedCodecError, read_array
from xarray_gpuzarr.decoders.cuda import chain
from xarray_gpuzarr.decoders.cuda.batches import formats
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored import metadata
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.codecs import ZstdSpec


def _array(path: str = "a") -> zarr.Array:
    group = zarr.create_group({})
    return group.create_array(path, data=np.arange(12).reshape(3, 4), chunks=(1, 2), shards=(1, 4))


def test_a_resized_array_is_parsed_again():
    array = _array()
    before = spec_of(array)

    array.resize((5, 4))

    assert (before.grid.shape, spec_of(array).grid.shape) == ((3, 4), (5, 4))
    np.testing.assert_array_equal(read_array(array, device="host"), array[...])


def test_arrays_that_share_metadata_keep_their_paths():
    one, other = _array("one"), _array("other")
    object.__setattr__(other.async_array, "metadata", one.metadata)

    assert [spec_of(a).path for a in (one, other, one)] == ["/one", "/other", "/one"]


def test_nothing_is_kept_of_arrays_that_are_gone():
    array = _array()
    number = id(array.metadata)
    spec_of(array)
    assert number in metadata.parsed_metadata

    del array
    gc.collect()

    assert number not in metadata.parsed_metadata


@pytest.mark.filterwarnings("ignore:Numcodecs codecs")
@pytest.mark.parametrize("endian", ["big", "little"])
def test_what_an_older_zarr_reads_wrongly_is_refused(monkeypatch, endian):
    filters, compressors = [numcodecs.Delta(dtype="i4")], [numcodecs.LZMA()]  # the host leaves LZMA to zarr-python
    codecs = {"filters": filters, "serializer": BytesCodec(endian=endian), "compressors": compressors}
    monkeypatch.setattr(metadata, "ZARR_VERSION", (3, 2))
    array = zarr.create_array(MemoryStore(), name="wind", shape=(4,), chunks=(2,), dtype="i4", **codecs)

    if endian == "little":
        assert isinstance(spec_of(array), ArraySpec)
        return
    with pytest.raises(UnsupportedCodecError, match="decodes array '/wind' to wrong numbers") as refused:
        spec_of(array)
    assert "pip install 'zarr>=3.3'" in refused.value.do


def test_a_compressor_that_no_device_knows_is_the_hosts(monkeypatch):
    spec = stored_array(write(MemoryStore(), counting((8,)), chunks=(4,), compressors=ZstdCodec())).spec
    monkeypatch.delitem(formats.ENVELOPES, ZstdSpec)
    chain.find_chain.cache_clear()

    assert chain.find_chain(spec) == "zstd: no decoder of the device knows it"
    chain.find_chain.cache_clear()
