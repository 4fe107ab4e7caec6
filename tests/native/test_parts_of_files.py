"""Of a raw chunk in a local file, and of a long frame of zstd, no more is read than what a selection needs."""

import numpy as np
import pytest
import zarr
import zstandard
from helpers.loops import require_loops

from xarray_gpuzarr import CorruptChunkError
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.read import read, read_points, stored_array
from xarray_gpuzarr.stored.cf import Cast

DATA = np.arange(40 * 64 * 32, dtype="<f4").reshape(40, 64, 32)
ROW = DATA[0].nbytes
CAST = Cast(dtype="<f8", mask=(7.0,), scale=0.5, offset=-3.0)
LAYOUTS = {
    "file": {"chunks": DATA.shape},
    "files": {"chunks": (20, 64, 32)},
    "shard": {"chunks": (20, 64, 32), "shards": DATA.shape},
    "swapped": {"chunks": DATA.shape, "serializer": zarr.codecs.BytesCodec(endian="big")},
    "transposed": {"chunks": DATA.shape, "filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]},
}
SELECTIONS = {
    "planes": (slice(3, 5),),
    "last": (slice(-1, None), slice(-1, None), slice(-1, None)),
    "box": (slice(2, 9), slice(7, 60, 9), slice(1, 30)),
    "backwards": (slice(9, 2, -3), slice(None, None, -1)),
    "integer": (31,),
    "array": ([4, 4, 2], slice(3, 9), [31, 0]),
    "across": (slice(18, 23), 5),
    "nothing": (slice(4, 4),),
}


@pytest.fixture
def store(tmp_path):
    require_loops()
    return tmp_path / "a"


def _written(store, layout):
    array = zarr.create_array(store, shape=DATA.shape, dtype="f4", compressors=None, fill_value=-1, **LAYOUTS[layout])
    array[...] = DATA
    return array


def _n_read(call):
    before = counters.snapshot().read_nbytes
    result = call()
    return result, counters.snapshot().read_nbytes - before


@pytest.mark.parametrize("cast", [None, CAST], ids=["as stored", "scaled"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_have_the_values(store, layout, cast):
    stored = stored_array(_written(store, layout), cast)
    values = DATA if cast is None else np.where(DATA == 7, np.nan, DATA.astype("f8")) * 0.5 - 3

    for selection in SELECTIONS.values():
        found = read(stored, selection, decoder_for("host"))
        outer = tuple([np.arange(n)[key] for key, n in zip(selection, DATA.shape, strict=False)])
        expected = values
        for axis, key in reversed(list(enumerate(outer))):
            expected = expected.take(key, axis)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("layout", "extra"), [("file", 0), ("files", 0), ("shard", 2 * 16 + 4)])
def test_only_a_part_is_read(store, layout, extra):
    stored = stored_array(_written(store, layout))

    _, n_read = _n_read(lambda: read(stored, (slice(3, 5),), decoder_for("host")))
    assert n_read in (2 * ROW, 2 * ROW + extra)  # and the index, unless it was in the cache
    _, n_read = _n_read(lambda: read_points(stored, ([3, 3], [1, 2], [5, 5]), decoder_for("host")))
    assert n_read - 4 <= 33 * 4 + extra


def test_a_chunk_of_which_much_is_needed_is_read_whole(store):
    stored = stored_array(_written(store, "file"))

    _, n_read = _n_read(lambda: read(stored, (slice(3, 24),), decoder_for("host")))
    assert n_read == DATA.nbytes


@pytest.mark.parametrize("change", [-1, 1, -DATA.nbytes])
def test_a_file_of_another_length_is_damaged(store, change):
    array = _written(store, "file")
    file = store / "c" / "0" / "0" / "0"
    file.write_bytes((file.read_bytes() + b"x")[: DATA.nbytes + change])

    with pytest.raises(CorruptChunkError):
        read(stored_array(array), (slice(3, 5),), decoder_for("host"))


def test_a_directory_is_a_missing_chunk(store):
    array = _written(store, "file")
    file = store / "c" / "0" / "0" / "0"
    file.unlink()
    file.mkdir()

    assert (read(stored_array(array), (slice(3, 5),), decoder_for("host")) == -1).all()


@pytest.mark.parametrize("layout", ["file", "shard"])
@pytest.mark.parametrize("checksum", [False, True])
def test_a_long_frame_is_decoded_as_far_as_it_is_needed(store, layout, checksum):
    """Frames of 16 MiB or more are decoded as they are read; what bears a checksum is read to its end."""
    data = np.random.default_rng(0).integers(0, 2000, 6_000_000).astype("<i4")
    shards = {"shards": (2 * len(data),)} if layout == "shard" else {}
    array = zarr.create_array(
        store,
        shape=(2 * len(data),),
        chunks=data.shape,
        dtype="i4",
        compressors=zarr.codecs.ZstdCodec(level=1, checksum=checksum),
        **shards,
    )
    array[: len(data)] = data
    stored = stored_array(array)
    _, whole = _n_read(lambda: read(stored, (slice(0, len(data)),), decoder_for("host")))

    for first, most in ((5, 0.4), (3_000_000, 0.8), (len(data) - 9, 1)):
        selection = (slice(first, first + 9),)
        found, n_read = _n_read(lambda selection=selection: read(stored, selection, decoder_for("host")))
        np.testing.assert_array_equal(found, data[selection])
        assert n_read <= (whole if checksum else most * whole)
        assert n_read > 0.9 * whole or not checksum


def test_a_long_frame_of_another_length_is_damaged(store):
    data = np.ones(6_000_000, "<i4")
    array = zarr.create_array(store, data=data, chunks=data.shape, compressors=zarr.codecs.ZstdCodec(level=1))
    file = store / "c" / "0"
    file.write_bytes(zstandard.ZstdCompressor().compress(data[:-1].tobytes()))

    with pytest.raises(CorruptChunkError):
        read(stored_array(array), (slice(3, 9),), decoder_for("host"))
