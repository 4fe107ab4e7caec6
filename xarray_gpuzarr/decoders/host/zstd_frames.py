"""Frames decoded piece by piece, to no more bytes than they are allowed, and without a copy of them.

What one call of libzstd cannot do: several frames in a row, and those that do not say how long they are.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Buffer
from contextlib import suppress
from typing import Any

import imagecodecs
import zstandard

from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.stored.codecs import CompressorSpec

_PIECE_NBYTES = 512 * 1024
"""What is shorter is sooner copied than read in pieces."""
_END = b"here it ends" + bytes(64)
_END_FRAME = zstandard.ZstdCompressor(write_checksum=True).compress(_END)
"""Behind all others: what it holds is decoded only if these were complete.

A block that is cut short takes bytes of this frame for its own. It cannot end with `_END` then, which is not in there
literally, nor can the frame of that block end with the block of this frame: the checksum behind it would be wrong or be
taken for another frame.
"""

_thread = threading.local()


class Joined(io.RawIOBase):
    """Bytes in host memory, one run after another, as a file."""

    def __init__(self, *runs: Buffer) -> None:
        super().__init__()
        self._left = [memoryview(run) for run in reversed(runs)]

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def readinto(self, room: Buffer) -> int:
        """Copy bytes of one run to `room`; return how many."""
        while self._left and not self._left[-1]:
            self._left.pop()
        if not self._left:
            return 0
        view = memoryview(room)
        part, self._left[-1] = self._left[-1][: len(view)], self._left[-1][len(view) :]
        view[: len(part)] = part
        return len(part)


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
    ended: Any = b"".join((src, _END_FRAME)) if len(src) < _PIECE_NBYTES else Joined(src, _END_FRAME)
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
