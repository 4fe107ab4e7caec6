"""Blosc frames of zlib streams, which the loops decode: what C-Blosc makes of every frame, sound or damaged."""

import imagecodecs
import numcodecs
import numpy as np
import pytest
import zarr
from helpers.data.blosc_frames import CODECS, assemble, encode, streams
from helpers.loops import changed, require_loops, rows_taken
from helpers.profiles import many
from helpers.stores.fakes import put
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.native import library
from xarray_gpuzarr.read import read, stored_array

SHORT = (("BLOSC_LEAST_INFLATED = 32 * 1024", "BLOSC_LEAST_INFLATED = 1"),)


@pytest.fixture(autouse=True, scope="module")
def of_short_frames():
    require_loops()
    with pytest.MonkeyPatch.context() as patch:
        found = changed(SHORT)
        patch.setattr(library, "find", lambda: found)
        yield


def walk(n: int, dtype: str, steps: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(n).integers(0, steps, n)).astype(dtype)


def inflated(frame: bytes, nbytes: int, part: slice = slice(None)) -> tuple[bytes, int]:
    """Return what a read gives of a chunk, and how many chunks the loops took."""
    store = MemoryStore()
    codec = BloscCodec(cname="zlib", typesize=1)
    array = zarr.create_array(store, shape=(nbytes,), chunks=(nbytes,), dtype="u1", compressors=codec, filters=None)
    put(store, "c/0", frame)
    # Between bytes that must stay as they are.
    memory = np.full(nbytes + 64, 0xA5, np.uint8)
    n = len(range(nbytes)[part])
    with rows_taken() as taken:
        read(stored_array(array), part, HostDecoder(), memory[32 : 32 + n])
    assert (memory[:32] == 0xA5).all()
    assert (memory[32 + n :] == 0xA5).all()
    return memory[32 : 32 + n].tobytes(), taken.n_rows


def by_c_blosc(frame: bytes, nbytes: int) -> bytes | None:
    decoded = np.zeros(nbytes, np.uint8)
    try:
        imagecodecs.blosc_decode(frame, numthreads=1, out=decoded)
    except RuntimeError:
        return None
    return decoded.tobytes()


@many
@given(
    st.integers(300, 40_000),
    st.sampled_from([1, 2, 3, 4, 8, 16, 17, 255]),
    st.integers(0, 2),
    st.integers(300, 20_000),
    st.booleans(),
    st.integers(2, 5000),
)
def test_frames_decode_as_in_c_blosc(n, typesize, shuffle, blocksize, split, steps):
    content = walk(-(-n // 8), "<u8", steps).tobytes()[:n]
    frame = encode(content, cname="zlib", typesize=typesize, shuffle=shuffle, blocksize=blocksize, split=split)
    assert inflated(frame, n) == (content, 1)
    assert by_c_blosc(frame, n) == content
    assert inflated(frame, n, slice(n // 3, n // 2)) == (content[n // 3 : n // 2], 1)


@many
@given(
    st.binary(min_size=2_000, max_size=2_000), st.sampled_from([numcodecs.Blosc.SHUFFLE, numcodecs.Blosc.BITSHUFFLE])
)
def test_frames_of_c_blosc_decode(seed, shuffle):
    content = seed * 200
    frame = numcodecs.blosc.compress(content, b"zlib", 1, shuffle, 0, 4)
    assert inflated(frame, len(content)) == (content, 1)


CONTENT = walk(6_000, "<u2", 40).tobytes()
FRAMES = [
    encode(CONTENT, cname="zlib", typesize=2, blocksize=4096, shuffle=shuffle, split=split)
    for shuffle in (0, 1, 2)
    for split in (True, False)
]
PLACES = st.integers(0, 40) | st.integers(0, min(map(len, FRAMES)) - 1)


@many
@given(st.sampled_from(FRAMES), st.lists(st.tuples(PLACES, st.integers(0, 255)), min_size=1, max_size=3))
def test_a_damaged_frame_decodes_as_in_c_blosc_or_not_at_all(sound, changes):
    frame = bytearray(sound)
    for at, value in changes:
        if not 4 <= at < 8 and not 12 <= at < 16:  # lengths are compared before the call
            frame[at] = value
    expected = by_c_blosc(bytes(frame), len(CONTENT))
    try:
        found, _ = inflated(bytes(frame), len(CONTENT))
    except CorruptChunkError:
        return
    assert found == expected


@pytest.mark.parametrize(("at", "value"), [(8, 0), (8, 1 << 20), (8, 1), (8, 3001), (16, 2**31), (16, 2**32 - 1)])
def test_what_is_wrong_is_left(at, value):
    frame = bytearray(FRAMES[0])
    frame[at : at + 4] = value.to_bytes(4, "little")
    with pytest.raises(CorruptChunkError):
        inflated(bytes(frame), len(CONTENT))


def test_a_block_that_is_no_whole_number_of_streams_is_left():
    """Of two bytes an element, a block has two streams; a third one would reach beyond it."""
    fields = {"flags": CODECS.index("zlib") << 5, "typesize": 2, "nbytes": 3001, "blocksize": 3001}
    with pytest.raises(CorruptChunkError):
        inflated(assemble([streams(*[bytes(1500)] * 3)], **fields), 3001)
