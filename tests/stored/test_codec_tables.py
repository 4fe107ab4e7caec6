"""Tables of codecs say something of each: one that is entered only by half is an error at import, not at a read."""

from helpers.data.corpus import counting, write
from zarr.codecs import ZstdCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders.cuda import chain
from xarray_gpuzarr.decoders.cuda.batches import streams
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.codecs import (
    ZstdSpec,
)


def test_a_compressor_that_no_device_knows_is_the_hosts(monkeypatch):
    spec = stored_array(write(MemoryStore(), counting((8,)), chunks=(4,), compressors=ZstdCodec())).spec
    monkeypatch.delitem(streams.ENVELOPES, ZstdSpec)
    chain.chain_of.cache_clear()

    assert chain.chain_of(spec) == "zstd: no decoder of the device knows it"
    chain.chain_of.cache_clear()
