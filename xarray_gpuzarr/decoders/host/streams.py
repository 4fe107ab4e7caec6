"""zstd frames decoded piece by piece, to no more bytes than they are allowed.

What one call of libzstd cannot do: frames that are read while they are decoded, several in a row, and those that do not
say how long they are.
"""

from __future__ import annotations

import threading
from collections.abc import Buffer
from typing import Any

import zstandard

from xarray_gpuzarr.fetch import ByteStream, MemoryStream
from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.stored.codecs import CompressorSpec, ZstdSpec

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


def check_declared(spec: CompressorSpec, frame: memoryview, most: int) -> None:
    """Raise `FrameError` if a frame declares more than `most` bytes."""
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
            check_declared(_ZSTD, piece, self._most)
            self._is_first = False
        self._is_over = not piece
        return _END_FRAME if self._is_over else piece


def _zstd_reader(source: _Ended | bytes) -> Any:
    return zstd_context().stream_reader(source, read_size=_PIECE_NBYTES, read_across_frames=True, closefd=False)


def zstd_at_most(src: memoryview, most: int) -> memoryview:
    """Decode one zstd frame, or several in a row, to memory of its own; see `compressors.decode_at_most`."""
    decoded = _zstd_reader(_Ended(MemoryStream(src), most)).read(most + len(_END) + 1)
    if len(decoded) <= most + len(_END) and not decoded.endswith(_END):
        raise FrameError("a frame cut short")
    return memoryview(decoded)[: -len(_END)]
