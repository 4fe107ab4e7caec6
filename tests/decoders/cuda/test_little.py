"""Reads of a few chunks: which go to the host, by metadata alone, and what is said of it."""

import numpy as np
import pytest
from helpers.data.corpus import counting, write
from helpers.simulated.reads import LAZY, CudaReads, limits
from helpers.simulated.simulator import SimulatedDevice
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders.cuda.routes import why_host_is_faster
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read import stored_array

CODECS = {
    "zstd": ZstdCodec(),
    "lz4": zn.LZ4(),
    "gzip": GzipCodec(),
    "zlib": zn.Zlib(),
    **{f"blosc {cname}": BloscCodec(cname=cname) for cname in ("lz4", "lz4hc", "zstd", "zlib", "blosclz")},
}


def an_array(compressor, n_chunks=8, shards=None):
    data = counting((n_chunks * 1024,), "f4")
    return write(MemoryStore(), data, chunks=(1024,), shards=shards, compressors=compressor), data


def spec_of(compressor, nbytes):
    return stored_array(write(MemoryStore(), np.zeros(nbytes, "u1"), chunks=(nbytes,), compressors=compressor)).spec


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 20])
def test_a_few_chunks_go_to_the_host_and_many_to_the_device(codec, nbytes):
    spec = spec_of(CODECS[codec], nbytes)

    assert [why_host_is_faster(spec, n) is None for n in (1, 30, 31, 1000)] == [False, False, True, True]


def test_chunks_that_are_not_compressed_go_to_the_device():
    assert why_host_is_faster(spec_of(None, 1 << 20), 1) is None


@pytest.mark.parametrize(("little", "n_calls"), [("auto", 0), ("device", 1)])
def test_reads_go_where_the_rule_says(little, n_calls):
    array, data = an_array(ZstdCodec())
    device, before = SimulatedDevice(LAZY), counters.snapshot()

    with limits(little=little, batch_chunks=100):
        np.testing.assert_array_equal(CudaReads(device).values(array), data)

    assert device.calls["nvcomp"] == n_calls
    assert (counters.snapshot() - before).n_by_host == (0 if n_calls else 8)


@pytest.mark.parametrize("shards", [None, (4096,)])
def test_the_rule_is_explained(shards):
    array, _ = an_array(ZstdCodec(), shards=shards)
    decoder, stored = CudaReads(SimulatedDevice(LAZY)).decoder, stored_array(array)

    with limits(little="auto"):
        found = decoder.route(stored.spec, stored.cast)
    with limits(little="device"):
        forced = decoder.route(stored.spec, stored.cast)

    assert found.where == "host, then one copy to the device"
    assert "up to 30 chunks" in found.why
    assert (forced.where, forced.why) == ("cuda", "")
