"""zstd frames of every form, against numcodecs."""

import numcodecs
import numpy as np
import pytest
import zstandard
from numcodecs.zstd import Zstd

from xarray_gpuzarr.decoders.host.chunk_codec import ChunkCodec
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.stored.codecs import BytesSpec, PipelineSpec, ZstdSpec

SIZES = [1, 1000, 128 * 1024, 400_000]


def _frame(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(data)


def _two_frames(data: bytes) -> bytes:
    half = len(data) // 2
    return _frame(data[:half]) + _frame(data[half:])


def _flipped(frame: bytes) -> bytes:
    at = len(frame) // 2
    return frame[:at] + bytes([frame[at] ^ 16]) + frame[at + 1 :]


FORMS = {
    "plain": _frame,
    "no content size": lambda data: _frame(data, write_content_size=False),
    "checksum": lambda data: _frame(data, write_checksum=True),
    "checksum, no content size": lambda data: _frame(data, write_checksum=True, write_content_size=False),
    "two frames": _two_frames,
    "after a skippable frame": lambda data: b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + _frame(data),
    "before a skippable frame": lambda data: _frame(data) + b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc",
    "too long": lambda data: _frame(data + b"x"),
    "too long, no content size": lambda data: _frame(data + b"x", write_content_size=False),
    "too short": lambda data: _frame(data[:-1]),
    "too short, no content size": lambda data: _frame(data[:-1], write_content_size=False),
    "cut": lambda data: _frame(data)[:-1],
    "cut in its checksum": lambda data: _frame(data, write_checksum=True)[:-2],
    "cut in its header": lambda data: _frame(data)[:5],
    "empty": lambda _: b"",
    "followed by more": lambda data: _frame(data) + b"more",
    "followed by itself": lambda data: _frame(data) * 2,
    "wrong checksum": lambda data: _flipped(_frame(data, write_checksum=True)),
    "no frame": lambda _: b"zstd, surely",
}


@pytest.fixture(scope="module")
def noise() -> bytes:
    """Half of it compresses, so that frames hold literals, sequences and raw blocks."""
    rng = np.random.default_rng(7)
    return np.concatenate([rng.integers(0, 9, 2**18), rng.integers(0, 256, 2**18)]).astype("u1").tobytes()


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("form", FORMS)
def test_a_frame_decodes_as_numcodecs_decodes_it_or_is_refused(noise, form, nbytes):
    frame = FORMS[form](noise[-nbytes // 2 - nbytes :][:nbytes])
    codec = ChunkCodec(PipelineSpec(array_to_bytes=BytesSpec(endian="little"), bytes_to_bytes=(ZstdSpec(),)), nbytes)
    out = bytearray(nbytes)
    try:
        expected = numcodecs.get_codec({"id": Zstd.codec_id}).decode(frame)
    except RuntimeError:
        expected = None

    if expected is None or len(expected) != nbytes:
        with pytest.raises(FrameError, match=r"^zstd: "):
            codec.decode_into(memoryview(frame), memoryview(out))
    else:
        codec.decode_into(memoryview(frame), memoryview(out))
        assert bytes(out) == bytes(expected)


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["raw", "of one byte", "compressed"])
@pytest.mark.parametrize("descriptor", ["00", "04"], ids=["plain", "checksum"])
@pytest.mark.parametrize("is_last", [False, True])
def test_blocks_that_are_cut_short_are_refused(kind, descriptor, is_last):
    """Whatever follows them in memory: a block may be as long as any number of bytes that the decoder adds."""
    header = bytes.fromhex(f"28b52ffd{descriptor}10")
    for missing in range(200):
        for nbytes in (*range(32, 33 + 200), 1):
            block = (32 + missing << 3 | kind << 1 | is_last).to_bytes(3, "little")
            frame = memoryview(header + block + bytes(range(32)))
            codec = ChunkCodec(
                PipelineSpec(array_to_bytes=BytesSpec(endian="little"), bytes_to_bytes=(ZstdSpec(),)), nbytes
            )
            if missing == 0 and kind == 0 and is_last and descriptor == "00":
                continue
            with pytest.raises(FrameError, match=r"^zstd: "):
                codec.decode_into(frame, memoryview(bytearray(nbytes)))
            if missing and kind == 1:
                break
