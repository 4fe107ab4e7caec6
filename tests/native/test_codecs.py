"""The decoders that the loops call are found in imagecodecs' libraries."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.loops import rows_taken
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.host.codecs import chunk_codec
from xarray_gpuzarr.native import codecs, native_codec

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

NAMES = ["zstd", "blosc", "lz4", "zlib", "gzip"]
WITH_CONTEXT = ["zstd", "zlib", "gzip"]
COMPRESSORS = {
    "zstd": ZstdCodec(),
    "blosc": BloscCodec(),
    "lz4": zn.LZ4(),
    "zlib": zn.Zlib(),
    "gzip": GzipCodec(),
}
DATA = counting((24, 20))


@pytest.fixture
def forgotten():
    """What was found is looked for again, before and after."""
    native_codec.cache_clear()
    chunk_codec.cache_clear()
    yield
    native_codec.cache_clear()
    chunk_codec.cache_clear()


@pytest.mark.parametrize("name", NAMES)
def test_every_codec_is_found(name):
    found = native_codec(name)

    assert found is not None
    assert found.decode
    assert bool(found.make_context) == bool(found.free_context) == (name in WITH_CONTEXT)


def test_numbers_are_those_of_the_source():
    """``enum codec { RAW, ZSTD, BLOSC, LZ4, ZLIB, GZIP }``."""
    assert [native_codec(name).number for name in ["raw", *NAMES]] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("missing", ["module", "file", "symbol"])
def test_a_codec_whose_library_does_not_show_it(compiled, forgotten, monkeypatch, memory, name, missing):
    array = write(memory, DATA, chunks=(8, 5), compressors=COMPRESSORS[name])
    modules = {
        "file": lambda _: SimpleNamespace(__file__="/nowhere/module.so"),
        "symbol": lambda _: SimpleNamespace(__file__=np._core._multiarray_umath.__file__),
    }
    monkeypatch.setattr(codecs, "import_module", modules.get(missing, _no_module))

    with rows_taken() as taken:
        assert_same_bits(read_array(array, device="host"), DATA)

    assert native_codec(name) is None
    assert native_codec("raw") is not None
    assert taken.n_given == 0


def _no_module(name):
    raise ImportError(name)
