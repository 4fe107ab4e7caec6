"""zstd frames decoded piece by piece, to no more bytes than they are allowed.

What one call of libzstd cannot do: several in a row, and those that do not say how long they are.
"""

from __future__ import annotations

import threading
from typing import Any

import zstandard

from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.stored.codecs import CompressorSpec

_PIECE_NBYTES = 512 * 1024
_END = b"here it ends"
_END_FRAME = zstandard.compress(_END)

_thread = threading.local()


def zstd_context() -> Any:
    """Return this thread's zstd context."""
    context = getattr(_thread, "zstd", None)
    if context is None:
        context = _thread.zstd = zstandard.ZstdDecompressor()
    return context


def decode_zstd(src: memoryview, dst: memoryview) -> None:
    """Decode one zstd frame, or several in a row.

    Parameters
    ----------
    src : memoryview of uint8, host memory
    dst : memoryview of uint8, host memory
        Written, all of it.

    Raises
    ------
    FrameError, zstandard.ZstdError
        The frames are cut short or damaged, declare or hold more bytes or fewer.
    """
    reader = _zstd_reader(src)
    done = reader.readinto(dst)
    rest = reader.read(len(_END) + 1) if done == len(dst) else b""
    if rest != _END:
        raise FrameError("fewer bytes, or a frame cut short" if len(rest) < len(_END) else "more bytes")


def check_declared(spec: CompressorSpec, frame: memoryview, most: int) -> None:
    """Raise `FrameError` if a frame declares more than `most` bytes."""
    declared = declared_nbytes(spec, frame)
    if declared is not None and declared > most:
        raise FrameError(f"a frame of {declared} bytes")


def _zstd_reader(src: memoryview) -> Any:
    """Read frames, and one more: what it holds is decoded only if all others were complete."""
    ended = b"".join((src, _END_FRAME))
    return zstd_context().stream_reader(ended, read_size=_PIECE_NBYTES, read_across_frames=True, closefd=False)


def zstd_at_most(src: memoryview, most: int) -> memoryview:
    """Decode one zstd frame, or several in a row, to memory of its own; see `compressors.decode_at_most`."""
    decoded = _zstd_reader(src).read(most + len(_END) + 1)
    if len(decoded) <= most + len(_END) and not decoded.endswith(_END):
        raise FrameError("a frame cut short")
    return memoryview(decoded)[: -len(_END)]
