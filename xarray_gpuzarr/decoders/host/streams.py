"""zstd frames decoded piece by piece, to no more bytes than they are allowed.

What one call of libzstd cannot do: several in a row, and those that do not say how long they are.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import imagecodecs
import zstandard

from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.stored.codecs import CompressorSpec

_PIECE_NBYTES = 512 * 1024
_END = b"here it ends"
_END_FRAME = zstandard.compress(_END)
"""Behind all others: what it holds is decoded only if these were complete."""

_thread = threading.local()


def check_declared(spec: CompressorSpec, frame: memoryview, most: int) -> None:
    """Raise `FrameError` if a frame declares more than `most` bytes."""
    declared = declared_nbytes(spec, frame)
    if declared is not None and declared > most:
        raise FrameError(f"a frame of {declared} bytes")


def zstd_at_most(src: memoryview, most: int) -> memoryview:
    """Decode one zstd frame, or several in a row, to memory of its own; see `compressors.decode_at_most`."""
    context = getattr(_thread, "zstd", None)
    if context is None:
        context = _thread.zstd = zstandard.ZstdDecompressor()
    ended = b"".join((src, _END_FRAME))
    reader = context.stream_reader(ended, read_size=_PIECE_NBYTES, read_across_frames=True, closefd=False)
    try:
        decoded = reader.read(most + len(_END) + 1)
    except zstandard.ZstdError:
        with suppress(imagecodecs.ZstdError):  # for windows of over 128 MiB, one call needs no memory
            return memoryview(imagecodecs.zstd_decode(src, out=bytearray(most)))
        raise
    if len(decoded) <= most + len(_END) and not decoded.endswith(_END):
        raise FrameError("a frame cut short")
    return memoryview(decoded)[: -len(_END)]
