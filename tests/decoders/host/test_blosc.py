"""Blosc frames of zlib streams on the host: what C-Blosc makes of every frame, sound or damaged."""

import imagecodecs
import numcodecs
import numpy as np
import pytest
from helpers.data.blosc_frames import encode
from helpers.effort import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.decoders.host import blosc as host_blosc
from xarray_gpuzarr.decoders.host import compressors
from xarray_gpuzarr.frames.headers import FrameError

ROOM = memoryview(bytes(1 << 20))
"""As long as a decoded chunk that is worth the trouble."""


def walk(n: int, dtype: str, steps: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(n).integers(0, steps, n)).astype(dtype)


def inflated(frame: bytes, nbytes: int) -> bytes:
    # Between bytes that must stay as they are.
    memory = np.full(nbytes + 64, 0xA5, np.uint8)
    host_blosc.inflate_frame(memoryview(frame), memoryview(memory)[32 : 32 + nbytes])
    assert (memory[:32] == 0xA5).all()
    assert (memory[32 + nbytes :] == 0xA5).all()
    return memory[32 : 32 + nbytes].tobytes()


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
    assert inflated(frame, n) == by_c_blosc(frame, n) == content


@many
@given(
    st.binary(min_size=2_000, max_size=2_000), st.sampled_from([numcodecs.Blosc.SHUFFLE, numcodecs.Blosc.BITSHUFFLE])
)
def test_frames_of_c_blosc_decode(seed, shuffle):
    content = seed * 200
    frame = numcodecs.blosc.compress(content, b"zlib", 1, shuffle, 0, 4)
    assert host_blosc.is_worth_inflating(memoryview(frame), ROOM)
    assert inflated(frame, len(content)) == content


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
    if not host_blosc.is_worth_inflating(memoryview(frame), ROOM):
        return  # left to C-Blosc
    try:
        found = inflated(bytes(frame), len(CONTENT))
    except (FrameError, RuntimeError):
        return
    assert found == by_c_blosc(bytes(frame), len(CONTENT))


def test_long_chunks_of_zlib_frames_go_this_way(monkeypatch):
    seen = []
    monkeypatch.setattr("xarray_gpuzarr.decoders.host.compressors.inflate_frame", lambda *frame: seen.append(frame))
    for n, cname in [(100_000, "zlib"), (100, "zlib"), (100_000, "zstd")]:
        chunk = walk(n, "<u2", 40)
        frame = numcodecs.Blosc(cname).encode(chunk)
        compressors._blosc(memoryview(frame), memoryview(bytearray(chunk.nbytes)))
    assert [len(dst) for _, dst in seen] == [200_000]


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (8, 0, "blosc blocks of 0 bytes"),
        (8, 1 << 20, "blosc blocks of 1048576 bytes"),
        (8, 1, "too short for 12000 blosc blocks"),
        (8, 3001, "a blosc block of 3001 bytes in 2 streams"),
        (16, 2**31, "where 0 are left"),
    ],
)
def test_what_is_wrong_is_named(at, value, message):
    frame = bytearray(FRAMES[0])
    frame[at : at + 4] = value.to_bytes(4, "little")
    with pytest.raises(FrameError, match=message):
        inflated(bytes(frame), len(CONTENT))
