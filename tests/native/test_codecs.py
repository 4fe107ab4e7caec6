"""The decoders that the loops call are found in imagecodecs' libraries."""

from types import SimpleNamespace

import google_crc32c
import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.loops import changed, rows_taken, without_loops
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host.chunk_codec import chunk_codec
from xarray_gpuzarr.native import codec_functions
from xarray_gpuzarr.native.codec_functions import native_codec
from xarray_gpuzarr.native.library import crc32c

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

NAMES = ["zstd", "blosc", "lz4", "zlib", "gzip"]
COMPRESSORS = {"zstd": ZstdCodec(), "blosc": BloscCodec(), "lz4": zn.LZ4(), "zlib": zn.Zlib(), "gzip": GzipCodec()}
DATA = counting((24, 20))
RNG = np.random.default_rng(0)


@pytest.fixture
def forgotten():
    """What was found is looked for again, before and after."""
    native_codec.cache_clear()
    chunk_codec.cache_clear()
    yield
    native_codec.cache_clear()
    chunk_codec.cache_clear()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("missing", ["module", "file", "symbol"])
def test_a_codec_whose_library_does_not_show_it(compiled, forgotten, monkeypatch, memory, name, missing):
    array = write(memory, DATA, chunks=(8, 5), compressors=COMPRESSORS[name])
    modules = {
        "file": lambda _: SimpleNamespace(__file__="/nowhere/module.so"),
        "symbol": lambda _: SimpleNamespace(__file__=np._core._multiarray_umath.__file__),
    }
    monkeypatch.setattr(codec_functions, "import_module", modules.get(missing, _no_module))

    with rows_taken() as taken:
        assert_same_bits(read_array(array, device="host"), DATA)

    assert native_codec(name) is None
    assert native_codec("raw") is not None
    assert not taken.given


def _no_module(name):
    raise ImportError(name)


# ---- checksums


@given(st.binary(max_size=9000), st.integers(0, 64))
@pytest.mark.usefixtures("compiled")
def test_a_checksum_is_that_of_a_library(data, first):
    assert crc32c(memoryview(data)[first:]) == google_crc32c.value(data[first:])


def test_a_checksum_on_processors_without_the_instruction():
    loops = changed((('__builtin_cpu_supports("sse4.2")', "0"),))
    for n in (*range(40), 3071, 3072, 3073, 100_000):
        data = np.frombuffer(RNG.bytes(n + 3), np.uint8)[3:]
        assert loops.crc32c(data.ctypes.data, n) == google_crc32c.value(data.tobytes())


def test_checksums_without_the_loops(monkeypatch):
    without_loops(monkeypatch)

    assert crc32c(b"123456789") == 0xE3069283
