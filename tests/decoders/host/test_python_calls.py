"""What Python does for a read of local files: as good as nothing for each chunk, and little for the read."""

import sys
from collections.abc import Callable

import numcodecs.zarr3 as zn
import numpy as np
import pytest
import zarr
from helpers.data.corpus import write
from helpers.loops import require_loops
from zarr.codecs import BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore

from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.process import threads
from xarray_gpuzarr.read import read, stored_array
from xarray_gpuzarr.read.reading import read_points
from xarray_gpuzarr.stored.cf import Cast

pytestmark = pytest.mark.filterwarnings("ignore")

PLAIN = Cast(dtype="<i2")
PACKED = Cast(dtype="<f4", mask=(-32768,), scale=0.01, offset=273.15)
MASKED = Cast(dtype="<f8", mask=(5, 7))
FEW, MANY = 10, 30
"""Chunks of a row, of which there are 64."""
EVERY_THIRD = np.arange(0, 64, 3)


@pytest.fixture(autouse=True)
def kept_indexes(monkeypatch):
    require_loops()
    monkeypatch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
    monkeypatch.delitem(sys.modules, "distributed.worker", raising=False)  # asked for threads, where there are workers
    index_cache.cache.clear()
    yield
    index_cache.cache.clear()


def n_calls(do: Callable[[], object]) -> int:
    """Count the Python functions that are called by this thread, once caches are warm: the least of three times."""
    for _ in range(3):
        do()
    return min(_n_calls(do) for _ in range(3))  # a collection of garbage, or a signal, calls some more


def _n_calls(do: Callable[[], object]) -> int:
    n = 0

    def count(_frame, event, _argument):
        nonlocal n
        n += event == "call"

    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
    return n


def array_of(path, n_chunks: int, **keywords) -> zarr.Array:
    """Return a shard of 64 rows of chunks."""
    data = np.random.default_rng(0).integers(0, 99, (64, 8 * n_chunks)).astype("i2")
    keywords = {"compressors": ZstdCodec(level=1)} | keywords
    return write(LocalStore(path), data, chunks=(1, 8), shards=(64, 8 * n_chunks), **keywords)


@pytest.mark.parametrize(
    ("cast", "keywords", "key"),
    [
        pytest.param(PLAIN, {}, slice(None), id="copied"),
        pytest.param(PACKED, {}, slice(None), id="packed"),
        pytest.param(MASKED, {}, slice(None), id="masked"),
        pytest.param(PACKED, {"compressors": None}, slice(None), id="packed, raw"),
        pytest.param(PLAIN, {"serializer": BytesCodec(endian="big")}, slice(None), id="swapped"),
        pytest.param(PLAIN, {"filters": TransposeCodec(order=(1, 0))}, slice(None), id="transposed"),
        pytest.param(
            PACKED, {"compressors": [zn.Shuffle(elementsize=2), zn.Zstd(level=1)]}, slice(None), id="shuffled"
        ),
        pytest.param(PLAIN, {"compressors": [ZstdCodec(), Crc32cCodec()]}, slice(None), id="with checksums"),
        pytest.param(PACKED, {"filters": [zn.Delta(dtype="<i2")]}, slice(None), id="differences"),
        pytest.param(PACKED, {}, (EVERY_THIRD, slice(None)), id="index array"),
        pytest.param(PACKED, {}, (slice(None), slice(0, None, 3)), id="steps"),
    ],
)
def test_a_chunk_costs_no_call(tmp_path, cast, keywords, key):
    calls = []
    for n_chunks in FEW, MANY:
        stored = stored_array(array_of(tmp_path / str(n_chunks), n_chunks, **keywords), cast)
        calls.append(n_calls(lambda stored=stored: threads.limit_threads(1, lambda: read(stored, key, HostDecoder()))))

    assert calls[1] - calls[0] < 64 * (MANY - FEW) * 0.01


def test_points_cost_no_call(tmp_path):
    calls = []
    for n_chunks in FEW, MANY:
        stored = stored_array(array_of(tmp_path / str(n_chunks), n_chunks), PACKED)
        places = np.indices((64, n_chunks)).reshape(2, -1) * [[1], [8]]
        one = lambda stored=stored, at=tuple(places): read_points(stored, at, HostDecoder())  # noqa: E731
        calls.append(n_calls(lambda one=one: threads.limit_threads(1, one)))

    assert calls[1] - calls[0] < 64 * (MANY - FEW) * 0.01


@pytest.mark.parametrize("cast", [Cast(dtype="<u2"), PACKED])
@pytest.mark.parametrize(
    ("key", "most"), [((slice(32, 64),) * 3, 148), ((slice(10, 74),) * 3, 170)], ids=["a chunk", "a crop"]
)
def test_a_read_takes_few_calls(tmp_path, key, most, cast):
    array = zarr.create_array(
        LocalStore(tmp_path), shape=(256,) * 3, chunks=(32,) * 3, shards=(128,) * 3, dtype="u2", compressors=ZstdCodec()
    )
    array[:128, :128, :128] = np.random.default_rng(0).integers(0, 99, (128,) * 3).astype("u2")
    stored = stored_array(array, cast)

    assert n_calls(lambda: read(stored, key, HostDecoder())) <= most
