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
from xarray_gpuzarr.native.codec_functions import NativeCodec, native_codec
from xarray_gpuzarr.native.library import address, address_of
from xarray_gpuzarr.stored.codecs import CompressorSpec

_MOST_ERRORS = 120
"""Number of libzstd's error codes, which it returns as the numbers just below 2**64."""


class _BufferStruct(ctypes.Structure):
    """``ZSTD_inBuffer`` and ``ZSTD_outBuffer``, which are alike."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("pos", ctypes.c_size_t),
    )


class _Functions:
    """Functions of libzstd; they let go of Python's lock."""

    def __init__(self, codec: NativeCodec) -> None:
        handle, size = ctypes.c_void_p, ctypes.c_size_t
        self.make = ctypes.CFUNCTYPE(handle)(codec.make_context)
        self.free = ctypes.CFUNCTYPE(size, handle)(codec.free_context)
        self.decode = ctypes.CFUNCTYPE(size, handle, handle, size, handle, size)(codec.decode)
        self.decode_part = ctypes.CFUNCTYPE(size, handle, handle, handle)(codec.decode_part)
        self.error_name = ctypes.CFUNCTYPE(ctypes.c_char_p, size)(codec.error_name)


@cache
def _functions() -> _Functions | None:
    codec = native_codec("zstd")
    return None if codec is None else _Functions(codec)


def check_declared(spec: CompressorSpec, frame: memoryview, most: int) -> None:
    """Raise `FrameError` if a frame declares more than `most` bytes."""
    declared = declared_nbytes(spec, frame)
    if declared is not None and declared > most:
        raise FrameError(f"a frame of {declared} bytes")


def zstd_at_most(src: memoryview, most: int) -> memoryview:
    """Decode one zstd frame, or several in a row, to memory of its own; see `compressors.decode_at_most`.

    Where numcodecs does not export libzstd, only the length that a frame declares bounds what it is decoded to.
    """
    zstd = _functions()
    if zstd is None:
        return memoryview(numcodecs.zstd.decompress(src))
    decoded = np.empty(most + 1, np.uint8)
    given = _BufferStruct(memory=address_of(src), size=len(src), pos=0)
    room = _BufferStruct(memory=address(decoded), size=len(decoded), pos=0)
    context = zstd.make()
    if not context:
        raise MemoryError("no memory for a decoder of zstd")
    try:
        unfinished = _decode_in_parts(zstd, context, given, room)
        if _is_error(unfinished) and not room.pos:  # a window of over 128 MiB, which one call does not need
            nbytes = int(zstd.decode(context, room.memory, room.size, given.memory, given.size))
            if not _is_error(nbytes):
                unfinished, room.pos = 0, nbytes
    finally:
        zstd.free(context)
    if _is_error(unfinished):
        raise FrameError(f"zstd decompress error: {zstd.error_name(unfinished).decode()}")
    if unfinished and room.pos <= most:
        raise FrameError("a frame cut short")
    return memoryview(decoded)[: room.pos]


def _decode_in_parts(zstd: _Functions, context: Any, given: _BufferStruct, room: _BufferStruct) -> int:
    """Decode until nothing is left or the room is full; return 0 if the last frame is complete, else another number."""
    unfinished = 1
    while given.pos < given.size or unfinished:
        before = given.pos + room.pos
        unfinished = int(zstd.decode_part(context, ctypes.addressof(room), ctypes.addressof(given)))
        if _is_error(unfinished) or room.pos == room.size or given.pos + room.pos == before:
            break
    return unfinished


def _is_error(returned: int) -> bool:
    """Whether what a function of libzstd returned is the number of an error."""
    return returned > 2**64 - _MOST_ERRORS
