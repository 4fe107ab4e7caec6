"""Frames that a device decoder may be given: what writers make, and nothing that is cut, odd or damaged."""

import gzip
import zlib

import imagecodecs
import numcodecs
import numpy as np
import pytest
import zstandard
from helpers.data.zstd_frames import zstd
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.frames.device_ready import device_ready
from xarray_gpuzarr.stored.codecs import GzipSpec, Lz4Spec, ZlibSpec, ZstdSpec

SPECS = {"zstd": ZstdSpec(), "gzip": GzipSpec(), "zlib": ZlibSpec(), "lz4": Lz4Spec()}
RNG = np.random.default_rng(7)


def ready(spec, frames, expected):
    """Lay the frames side by side, with nothing before the first and after the last, and judge them."""
    nbytes = np.array([len(frame) for frame in frames], np.int64)
    data = np.frombuffer(b"".join(frames), np.uint8)
    return device_ready(spec, data, np.cumsum(nbytes) - nbytes, nbytes, expected).tolist()


PAYLOADS = {
    "one byte": b"a",
    "255 bytes": bytes(range(255)),
    "256 bytes": bytes(range(256)),
    "257 bytes": bytes(257),
    "text": b"a shard holds chunks; " * 900,
    "numbers": np.arange(250_000, dtype="f4").tobytes(),
    "one value": bytes(1_000_003),
    "noise": RNG.bytes(300_000),
    "noise, then one value": RNG.bytes(200_000) + bytes(200_000),
}
WRITERS = {
    "numcodecs zstd": ("zstd", numcodecs.Zstd().encode),
    "numcodecs gzip": ("gzip", numcodecs.GZip().encode),
    "numcodecs zlib": ("zlib", numcodecs.Zlib().encode),
    "numcodecs lz4": ("lz4", numcodecs.LZ4().encode),
    "imagecodecs zstd": ("zstd", imagecodecs.zstd_encode),
    "imagecodecs gzip": ("gzip", imagecodecs.gzip_encode),
    "imagecodecs zlib": ("zlib", imagecodecs.zlib_encode),
    "imagecodecs lz4": ("lz4", lambda payload: imagecodecs.lz4_encode(payload, header=True)),
    "standard library gzip": ("gzip", gzip.compress),
    "standard library zlib, level 9": ("zlib", lambda payload: zlib.compress(payload, 9)),
    "zstd, 1 KiB window": ("zstd", zstd(window_log=10)),
    **{f"zstd, level {n}": ("zstd", zstandard.ZstdCompressor(level=n).compress) for n in (-5, -1, 1, 3, 9, 15, 19, 22)},
}


@pytest.mark.every_value
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
@pytest.mark.parametrize("writer", WRITERS)
def test_frame_of_a_writer_is_ready_at_its_own_length_only(writer, payload):
    name, encode = WRITERS[writer]
    frame = bytes(encode(payload))
    found = [ready(SPECS[name], [frame] * 3, n)[1] for n in (len(payload), len(payload) + 1, len(payload) - 1)]

    assert found == [True, name == "zlib", name == "zlib" and len(payload) > 1]


TEXT = PAYLOADS["text"]
GZIP = gzip.compress(TEXT)
ZLIB = zlib.compress(TEXT)
LZ4 = bytes(numcodecs.LZ4().encode(TEXT))


def with_byte(frame, at, value):
    """Return `frame` with one byte replaced."""
    return frame[:at] + bytes([value]) + frame[at + 1 :]


HEADERS = {
    "gzip, first magic byte": ("gzip", with_byte(GZIP, 0, 0x1E)),
    "gzip, second magic byte": ("gzip", with_byte(GZIP, 1, 0x8C)),
    "gzip, not deflate": ("gzip", with_byte(GZIP, 2, 7)),
    **{f"gzip, flag {bit}": ("gzip", with_byte(GZIP, 3, 1 << bit)) for bit in range(8)},
    "gzip, no trailer": ("gzip", GZIP[:-4]),
    "gzip, one byte more": ("gzip", GZIP + b"\0"),
    "gzip, two members": ("gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
    "gzip, too short": ("gzip", GZIP[:12] + GZIP[-8:]),
    "zlib, not deflate": ("zlib", b"\x77\x9c" + ZLIB[2:]),
    "zlib, window of 64 KiB": ("zlib", b"\x88\x1c" + ZLIB[2:]),
    "zlib, header checksum": ("zlib", with_byte(ZLIB, 1, ZLIB[1] + 1)),
    "zlib, dictionary": ("zlib", b"\x78\xbb" + ZLIB[2:]),
    "zlib, too short": ("zlib", ZLIB[:8]),
    "zlib, raw deflate": ("zlib", ZLIB[2:-4]),
    "lz4, another length": ("lz4", with_byte(LZ4, 0, LZ4[0] ^ 1)),
    "lz4, length in the other byte order": ("lz4", LZ4[3::-1] + LZ4[4:]),
    "lz4, too short": ("lz4", LZ4[:5]),
}
SOUND = {"gzip": GZIP, "zlib": ZLIB, "lz4": LZ4}


@pytest.mark.parametrize(("name", "frame"), HEADERS.values(), ids=HEADERS)
def test_other_header_is_refused(name, frame):
    assert ready(SPECS[name], [frame, SOUND[name], frame], len(TEXT)) == [False, True, False]


def test_only_gzip_compares_lengths_modulo_4_gib():
    assert ready(GzipSpec(), [GZIP], len(TEXT) + 2**32) == [True]
    assert ready(Lz4Spec(), [LZ4], len(TEXT) + 2**32) == [False]


@pytest.mark.parametrize("name", SPECS)
def test_chunks_of_nothing_are_left_to_the_host_and_no_chunks_give_no_answers(name):
    assert ready(SPECS[name], [b"", GZIP, ZLIB, LZ4[:4], bytes(20)], 0) == [False] * 5
    assert ready(SPECS[name], [], 100) == []


@pytest.mark.parametrize("name", SPECS)
@many
@given(content=st.binary(max_size=40), data=st.data())
def test_any_bytes_are_judged_without_error(name, content, data):
    pairs = st.tuples(st.integers(0, len(content)), st.integers(0, len(content))).map(sorted)
    ranges = np.array(data.draw(st.lists(pairs, max_size=5)), np.int64).reshape(-1, 2)

    found = device_ready(
        SPECS[name],
        np.frombuffer(content, np.uint8),
        ranges[:, 0],
        ranges[:, 1] - ranges[:, 0],
        data.draw(st.integers(0)),
    )

    assert (found.dtype, found.shape) == (np.dtype(bool), (len(ranges),))


BIG = 2**63 - 1


@pytest.mark.parametrize(
    "start_and_nbytes", [(-1, 5), (0, 101), (100, 1), (5, -1), (BIG, BIG), (BIG, 1), (1, BIG), (-BIG, BIG)]
)
def test_chunk_outside_the_data_is_an_error(start_and_nbytes):
    start, nbytes = np.array([[0, 100], start_and_nbytes]).T

    with pytest.raises(ValueError, match="outside the 100 bytes"):
        device_ready(ZstdSpec(), np.zeros(100, np.uint8), start, nbytes, 10)
