"""`device_ready`: checks the headers of many frames at once, and returns which of them a GPU may decode.

Decoders on a GPU trust their input: a damaged frame may make them read or write out of bounds. So all headers are
checked first, as columns over many chunks. A chunk that does not pass goes to the host codec, which decodes it if it is
only unusual, and otherwise says what is wrong with it. The compressed content is not looked at. `headers` reads the
header of a single frame.

References
----------
RFC 8878 section 3.1.1 (zstd), RFC 1952 section 2.3 (gzip), RFC 1950 section 2.2 (zlib), numcodecs LZ4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.process.records import Column
from xarray_gpuzarr.stored.codecs import BytesBytesSpec, GzipSpec, Lz4Spec, ZlibSpec, ZstdSpec

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_ZSTD_MAGIC = 0xFD2FB528
LEAST_ZSTD_NBYTES = 10
"""Length of a zstd frame that decodes to one byte."""
_U4, _I8 = np.dtype("<u4"), np.dtype("<i8")


def device_ready(spec: BytesBytesSpec, data: Bytes, start: Column, nbytes: Column, decoded_nbytes: int) -> Flags:
    """Return which chunks are frames that a batched decoder on a GPU may decode.

    Parameters
    ----------
    spec : ZstdSpec, GzipSpec, ZlibSpec or Lz4Spec
    data : ndarray of uint8, shape (m,), C order, host memory
        Encoded chunks, not modified.
    start, nbytes : ndarray of int64, shape (n,), host memory
        The bytes of chunk ``i`` are ``data[start[i] : start[i] + nbytes[i]]``. Chunks may overlap.
    decoded_nbytes : int
        Decoded length of every chunk, in bytes.

    Returns
    -------
    ndarray of bool, shape (n,)
        False for a chunk that is damaged, or that is valid but unusual.

    Raises
    ------
    ValueError
        If the codec is another one, or a chunk lies outside `data`. The content of chunks never raises an error.

    Notes
    -----
    The result for a chunk depends on nothing but its own bytes.

    zstd: the frame must declare `decoded_nbytes` bytes. It must have no dictionary, and no content checksum, which no
    decoder on a GPU verifies. The ends of its blocks are checked on the device (`cuda.launch.check_zstd`).

    gzip: the length at the end must be `decoded_nbytes`, modulo 2**32. It is that of the last member, so a frame of
    several members passes only if all others are empty, or by coincidence.

    zlib frames declare no decoded length, and zlib and lz4 frames do not tell where they end. So a truncated frame
    passes unless it is shorter than the shortest valid one. The checksums of gzip and zlib frames are not verified.
    """
    if type(spec) not in _READY:
        known = ", ".join(kind.__name__ for kind in _READY)
        raise ValueError(f"no frames of {spec} can be given to a device decoder; those of {known} can")
    # `start | nbytes` is negative if either is.
    if (((start | nbytes) < 0) | (start > data.size - nbytes)).any():
        raise ValueError(f"a chunk lies outside the {data.size} bytes of data")
    shortest, check = _READY[type(spec)]
    ready: Flags = (nbytes >= shortest) & (decoded_nbytes > 0)
    candidates = ready.nonzero()[0]
    if candidates.size < ready.size:
        start, nbytes = start[candidates], nbytes[candidates]
    if candidates.size:
        ready[candidates] = check(data, start, start + nbytes, decoded_nbytes)
    return ready


def _words[Word: np.integer](data: Bytes, dtype: np.dtype[Word]) -> npt.NDArray[Word]:
    """Return a view of the integers that begin at each byte, aligned or not."""
    return np.ndarray((data.size - dtype.itemsize + 1,), dtype, data, strides=(1,))


def _gzip(data: Bytes, start: Column, end: Column, decoded_nbytes: int) -> Flags:
    words = _words(data, _U4)
    # The magic number, the method deflate, and no flags, each of which would add a field to the header.
    ready: Flags = (words[start] == 0x00088B1F) & (words[end - 4] == decoded_nbytes % 2**32)
    return ready


def _zlib(data: Bytes, start: Column, end: Column, decoded_nbytes: int) -> Flags:  # noqa: ARG001
    first, second = data[start], data[start + 1]
    is_deflate = first & 0x8F == 8  # the method 8, and a window of at most 32 KiB
    has_no_dictionary = second & 0x20 == 0
    has_valid_check = (first * np.uint16(256) + second) % 31 == 0  # FCHECK of RFC 1950, in the second byte
    ready: Flags = is_deflate & has_no_dictionary & has_valid_check
    return ready


def _lz4(data: Bytes, start: Column, end: Column, decoded_nbytes: int) -> Flags:  # noqa: ARG001
    ready: Flags = _words(data, _U4)[start] == decoded_nbytes
    return ready


def _descriptor_fields() -> Column:
    """Return how to read Frame_Content_Size for each value of Frame_Header_Descriptor, int64 of shape (4, 256).

    The field lies within eight bytes of the frame. The rows are: the offset of these bytes in the frame; by how many
    bits they are shifted right; the mask of the field; and the number that is added to it. A descriptor that is
    unusual, or without the field, has the mask 0, as if the length were 0.
    """
    fields = np.zeros((4, 256), np.int64)
    for flag, single_segment in np.ndindex(4, 2):
        if flag or single_segment:  # otherwise there is no field
            width = 2**flag
            window_nbytes = 0 if single_segment else 1
            field_offset = 5 + window_nbytes  # after the magic number, the descriptor and the window
            # The eight bytes end with the field, or are the first eight of the frame if the field ends before.
            offset = max(field_offset + width - 8, 0)
            shift = 8 * (field_offset - offset)
            mask = -1 if width == 8 else 2 ** (8 * width) - 1
            addend = 256 if width == 2 else 0  # a field of two bytes holds the length less 256
            fields[:, flag << 6 | single_segment << 5] = offset, shift, mask, addend
    return fields


_DESCRIPTOR_FIELDS = _descriptor_fields()


def _zstd(data: Bytes, start: Column, end: Column, decoded_nbytes: int) -> Flags:
    words = _words(data, _I8)
    head = words[start]
    magic_and_descriptor = head & 0xFF_FFFF_FFFF
    first = magic_and_descriptor[0]
    if (magic_and_descriptor == first).all():  # usually, all frames have the same descriptor
        offset, shift, mask, addend = _DESCRIPTOR_FIELDS[:, first >> 32].tolist()
        has_magic = first & 0xFFFFFFFF == _ZSTD_MAGIC
    else:
        offset, shift, mask, addend = _DESCRIPTOR_FIELDS[:, head >> 32 & 0xFF]
        has_magic = head & 0xFFFFFFFF == _ZSTD_MAGIC
    # If a chunk ends within its header, its last bytes are read instead. They do not matter: the device refuses a frame
    # without blocks.
    declared = (words[np.minimum(start + offset, end - 8)] >> shift & mask) + addend
    ready: Flags = has_magic & (declared == decoded_nbytes)
    return ready


_READY: dict[type, tuple[int, Callable[[Bytes, Column, Column, int], Flags]]] = {
    ZstdSpec: (LEAST_ZSTD_NBYTES, _zstd),
    GzipSpec: (21, _gzip),
    ZlibSpec: (9, _zlib),
    Lz4Spec: (6, _lz4),
}
"""Codec -> length of the shortest frame that decodes to one byte, and function that checks frames of at least that
length."""
