"""Which of many frames a batched device decoder may be given, by their headers alone.

Device decoders trust what they are given: a damaged frame may make them read or write out of bounds. So every header is
checked here first, as columns over all chunks of a shard at once. A chunk that does not pass goes to the host codec,
which decodes what is only unusual and says what is wrong with the rest. The compressed content itself is not looked at.
Decoders call this; `headers` reads the header of one frame.

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
"""Length of a frame that decodes to one byte."""
_U4, _I8 = np.dtype("<u4"), np.dtype("<i8")


def device_ready(spec: BytesBytesSpec, data: Bytes, start: Column, nbytes: Column, expected: int) -> Flags:
    """Return which chunks are frames that a batched device decoder may be given.

    Parameters
    ----------
    spec : ZstdSpec, GzipSpec, ZlibSpec or Lz4Spec
    data : ndarray of uint8, shape (m,), C order, host memory
        Encoded chunks, not modified.
    start, nbytes : ndarray of int64, shape (n,), host memory
        The bytes of a chunk are ``data[start : start + nbytes]``; chunks may overlap.
    expected : int
        Decoded length of every chunk, in bytes.

    Returns
    -------
    ndarray of bool, shape (n,)
        False leaves a chunk to the host codec: it may be damaged, or valid but unusual.

    Raises
    ------
    ValueError
        Another codec, or a chunk outside `data`; never what the bytes of a chunk say.

    Notes
    -----
    A decision rests on the chunk's own bytes only.

    zstd: a frame that declares `expected` bytes. Refused are a content checksum, which no device decoder verifies, and
    a dictionary. Where its blocks end is left to the device (`cuda.launch.check_zstd`).

    gzip: the declared length is that of the last member, modulo 2**32. Several members pass only if all others are
    empty, or by such a coincidence.

    zlib declares no length, and zlib and lz4 no end: a cut one passes, if it is long enough to be one at all. The
    checksums of gzip and zlib are part of every frame and stay unverified.
    """
    if type(spec) not in _READY:
        known = ", ".join(kind.__name__ for kind in _READY)
        raise ValueError(f"no frames of {spec} can be given to a device decoder; those of {known} can")
    if (((start | nbytes) < 0) | (start > data.size - nbytes)).any():
        raise ValueError(f"a chunk lies outside the {data.size} bytes of data")
    least, judge = _READY[type(spec)]
    ready: Flags = (nbytes >= least) & (expected > 0)
    at = ready.nonzero()[0]
    if at.size < ready.size:
        start, nbytes = start[at], nbytes[at]
    if at.size:
        ready[at] = judge(data, start, start + nbytes, expected)
    return ready


def _words[Word: np.integer](data: Bytes, dtype: np.dtype[Word]) -> npt.NDArray[Word]:
    """View the integer that begins at each byte, aligned or not."""
    return np.ndarray((data.size - dtype.itemsize + 1,), dtype, data, strides=(1,))


def _gzip(data: Bytes, start: Column, end: Column, expected: int) -> Flags:
    words = _words(data, _U4)
    # Magic, deflate, and no flag: each flag adds a field to the header.
    ready: Flags = (words[start] == 0x00088B1F) & (words[end - 4] == expected % 2**32)
    return ready


def _zlib(data: Bytes, start: Column, end: Column, expected: int) -> Flags:  # noqa: ARG001
    first, second = data[start], data[start + 1]
    deflate = first & 0x8F == 8  # and a window of at most 32 KiB
    no_dictionary = second & 0x20 == 0
    ready: Flags = deflate & no_dictionary & ((first * np.uint16(256) + second) % 31 == 0)
    return ready


def _lz4(data: Bytes, start: Column, end: Column, expected: int) -> Flags:  # noqa: ARG001
    ready: Flags = _words(data, _U4)[start] == expected
    return ready


def _descriptor_fields() -> Column:
    """Tabulate what each value of Frame_Header_Descriptor says about the header: shape (4, 256).

    The rows: where to read eight bytes that hold Frame_Content_Size, from the start of the frame; bits below it there;
    its mask; what to add. An unusual descriptor has mask 0 and so declares length 0.
    """
    fields = np.zeros((4, 256), np.int64)
    for flag, single_segment in np.ndindex(4, 2):
        if flag or single_segment:
            width = 2**flag
            header = 6 - single_segment + width
            # The eight bytes end with the header: even the shortest frame has so many from there on to the left.
            at = max(header - 8, 0)
            shift = 8 * (header - width - at)
            mask = -1 if width == 8 else 2 ** (8 * width) - 1
            fields[:, flag << 6 | single_segment << 5] = at, shift, mask, 256 if width == 2 else 0
    return fields


_DESCRIPTOR_FIELDS = _descriptor_fields()


def _zstd(data: Bytes, start: Column, end: Column, expected: int) -> Flags:
    words = _words(data, _I8)
    head = words[start]
    first = head[0] & 0xFF_FFFF_FFFF
    if ((head & 0xFF_FFFF_FFFF) == first).all():  # one writer: one descriptor
        at, shift, mask, add = _DESCRIPTOR_FIELDS[:, first >> 32].tolist()
        magic = first & 0xFFFFFFFF == _ZSTD_MAGIC
    else:
        at, shift, mask, add = _DESCRIPTOR_FIELDS[:, head >> 32 & 0xFF]
        magic = head & 0xFFFFFFFF == _ZSTD_MAGIC
    # Where the header is longer than the chunk, any bytes of the chunk will do: no block can follow.
    declared = (words[np.minimum(start + at, end - 8)] >> shift & mask) + add
    ready: Flags = magic & (declared == expected)
    return ready


_READY: dict[type, tuple[int, Callable[[Bytes, Column, Column, int], Flags]]] = {
    ZstdSpec: (LEAST_ZSTD_NBYTES, _zstd),
    GzipSpec: (21, _gzip),
    ZlibSpec: (9, _zlib),
    Lz4Spec: (6, _lz4),
}
"""By codec, the fewest bytes that decode to one byte, and the judge of chunks of at least so many."""
