"""Frames decoded piece by piece, to no more bytes than they are allowed: a few bytes may stand for terabytes.

What only one call of a quick library cannot do: frames that are read while they are decoded, several in a row, and
those that do not say how long they are.
"""

from __future__ import annotations

import gzip
import io
import threading
import zlib
from collections.abc import Buffer, Callable
from typing import Any

import numcodecs
import zstandard

from xarray_gpuzarr.fetch import ByteStream, MemoryStream
from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.stored.codecs import BloscSpec, CompressorSpec, GzipSpec, Lz4Spec, ZlibSpec, ZstdSpec, of_each

_PIECE_NBYTES = 512 * 1024
_ZSTD = ZstdSpec()
_END = b"here it ends"
_END_FRAME = zstandard.compress(_END)

_thread = threading.local()


def zstd_context() -> Any:
    """Return this thread's zstd context."""
    context = getattr(_thread, "zstd", None)
    if context is None:
        context = _thread.zstd = zstandard.ZstdDecompressor()
    return context


def decode_zstd_stream(stream: ByteStream, dst: memoryview) -> None:
    """Decode one zstd frame, or several in a row, as they are read.

    Parameters
    ----------
    stream : ByteStream
    dst : memoryview of uint8, host memory
        Written, all of it.

    Raises
    ------
    FrameError, zstandard.ZstdError
        The frames are cut short or damaged, declare or hold more bytes or fewer.
    """
    _fill(_zstd_reader(_Ended(stream, len(dst))), dst)


def decode_zstd(src: memoryview, dst: memoryview) -> None:
    """Decode one zstd frame, or several in a row, whose bytes are at hand; otherwise as `decode_zstd_stream`."""
    _fill(_zstd_reader(b"".join((src, _END_FRAME))), dst)


def _fill(reader: Any, dst: memoryview) -> None:
    done = reader.readinto(dst)
    rest = reader.read(len(_END) + 1) if done == len(dst) else b""
    if rest != _END:
        raise FrameError("fewer bytes, or a frame cut short" if len(rest) < len(_END) else "more bytes")


def decode_at_most(spec: CompressorSpec, src: memoryview, most: int) -> memoryview:
    """Decode a frame, or several where the format allows that, to memory of its own.

    Parameters
    ----------
    spec : CompressorSpec
    src : memoryview of uint8, host memory
    most : int
        Bytes that it may decode to.

    Returns
    -------
    memoryview of uint8, shape (n,) with n <= most

    Raises
    ------
    FrameError
        More bytes, or a frame cut short; other damage raises what the library of the format raises.
    """
    _check_declared(spec, src, most)
    decoded = _AT_MOST[type(spec)](src, most)
    if len(decoded) > most:
        raise FrameError(f"more than {most} bytes")
    return decoded


def _check_declared(spec: CompressorSpec, frame: memoryview, most: int) -> None:
    declared = declared_nbytes(spec, frame)
    if declared is not None and declared > most:
        raise FrameError(f"a frame of {declared} bytes")


class _Ended:
    """A stream of zstd frames, and one more frame: what it holds is decoded only if all others were complete."""

    def __init__(self, stream: ByteStream, most: int) -> None:
        self._stream, self._most = stream, most
        self._is_first, self._is_over = True, False

    def read(self, nbytes: int) -> Buffer:
        """Return up to `nbytes` further bytes; none at the end."""
        if self._is_over:
            return b""
        piece = memoryview(self._stream.read(nbytes))
        if self._is_first:
            _check_declared(_ZSTD, piece, self._most)
            self._is_first = False
        self._is_over = not piece
        return _END_FRAME if self._is_over else piece


def _zstd_reader(source: _Ended | bytes) -> Any:
    return zstd_context().stream_reader(source, read_size=_PIECE_NBYTES, read_across_frames=True, closefd=False)


def _zstd(src: memoryview, most: int) -> memoryview:
    decoded = _zstd_reader(_Ended(MemoryStream(src), most)).read(most + len(_END) + 1)
    if len(decoded) <= most + len(_END) and not decoded.endswith(_END):
        raise FrameError("a frame cut short")
    return memoryview(decoded)[: -len(_END)]


def _gzip(src: memoryview, most: int) -> memoryview:
    with gzip.GzipFile(fileobj=io.BytesIO(src)) as members:
        return memoryview(members.read(most + 1))


def _zlib(src: memoryview, most: int) -> memoryview:
    stream = zlib.decompressobj()
    decoded = stream.decompress(src, most + 1)
    if len(decoded) <= most and not stream.eof:
        raise FrameError("a stream cut short")
    return memoryview(decoded)


def _by_numcodecs(codec_id: str) -> Callable[[memoryview, int], memoryview]:
    """Return what decodes frames that always declare their length, which was looked at."""
    codec = numcodecs.get_codec({"id": codec_id})
    return lambda src, _most: memoryview(codec.decode(src)).cast("B")


_AT_MOST: dict[type, Callable[[memoryview, int], memoryview]] = of_each(
    CompressorSpec,
    {
        ZstdSpec: _zstd,
        GzipSpec: _gzip,
        ZlibSpec: _zlib,
        Lz4Spec: _by_numcodecs("lz4"),
        BloscSpec: _by_numcodecs("blosc"),
    },
)
