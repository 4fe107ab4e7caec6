"""Frames that are left to zarr-python are checked first: a wrong header never gives bytes of other owners."""

import pickle

import google_crc32c
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.data.blosc_frames import assemble, streams
from helpers.older_versions import ZARR
from helpers.stores.fakes import put, take
from numpy.testing import assert_array_equal
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError, read_array, zarr_pipeline

pytestmark = pytest.mark.filterwarnings("ignore")

N = 12
TEXT = np.array([b"abcde", b"", b"xyz"] * (N // 3), "S5")
NUMBERS = np.arange(N)
STRUCTURES = np.array([(i, 2.5 * i) for i in range(N)], [("n", "<i4"), ("v", "<f8")])
TIMES = (NUMBERS * 86_400_000_000_000).astype("datetime64[ns]")
BLOSC = BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=1)
OF_NUMCODECS = zarr.codecs.numcodecs.Blosc(cname="lz4", clevel=5)
WITH_UNKNOWN = [zarr.codecs.numcodecs.BZ2(), BLOSC]
V2_BLOSC = numcodecs.Blosc("lz4", 5)
SHARDS = {"shards": (N,), "chunks": (N // 2,)}
LAYOUTS = {
    "S5": (TEXT, {"compressors": BLOSC}),
    "U3": (TEXT.astype("U3"), {"compressors": OF_NUMCODECS}),
    "datetime64": (TIMES, {"compressors": BLOSC}),
    "structures": (STRUCTURES, {"compressors": BLOSC}),
    "unknown codec": (NUMBERS, {"compressors": WITH_UNKNOWN}),
    "S5, sharded": (TEXT, {"compressors": BLOSC} | SHARDS),
    "unknown codec, sharded": (NUMBERS, {"compressors": WITH_UNKNOWN} | SHARDS),
    "S5, format 2": (TEXT, {"zarr_format": 2, "compressors": V2_BLOSC}),
    "structures, format 2": (STRUCTURES, {"zarr_format": 2, "compressors": V2_BLOSC}),
    "filter, format 2": (TEXT, {"zarr_format": 2, "filters": [V2_BLOSC], "compressors": None}),
    "unknown codec, format 2": (NUMBERS, {"zarr_format": 2, "filters": [numcodecs.BZ2()], "compressors": V2_BLOSC}),
}


def by_pipeline(store):
    with zarr_pipeline():
        return zarr.open_array(store, path="a")[...]


def by_pickled_pipeline(store):
    with zarr_pipeline():
        array = zarr.open_array(store, path="a")
    return pickle.loads(pickle.dumps(array))[...]


def by_engine(store):
    options = {"engine": "gpuzarr", "device": "host", "consolidated": False, "mask_and_scale": False}
    return xr.open_dataset(store, **options).a.values


READS = {
    "engine": by_engine,
    "read_array": lambda store: read_array(zarr.open_array(store, path="a"), device="host"),
}
if ZARR >= (3, 2):  # before, zarr-python does not ask this package for pipelines
    READS |= {"pipeline": by_pipeline, "pickled pipeline": by_pickled_pipeline}


def write(data, layout):
    """Return a store with one array, ``a``, the key of its first object, and the first frame in there."""
    store = MemoryStore()
    group = zarr.create_group(store, zarr_format=layout.get("zarr_format", 3))
    options = {"chunks": data.shape, "filters": None} | {k: v for k, v in layout.items() if k != "zarr_format"}
    if "zarr_format" not in layout:
        options["dimension_names"] = ["x"]
    array = group.create_array("a", shape=data.shape, dtype=data.dtype, **options)
    array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    array[...] = data
    key = "a/0" if array.metadata.zarr_format == 2 else "a/c/0"
    encoded = take(store, key)
    return store, key, encoded[: int.from_bytes(encoded[12:16], "little")]


def with_first_chunk(stored, encoded, *, is_shard):
    """Return an object whose first chunk is another one; of a shard of two chunks, with an index at the end."""
    if not is_shard:
        return encoded
    index = bytearray(stored[-36:-4])
    index[8:16] = len(encoded).to_bytes(8, "little")
    first = encoded + stored[len(encoded) : -36]
    return first + index + google_crc32c.value(bytes(index)).to_bytes(4, "little")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_frame_that_is_not_as_long_as_its_header_says_is_an_error(layout, read):
    data, options = LAYOUTS[layout]
    store, key, frame = write(data, options)
    stored = take(store, key)
    assert_array_equal(READS[read](store), data)
    cut_short = [frame[:n] for n in range(1, len(frame))]
    of_wrong_length = [frame[:12] + n.to_bytes(4, "little") + frame[16:] for n in (0, 15, len(frame) + 1, 2**32 - 1)]

    for damaged in cut_short + of_wrong_length:
        put(store, key, with_first_chunk(stored, damaged, is_shard="shards" in options))
        with pytest.raises(CorruptChunkError, match="blosc header"):
            READS[read](store)


@pytest.mark.parametrize("read", READS)
def test_a_block_that_its_streams_do_not_fill_is_an_error(read):
    """Numcodecs returns the bytes behind the last stream of each block as they were allocated."""
    data = np.full(1024, b"abc", "S3")
    store, key, _ = write(data, {"compressors": BLOSC})
    block = streams(*[bytes(341)] * 3)
    put(store, key, assemble([block] * 3, flags=1 << 5, typesize=3, nbytes=3072, blocksize=1024))

    with pytest.raises(CorruptChunkError, match="multiple of the typesize"):
        READS[read](store)


@pytest.mark.skipif(ZARR < (3, 2), reason="zarr-python does not ask this package for pipelines")
def test_a_chunk_that_is_written_in_part_is_checked():
    store, key, frame = write(TEXT, {"compressors": BLOSC})
    put(store, key, frame[:20])
    with zarr_pipeline():
        array = zarr.open_array(store, path="a")

    with pytest.raises(CorruptChunkError, match="a/c/0"):
        array[:2] = b"new"
    assert take(store, key) == frame[:20]


def test_metadata_of_checked_codecs_are_those_of_the_array():
    """Nothing of zarr-python is changed: the array that a user holds keeps its codecs."""
    store, _, _ = write(TEXT, {"compressors": BLOSC} | SHARDS)
    array = zarr.open_array(store, path="a")
    before = array.metadata.to_dict()
    read_array(array, device="host")
    with zarr_pipeline():
        assert zarr.open_array(store, path="a").metadata.to_dict() == before
    assert array.metadata.to_dict() == before
