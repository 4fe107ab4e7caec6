"""Tables of codecs say something of each: one that is entered only by half is an error at import, not at a read."""

import pytest
from helpers.data.corpus import counting, write
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders.cuda import chain
from xarray_gpuzarr.decoders.cuda.batches import streams
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.codecs import (
    AnyElementSpec,
    BloscSpec,
    CompressorSpec,
    DeltaSpec,
    DeviceCompressorSpec,
    ZstdSpec,
    of_each,
)


@pytest.mark.parametrize("kinds", [CompressorSpec, DeviceCompressorSpec, AnyElementSpec])
def test_a_row_that_is_missing_is_named(kinds):
    with pytest.raises(TypeError, match=r"lacks a row, or has one too many: .*(ZlibSpec|PackBitsSpec)"):
        of_each(kinds, {BloscSpec: 1, DeltaSpec: 2})


def test_a_row_too_many_is_named():
    rows = dict.fromkeys(streams.ENVELOPES)
    assert of_each(DeviceCompressorSpec, rows) is rows
    with pytest.raises(TypeError, match="DeltaSpec"):
        of_each(DeviceCompressorSpec, {**rows, DeltaSpec: None})


def test_a_compressor_that_no_device_knows_is_the_hosts(monkeypatch):
    spec = stored_array(write(MemoryStore(), counting((8,)), chunks=(4,), compressors=ZstdCodec())).spec
    monkeypatch.delitem(streams.ENVELOPES, ZstdSpec)
    chain.chain_of.cache_clear()

    assert chain.chain_of(spec) == "zstd: no decoder of the device knows it"
    chain.chain_of.cache_clear()
