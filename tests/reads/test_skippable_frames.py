"""Zstd chunks with skippable frames before them, as pzstd writes: they hold nothing, and their length says nothing."""

import struct

import pytest
import zarr
from helpers.compare import assert_same_values
from helpers.data.corpus import counting
from helpers.stores.fakes import put, take
from zarr.codecs import ZstdCodec

from xarray_gpuzarr import read_array
from xarray_gpuzarr.frames.headers import declared_nbytes
from xarray_gpuzarr.stored.codecs import ZstdSpec

pytestmark = [pytest.mark.every_decoder, pytest.mark.both_ways, pytest.mark.doubtful_frames]

ROWS = {"short chunks": 2, "chunks that are decoded as they are read": 1024}


def skippable(nbytes, kind):
    return struct.pack("<II", 0x184D2A50 + kind, nbytes) + bytes(nbytes)


@pytest.mark.every_value
@pytest.mark.parametrize("nbytes", [0, 1, 5, 100])
@pytest.mark.parametrize("chunks", [(0, 1), (1,)], ids=["all", "second"])
@pytest.mark.parametrize("n_rows", ROWS.values(), ids=ROWS)
def test_a_frame_after_a_skippable_one_is_read(memory, n_rows, chunks, nbytes):
    array = zarr.create_array(
        memory, shape=(2 * n_rows, 4096), chunks=(n_rows, 4096), dtype="i4", compressors=ZstdCodec()
    )
    array[...] = counting(array.shape, "i4")
    for chunk in chunks:
        put(memory, f"c/{chunk}/0", skippable(nbytes, chunk) + take(memory, f"c/{chunk}/0"))

    assert_same_values(read_array(array, device="host"), array[...])


@pytest.mark.host_decoder
@pytest.mark.parametrize("kind", range(16))
def test_a_skippable_frame_declares_nothing(kind):
    assert declared_nbytes(ZstdSpec(), skippable(3, kind)) is None
