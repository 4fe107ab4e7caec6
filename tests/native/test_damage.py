"""Damaged and unusual chunks: the loops leave what they do not know, and whatever is read is as without them."""

import gzip
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
import zstandard
from helpers.damaged_reads import COMPRESSORS, N_CHUNKS, Damaged, frames_of
from helpers.fuzz import CONTENT
from helpers.loops import without_loops
from helpers.stores.fakes import put
from zarr.storage import MemoryStore

from xarray_gpuzarr import CorruptChunkError
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.read import read_points, stored_array

pytestmark = pytest.mark.usefixtures("compiled")

TESTS = Path(__file__).parents[1]
N = len(CONTENT)
HALVES = (CONTENT[:500], CONTENT[500:])
ZSTD = zstandard.ZstdCompressor()
SKIPPABLE = struct.pack("<II", 0x184D2A50, 5) + b"hello"
LZ4 = bytes(numcodecs.LZ4().encode(CONTENT))
BLOSC = bytes(numcodecs.blosc.compress(CONTENT, b"lz4", 5, 1, 0, 4))


def blosc(content, cname="lz4", level=5):
    return bytes(numcodecs.blosc.compress(content, cname.encode(), level, 1, 0, 4))


def with_zstd_window(frame):
    """Return a frame whose header asks for a window of 1 GiB."""
    assert frame[4] & 0x20 == 0, "no window"
    return frame[:5] + bytes([(30 - 10) << 3]) + frame[6:]


def zstd_in_pieces(content):
    """Return a frame that does not say how long it is."""
    stream = ZSTD.compressobj()
    return stream.compress(content) + stream.flush()


def with_gzip_fields(frame):
    """Return a member with extra bytes, a file name, a comment and a checksum of its header."""
    header = frame[:3] + bytes([0b11110]) + frame[4:10] + b"\x03\0abc" + b"name\0" + b"comment\0"
    return header + struct.pack("<H", zlib.crc32(header) & 0xFFFF) + frame[10:]


def lz4_that_says(nbytes):
    return struct.pack("<I", nbytes & 0xFFFFFFFF) + LZ4[4:]


def blosc_with(at, value):
    return BLOSC[:at] + struct.pack("<I", value) + BLOSC[at + 4 :]


RIGHT = {
    "zstd, one frame": ("zstd", ZSTD.compress(CONTENT)),
    "zstd, two frames": ("zstd", b"".join(map(ZSTD.compress, HALVES))),
    "zstd, a frame of nothing before": ("zstd", ZSTD.compress(b"") + ZSTD.compress(CONTENT)),
    "zstd, a frame of nothing behind": ("zstd", ZSTD.compress(CONTENT) + ZSTD.compress(b"")),
    "zstd, a skippable frame before": ("zstd", SKIPPABLE + ZSTD.compress(CONTENT)),
    "zstd, a skippable frame behind": ("zstd", ZSTD.compress(CONTENT) + SKIPPABLE),
    "zstd, of unknown length": ("zstd", zstd_in_pieces(CONTENT)),
    "zstd, a window of 1 GiB": ("zstd", with_zstd_window(zstd_in_pieces(CONTENT))),
    "gzip, two members": ("gzip", b"".join(map(gzip.compress, HALVES))),
    "gzip, a member of nothing before": ("gzip", gzip.compress(b"") + gzip.compress(CONTENT)),
    "gzip, a member of nothing behind": ("gzip", gzip.compress(CONTENT) + gzip.compress(b"")),
    "gzip, zeros behind": ("gzip", gzip.compress(CONTENT) + bytes(10)),
    "gzip, all fields of a header": ("gzip", with_gzip_fields(gzip.compress(CONTENT))),
    "zlib, as stored": ("zlib", zlib.compress(CONTENT, 0)),
    "lz4": ("lz4", LZ4),
    "blosc, as stored": ("blosc", blosc(CONTENT, level=0)),
    "blosc, zlib": ("blosc", blosc(CONTENT, "zlib")),
}
WRONG = {
    "raw, one byte less": ("none", CONTENT[:-1]),
    "raw, one byte more": ("none", CONTENT + b"x"),
    "zstd, fewer bytes": ("zstd", ZSTD.compress(CONTENT[:-4])),
    "zstd, more bytes": ("zstd", ZSTD.compress(CONTENT + b"more")),
    "zstd, two frames of more bytes": ("zstd", 2 * ZSTD.compress(CONTENT)),
    "zstd, something behind": ("zstd", ZSTD.compress(CONTENT) + b"x"),
    "gzip, fewer bytes": ("gzip", gzip.compress(CONTENT[:-4])),
    "gzip, more bytes": ("gzip", gzip.compress(CONTENT + b"more")),
    "gzip, another checksum": ("gzip", gzip.compress(CONTENT)[:-8] + b"none" + gzip.compress(CONTENT)[-4:]),
    "zlib, fewer bytes": ("zlib", zlib.compress(CONTENT[:-4])),
    "zlib, more bytes": ("zlib", zlib.compress(CONTENT + b"more")),
    "lz4, says less": ("lz4", lz4_that_says(N - 1)),
    "lz4, says more": ("lz4", lz4_that_says(N + 1)),
    "lz4, says fewer than none": ("lz4", lz4_that_says(-1)),
    "lz4, says so and has less": ("lz4", lz4_that_says(N)[:-3]),
    "lz4, only a prefix": ("lz4", LZ4[:4]),
    "blosc, of fewer bytes": ("blosc", blosc(CONTENT[:-4])),
    "blosc, of more bytes": ("blosc", blosc(CONTENT + b"more")),
    "blosc, says fewer": ("blosc", blosc_with(4, N - 4)),
    "blosc, says more": ("blosc", blosc_with(4, N + 4)),
    "blosc, a block of no bytes": ("blosc", blosc_with(8, 0)),
    "blosc, an enormous block": ("blosc", blosc_with(8, 2**31 - 1)),
    "blosc, encoded in fewer bytes": ("blosc", blosc_with(12, len(BLOSC) - 1)),
    "blosc, encoded in more bytes": ("blosc", blosc_with(12, len(BLOSC) + 1)),
    "blosc, only a header": ("blosc", BLOSC[:16]),
}
EITHER = {
    "zlib, something behind": ("zlib", zlib.compress(CONTENT) + b"x"),
    "gzip, something behind": ("gzip", gzip.compress(CONTENT) + b"x"),
    "lz4, something behind": ("lz4", LZ4 + b"x"),
    "blosc, something behind": ("blosc", BLOSC + b"x"),
} | {f"{codec}, nothing": (codec, b"") for codec in COMPRESSORS}
"""What other readers differ about."""


CASES = RIGHT | WRONG | EITHER


@pytest.mark.parametrize("case", CASES)
def test_frames_are_read_alike(case):
    codec, frame = CASES[case]

    by_loops, in_python, taken = Damaged(codec).both(frame)

    assert by_loops == in_python
    if case in RIGHT:
        assert by_loops == CONTENT
        assert taken.n_rows >= N_CHUNKS - 1
    assert case not in WRONG or str(by_loops).startswith("CorruptChunkError: ")


@pytest.mark.parametrize("codec", COMPRESSORS)
def test_every_truncation(codec):
    damaged, frame = Damaged(codec), frames_of(codec)[0]

    for nbytes in range(0, len(frame), 1 + len(frame) // 60):
        by_loops, in_python, _ = damaged.both(frame[:nbytes])
        assert by_loops == in_python
        assert isinstance(by_loops, str)


def test_mutated_frames():
    """In a process of its own, which they may not end."""
    command = [sys.executable, "-m", "helpers.damaged_reads", "all", "250", "1"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS)

    assert done.returncode == 0, done.stderr
    counted = [line.split() for line in done.stdout.splitlines()]
    assert [codec for codec, *_ in counted] == [*COMPRESSORS]
    for n_values, n_errors, n_rows in (map(int, numbers) for _, *numbers in counted):
        assert n_values >= 10
        assert n_errors >= 100
        assert n_rows >= 250 * (N_CHUNKS - 1)


@pytest.mark.parametrize("way", ["compiled", "Python"])
@pytest.mark.parametrize("n", [2**31, 2**32 - 1])
def test_a_frame_that_claims_to_be_longer_than_any(monkeypatch, n, way):
    """C-Blosc's lengths are int32: one of 4 GiB - 1 is the -1 that it returns for damage."""
    if way == "Python":
        without_loops(monkeypatch)
    keywords = {"chunks": (n,), "compressors": numcodecs.Blosc(), "zarr_format": 2}
    array = zarr.create_array(MemoryStore(), shape=(n,), dtype="u1", **keywords)
    put(array.store, "0", bytes([2, 1, 1, 1]) + struct.pack("<III", n, 2**32 - 1, 40) + bytes(24))

    with pytest.raises(CorruptChunkError):
        read_points(stored_array(array), (np.array([5, 99]),), HostDecoder())
