"""The codecs that the loops call are found in the libraries of others; where one is not, that is said."""

import sys
import warnings
from importlib import import_module
from types import SimpleNamespace

import google_crc32c
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.data.blosc_frames import encode
from helpers.data.corpus import counting, write
from helpers.loops import changed, rows_taken, without_loops
from helpers.stores.fakes import put
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn

from xarray_gpuzarr import GpuZarrError, GpuZarrWarning, doctor, explain, read_array, zarr_pipeline
from xarray_gpuzarr.decoders.host import zstd_frames
from xarray_gpuzarr.decoders.host.host_array import host_array
from xarray_gpuzarr.decoders.host.native_program import native_program
from xarray_gpuzarr.native import codec_functions
from xarray_gpuzarr.native.codec_functions import native_codec, native_encoder, why_slow
from xarray_gpuzarr.native.library import crc32c
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.write.encoder import make_encoder

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")

NAMES = ["zstd", "blosc", "lz4", "zlib", "gzip"]
COMPRESSORS = {"zstd": ZstdCodec(), "blosc": BloscCodec(), "lz4": zn.LZ4(), "zlib": zn.Zlib(), "gzip": GzipCodec()}
DATA = counting((24, 20))
RNG = np.random.default_rng(0)


def forget():
    for found in (codec_functions._addresses, native_codec, native_encoder, zstd_frames._functions):
        found.cache_clear()
    for made in (native_program, host_array, make_encoder):
        made.cache_clear()
    advice.warned.discard("slow codecs")


@pytest.fixture
def hidden(monkeypatch, compiled):
    """Return what hides a module of a library, its file or its functions; what was found is looked for again."""
    ways = {
        "module": _no_module,
        "file": lambda _: SimpleNamespace(__file__="/nowhere/module.so"),
        "symbol": lambda _: SimpleNamespace(__file__=np._core._multiarray_umath.__file__),
    }

    def hide(module, way):
        def imported(name):
            return ways[way](name) if name == module else import_module(name)

        monkeypatch.setattr(codec_functions, "import_module", imported)
        forget()

    yield hide
    monkeypatch.undo()
    forget()


def _no_module(name):
    raise ImportError(f"No module named {name!r}")


MISSING = {
    "module": "is decoded slowly, as {module}: No module named '{module}'; install the wheel of a {package} that does",
    "file": "is decoded slowly, as {module}: /nowhere/module.so: ",
    "symbol": "is decoded slowly, as {module} does not export ",
}


@pytest.mark.filterwarnings("ignore::xarray_gpuzarr.GpuZarrWarning")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", MISSING)
def test_a_codec_whose_library_does_not_export_it(hidden, memory, name, way):
    module = codec_functions._DECODERS[name].module
    array = write(memory, DATA, chunks=(8, 5), compressors=COMPRESSORS[name])
    hidden(module, way)

    with rows_taken() as taken:
        assert_same_bits(read_array(array, device="host"), DATA)

    assert native_codec(name) is None
    assert native_codec("raw") is not None
    assert not taken.given
    expected = MISSING[way].format(module=module, package=module.split(".")[0])
    assert f"{name} {expected}" in why_slow(name)
    assert f"{name} is encoded slowly" in why_slow(name)


def test_a_missing_function_is_said_once_and_everywhere(hidden, tmp_path):
    xr.Dataset({"t": (("y", "x"), DATA), "raw": (("y", "x"), DATA)}).to_zarr(
        tmp_path / "s.zarr",
        encoding={"t": {"compressors": [GzipCodec()]}, "raw": {"compressors": None}},
        consolidated=False,
    )
    hidden("deflate._deflate", "symbol")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            dataset = xr.open_dataset(tmp_path / "s.zarr", engine="gpuzarr", device="host").load()
        with zarr_pipeline():
            array = zarr.open_array(tmp_path / "s.zarr" / "t")
        array[:4] = array[:4]
    np.testing.assert_array_equal(dataset["t"], DATA)

    (warning,) = [str(w.message) for w in caught if issubclass(w.category, GpuZarrWarning)]
    for said in ("gzip is decoded slowly", "gzip is encoded slowly", "zlib is decoded slowly", "a deflate that does"):
        assert said in warning
    assert "zstd" not in warning
    explained = xr.open_dataset(tmp_path / "s.zarr", engine="gpuzarr", device="host").gpuzarr.explain()
    rows = {row.variable: row.why for row in explained.rows}
    assert rows["raw"] == ""
    assert rows["t"] == why_slow("gzip")
    assert explain(array).why == why_slow("gzip")
    machine = next(section for section in doctor(device="host").sections if section.name == "machine")
    assert machine.facts["host"]["slow_codecs"] == [why_slow("zlib"), why_slow("gzip")]
    assert [text for label, text in machine.rows if label == "slow codec"] == [why_slow("zlib"), why_slow("gzip")]


def test_nothing_is_slow_with_the_libraries_that_are_required(compiled):
    assert codec_functions.slow_codecs() == []


# ---- one store of each codec, with the libraries that are installed

CONFIGURED = {
    **COMPRESSORS,
    **{f"blosc {cname}": BloscCodec(cname=cname) for cname in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")},
}


@pytest.mark.parametrize("name", CONFIGURED)
@pytest.mark.parametrize("shards", [None, (16, 10)], ids=["chunks", "shards"])
def test_the_loops_read_and_write_a_store_of_each_codec(compiled, tmp_path, name, shards):
    with zarr_pipeline():
        array = zarr.create_array(
            tmp_path / "a.zarr",
            shape=DATA.shape,
            dtype=DATA.dtype,
            chunks=(8, 5),
            shards=shards,
            compressors=CONFIGURED[name],
            filters=None,
        )
        array[:] = DATA

    assert explain(array).ours
    assert explain(array).why_not_written == ""
    assert explain(array).why == ""
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a.zarr", mode="r")[:], DATA)
    with rows_taken() as taken:
        assert_same_bits(read_array(zarr.open_array(tmp_path / "a.zarr", mode="r"), device="host"), DATA)
    assert taken.n_rows == 12


# ---- snappy, which only the C-Blosc of imagecodecs knows


def snappy_array(store):
    codec = BloscCodec(cname="lz4", typesize=DATA.itemsize)
    array = zarr.create_array(store, shape=(8, 5), chunks=(8, 5), dtype=DATA.dtype, compressors=codec, filters=None)
    array[:] = DATA[:8, :5]
    frame = encode(DATA[:8, :5].tobytes(), cname="snappy", typesize=DATA.itemsize, shuffle=1, blocksize=256)
    put(store, "c/0/0", frame)
    return array


def test_snappy_is_decoded_by_imagecodecs(memory):
    assert_same_bits(read_array(snappy_array(memory), device="host"), np.ascontiguousarray(DATA[:8, :5]))


def test_snappy_without_imagecodecs_says_what_to_install(memory, monkeypatch):
    array = snappy_array(memory)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)

    with pytest.raises(
        GpuZarrError, match=r"Blosc frames of snappy need imagecodecs: pip install 'xarray-gpuzarr\[snappy\]'"
    ):
        read_array(array, device="host")


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
