"""Decoding of zstd frames by libzstd's streaming functions, to a bounded number of bytes.

A single call of libzstd cannot decode several frames in a row, or frames that do not declare their length.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numcodecs.zstd
import numpy as np

from xarray_gpuzarr.frames.headers import FrameError, declared_nbytes
from xarray_gpuzarr.native.codec_functions import NativeCodec, native_codec
from xarray_gpuzarr.native.library import address, view_address
from xarray_gpuzarr.stored.codecs import CompressorSpec

_MAX_ERROR = 120
"""``ZSTD_error_maxCode``, an upper bound of libzstd's error codes. Its functions return 2**64 minus the code."""
_COMPLETE = 0
"""What ``ZSTD_decompressStream`` returns at the end of a frame. Within a frame, it returns a positive number."""


class _BufferStruct(ctypes.Structure):
    """``ZSTD_inBuffer`` and ``ZSTD_outBuffer``, which are alike."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("pos", ctypes.c_size_t),
    )


class _Functions:
    """Functions of libzstd. Calls release the GIL."""

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


def check_declared(spec: CompressorSpec, frame: memoryview, most_nbytes: int) -> None:
    """Raise `FrameError` if a frame declares more than `most_nbytes` bytes."""
    declared = declared_nbytes(spec, frame)
    if declared is not None and declared > most_nbytes:
        raise FrameError(f"a frame of {declared} bytes")


def zstd_at_most(src: memoryview, most_nbytes: int) -> memoryview:
    """Decode one zstd frame, or several in a row, into new memory.

    If the frames hold more than `most_nbytes` bytes, the result has one byte more than that, and the caller
    (`compressors.decode_at_most`) raises the error. Where numcodecs does not export libzstd, numcodecs decodes the
    frames. Only their declared lengths then bound the result.
    """
    zstd = _functions()
    if zstd is None:
        return memoryview(numcodecs.zstd.decompress(src))
    decoded = np.empty(most_nbytes + 1, np.uint8)
    in_buffer = _BufferStruct(memory=view_address(src), size=len(src), pos=0)
    out_buffer = _BufferStruct(memory=address(decoded), size=len(decoded), pos=0)
    context = zstd.make()
    if not context:
        raise MemoryError("no memory for a decoder of zstd")
    try:
        status = _decode_in_parts(zstd, context, in_buffer, out_buffer)
        if _is_error(status) and not out_buffer.pos:
            # Streaming refuses a frame with a window of more than 128 MiB, before it writes anything. A single call
            # needs no window.
            nbytes = int(zstd.decode(context, out_buffer.memory, out_buffer.size, in_buffer.memory, in_buffer.size))
            if not _is_error(nbytes):
                status = _COMPLETE
                out_buffer.pos = nbytes
    finally:
        zstd.free(context)
    if _is_error(status):
        raise FrameError(f"zstd decompress error: {zstd.error_name(status).decode()}")
    is_full = out_buffer.pos == out_buffer.size
    if status != _COMPLETE and not is_full:
        raise FrameError("a frame cut short")
    return memoryview(decoded)[: out_buffer.pos]


def _decode_in_parts(zstd: _Functions, context: Any, in_buffer: _BufferStruct, out_buffer: _BufferStruct) -> int:
    """Decode until all input is consumed or the output is full.

    Returns `_COMPLETE` if the last frame is complete, an error of libzstd, or any other number if the frame goes on.
    """
    status = 1  # no frame is complete yet
    while in_buffer.pos < in_buffer.size or status != _COMPLETE:
        before = in_buffer.pos + out_buffer.pos
        status = int(zstd.decode_part(context, ctypes.addressof(out_buffer), ctypes.addressof(in_buffer)))
        is_full = out_buffer.pos == out_buffer.size
        makes_progress = in_buffer.pos + out_buffer.pos > before
        if _is_error(status) or is_full or not makes_progress:
            break
    return status


def _is_error(returned: int) -> bool:
    """Whether the value that a function of libzstd returned is an error."""
    return returned > 2**64 - _MAX_ERROR
