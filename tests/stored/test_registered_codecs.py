"""Codecs that are registered anew, or chosen by zarr-python's settings, decode what is opened later."""

import numcodecs
import numpy as np
import pytest
import zarr
from numcodecs.abc import Codec
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import ShardingCodec
from zarr.registry import register_codec
from zarr.storage import MemoryStore

from xarray_gpuzarr import read_array, zarr_pipeline

pytestmark = pytest.mark.filterwarnings("ignore")

DATA = np.arange(48, dtype="u1").reshape(8, 6)


def shifting(number):
    """A codec of format 2 that adds to each byte."""

    class Shifting(Codec):
        codec_id = "gpuzarr_tests_shifting"

        def encode(self, buf):
            return bytes(buf)

        def decode(self, buf, out=None):
            return (np.frombuffer(bytes(buf), "u1") + number).astype("u1").tobytes()

    return Shifting


class Adding(BytesBytesCodec):
    """A codec of format 3 that adds to each byte."""

    is_fixed_size = True
    number = 0

    def to_dict(self):
        return {"name": "gpuzarr_tests.adding", "configuration": {}}

    @classmethod
    def from_dict(cls, data):
        return cls()

    def compute_encoded_size(self, input_byte_length, chunk_spec):
        return input_byte_length

    async def _encode_single(self, chunk_bytes, chunk_spec):
        return chunk_bytes

    async def _decode_single(self, chunk_bytes, chunk_spec):
        shifted = (chunk_bytes.as_numpy_array() + np.uint8(self.number)).astype("u1")
        return chunk_spec.prototype.buffer.from_bytes(shifted.tobytes())


class AddingMore(Adding):
    number = 5


def assert_as_stock(store):
    expected = zarr.open_array(store, mode="r")[2:7]
    np.testing.assert_array_equal(read_array(zarr.open_array(store, mode="r"), slice(2, 7), device="host"), expected)
    with zarr_pipeline():
        np.testing.assert_array_equal(zarr.open_array(store, mode="r")[2:7], expected)
    return expected


@pytest.mark.parametrize("as_filter", [True, False])
def test_a_class_of_numcodecs_that_is_registered_anew(as_filter):
    store, seen = MemoryStore(), []
    for number in (0, 1, 7, 0):
        numcodecs.register_codec(shifting(number))
        if not seen:
            codec = shifting(0)()
            keywords = {"filters": [codec], "compressors": None} if as_filter else {"compressors": codec}
            zarr.create_array(store, data=DATA, chunks=(4, 6), zarr_format=2, **keywords)
        seen.append(assert_as_stock(store))

    assert [int(block[0, 0]) - int(DATA[2, 0]) for block in seen] == [0, 1, 7, 0]


@pytest.mark.parametrize("sharded", [True, False])
def test_a_class_of_zarr_that_the_settings_choose(sharded):
    register_codec("gpuzarr_tests.adding", Adding)
    register_codec("gpuzarr_tests.adding", AddingMore)
    paths = [f"{cls.__module__}.{cls.__qualname__}" for cls in (Adding, AddingMore)]
    store, seen = MemoryStore(), []
    for path in (*paths, paths[0]):
        with zarr.config.set({"codecs": {**zarr.config.get("codecs"), "gpuzarr_tests.adding": path}}):
            if not seen:
                layout = {"shards": (8, 6)} if sharded else {}
                zarr.create_array(store, data=DATA, chunks=(4, 6), compressors=Adding(), **layout)
            seen.append(assert_as_stock(store))

    assert [int(block[0, 0]) - int(DATA[2, 0]) for block in seen] == [0, 5, 0]


def test_names_inside_of_shards_are_looked_at():
    register_codec("gpuzarr_tests.adding", Adding)
    store = MemoryStore()
    inner = ShardingCodec(chunk_shape=(2, 6), codecs=[zarr.codecs.BytesCodec(), Adding()])
    zarr.create_array(
        store, data=DATA, chunks=(8, 6), serializer=ShardingCodec(chunk_shape=(4, 6), codecs=[inner]), compressors=None
    )

    assert_as_stock(store)
