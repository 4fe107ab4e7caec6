"""Frames of zstd decoded piece by piece, to no more bytes than they are allowed.

What one call of libzstd cannot do: several frames in a row, and those that do not say how long they are.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numcodecs.zstd
import numpy as np

from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.native.codec_functions import native_codec
from xarray_gpuzarr.native.library import address_of
from xarray_gpuzarr.stored.codecs import CompressorSpec

_MOST_ERRORS = 120
"""What libzstd returns for an error is a number of this many below 2**64."""


class _BufferStruct(ctypes.Structure):
    """``ZSTD_inBuffer`` and ``ZSTD_outBuffer``, which are alike."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("pos", ctypes.c_size_t),
    )


class _Stream:
    """Functions of libzstd that decode a stream; they let go of Python's lock."""

    def __init__(self, make: int, free: int, decode: int, error_name: int) -> None:
        handle, size = ctypes.c_void_p, ctypes.c_size_t
        self.make = ctypes.CFUNCTYPE(handle)(make)
        self.free = ctypes.CFUNCTYPE(size, handle)(free)
        self.decode = ctypes.CFUNCTYPE(size, handle, handle, handle)(decode)
        self.error_name = ctypes.CFUNCTYPE(ctypes.c_char_p, size)(error_name)


@cache
def _stream() -> _Stream | None:
    codec = native_codec("zstd")
    if codec is None:
        return None
    return _Stream(codec.make_context, codec.free_context, codec.decode_part, codec.error_name)


def check_declared(spec: CompressorSpec, frame: memoryview, most: int) -> None:
    """Raise `FrameError` if a frame declares more than `most` bytes."""
    declared = declared_nbytes(spec, frame)
    if declared is not None and declared > most:
        raise FrameError(f"a frame of {declared} bytes")


def zstd_at_most(src: memoryview, most: int) -> memoryview:
    """Decode one zstd frame, or several in a row, to memory of its own; see `compressors.decode_at_most`.

    Where numcodecs does not export libzstd, only the length that a frame declares bounds what it is decoded to.
    """
    stream = _stream()
    if stream is None:
        return memoryview(numcodecs.zstd.decompress(src))
    decoded = np.empty(most + 1, np.uint8)
    given = _BufferStruct(memory=address_of(src), size=len(src), pos=0)
    room = _BufferStruct(memory=decoded.ctypes.data, size=len(decoded), pos=0)
    context = stream.make()
    if not context:
        raise MemoryError("no memory for a decoder of zstd")
    try:
        unfinished = _decode(stream, context, given, room)
    finally:
        stream.free(context)
    if unfinished > 2**64 - _MOST_ERRORS:
        if _is_too_wide(stream, unfinished):  # one call needs no memory for the window
            whole = bytearray(most)
            numcodecs.zstd.decompress(src, whole)
            return memoryview(whole)
        raise FrameError(f"zstd decompress error: {stream.error_name(unfinished).decode()}")
    if unfinished and room.pos <= most:
        raise FrameError("a frame cut short")
    return memoryview(decoded)[: room.pos]


def _decode(stream: _Stream, context: Any, given: _BufferStruct, room: _BufferStruct) -> int:
    """Decode until nothing is left or the room is full; return 0, or what is not 0 if a frame is not complete."""
    unfinished = 1
    while given.pos < given.size or unfinished:
        before = given.pos + room.pos
        unfinished = int(stream.decode(context, ctypes.addressof(room), ctypes.addressof(given)))
        if unfinished > 2**64 - _MOST_ERRORS or room.pos == room.size or given.pos + room.pos == before:
            break
    return unfinished


def _is_too_wide(stream: _Stream, error: int) -> bool:
    """Whether libzstd refuses a frame because its window is longer than 128 MiB."""
    return b"too much memory" in stream.error_name(error)
