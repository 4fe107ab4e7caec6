"""Headers of compressed frames, against frames that the codecs themselves write."""

import gzip

import numcodecs
import numpy as np
import pytest
import zstandard
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.stored.codecs import BloscSpec, ChecksumSpec, GzipSpec, Lz4Spec, OtherSpec, ZlibSpec, ZstdSpec

BLOSC = BloscSpec(cname="lz4", shuffle="shuffle", typesize=4)
SPECS = {"zstd": ZstdSpec(), "gzip": GzipSpec(), "zlib": ZlibSpec(), "lz4": Lz4Spec(), "blosc": BLOSC}
ENCODE = {
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
    "zlib": numcodecs.Zlib().encode,
    "lz4": numcodecs.LZ4().encode,
    "blosc": numcodecs.Blosc().encode,
}
TELLS_LENGTH = ["zstd", "lz4", "blosc"]

payloads = st.integers(1, 3000).map(lambda n: np.arange(n, dtype="u2").tobytes())


@pytest.mark.parametrize("name", TELLS_LENGTH)
@many
@given(payload=payloads)
def test_declared_length_is_the_decoded_length(name, payload):
    assert declared_nbytes(SPECS[name], ENCODE[name](payload)) == len(payload)


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256, 257, 65535, 65536, 65791, 65792, 70000])
@pytest.mark.parametrize("checksum", [False, True])
def test_zstd_length_is_read_at_every_width(nbytes, checksum):
    frame = zstandard.ZstdCompressor(write_checksum=checksum).compress(bytes(nbytes))

    assert declared_nbytes(ZstdSpec(), frame) == nbytes


ZSTD = {
    "no length": (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1000)), None),
    "eight bytes": (b"\x28\xb5\x2f\xfd" + bytes([0b1100_0000, 0x58]) + (2**40).to_bytes(8, "little"), 2**40),
    "a dictionary's id": (b"\x28\xb5\x2f\xfd\x63dict" + (1000 - 256).to_bytes(2, "little"), 1000),
}


@pytest.mark.parametrize(("frame", "nbytes"), ZSTD.values(), ids=ZSTD)
def test_unusual_zstd_lengths_are_read(frame, nbytes):
    assert declared_nbytes(ZstdSpec(), frame) == nbytes


@pytest.mark.parametrize(
    ("spec", "frame"),
    [
        *((SPECS[name], ENCODE[name](b"some bytes")) for name in ("gzip", "zlib")),
        (ChecksumSpec(), b""),
        (OtherSpec(name="acme", configuration="{}"), b""),
    ],
    ids=["gzip", "zlib", "checksum", "other"],  # a frame of gzip has the time in it
)
def test_codec_without_a_length_says_none(spec, frame):
    assert declared_nbytes(spec, frame) is None


@pytest.mark.parametrize(
    ("name", "nbytes"), [*((name, 0) for name in SPECS), ("zstd", 100), ("gzip", 100), ("zlib", 100)]
)
def test_frame_of_nothing_or_of_another_format_is_refused(name, nbytes):
    with pytest.raises(FrameError, match=f"{nbytes} bytes"):
        declared_nbytes(SPECS[name], bytes(nbytes))


@pytest.mark.parametrize(("at", "found"), [(0, "version"), (12, "header says")])
def test_blosc_header_that_contradicts_the_frame_is_refused(at, found):
    frame = bytearray(ENCODE["blosc"](bytes(1000)))
    frame[at] ^= 1

    with pytest.raises(FrameError, match=found):
        declared_nbytes(BLOSC, bytes(frame))


@pytest.mark.parametrize("name", SPECS)
@many
@given(frame=st.binary(max_size=40))
def test_random_bytes_give_a_length_or_a_frame_error(name, frame):
    try:
        nbytes = declared_nbytes(SPECS[name], frame)
    except FrameError:
        return
    assert nbytes is None or nbytes >= 0
