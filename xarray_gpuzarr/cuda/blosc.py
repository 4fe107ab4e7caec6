"""Kernels for Blosc frames that nvCOMP does not have: unshuffle blocks, and decompress streams of blosclz.

Two parts of the work are elsewhere: `frames.blosc` parses the headers of frames on the host, and the kernel of
``move.cu`` copies streams that are stored raw.
"""

from __future__ import annotations

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Kernel, Stream
from xarray_gpuzarr.cuda.axes import MAX_BLOCKS, N_THREADS

MAX_NBYTES = 2**31 - 1
"""Largest length in bytes of a Blosc block or a stream, compressed or not. C-Blosc makes none that is longer."""

_TILE_NBYTES = 1 << 15
"""Every Blosc block of a launch gets as many blocks of threads as the longest one has parts of this length.
``unshuffle.cu`` accepts any number of them, so the length may be chosen freely."""
_N_STREAMS = 8
"""Number of blosclz streams that a block of threads decompresses. It must be ``n_warps * n_streams`` of
``blosclz.cu``."""
_N_BLOSCLZ_THREADS = 64
"""Number of threads in a block that decompresses blosclz. It must be ``n_warps * n_lanes`` of ``blosclz.cu``."""
_UNSHUFFLE = Kernel(file="unshuffle.cu", name="unshuffle")
_BLOSCLZ = Kernel(file="blosclz.cu", name="blosclz")


def blosc_kernels() -> list[Kernel]:
    """Return the kernels of this module."""
    return [_UNSHUFFLE, _BLOSCLZ]


def unshuffle(api: DeviceApi, stream: Stream, *, table: Address, n: int, max_nbytes: int) -> None:
    """Enqueue the kernel that undoes the shuffle of bytes or of bits in decompressed Blosc blocks.

    Parameters
    ----------
    api : DeviceApi
        Device.
    stream : Stream
        Stream that the kernel runs on.
    table : Address of uint64, shape (5, n)
        Addresses of the blocks; addresses for the results; lengths in bytes, up to `MAX_NBYTES`; typesizes, from 1 to
        255; filters: 0 none, 1 shuffle, 2 bitshuffle. Addresses may have any alignment.
    n : int
        Number of Blosc blocks.
    max_nbytes : int
        Length of the longest block.

    Raises
    ------
    ValueError
        If a block is too long, or one launch cannot have so many blocks of threads.

    Notes
    -----
    Bytes behind the last whole element are copied. If bitshuffle is requested and the number of whole elements is not a
    multiple of 8, C-Blosc leaves a block as it is; the caller must give such a block filter 0. No result may overlap a
    block.

    References
    ----------
    C-Blosc 1, ``blosc/shuffle-generic.h`` and ``blosc/bitshuffle-generic.h``.
    """
    if max_nbytes > MAX_NBYTES:
        raise ValueError(f"a Blosc block of {max_nbytes} bytes: it may have at most {MAX_NBYTES}")
    n_tiles = -(-max_nbytes // _TILE_NBYTES)
    n_blocks = n * n_tiles
    if n_blocks > MAX_BLOCKS:
        raise ValueError(f"{n_blocks} blocks of threads in one launch: fewer Blosc blocks at a time are needed")
    if n_blocks:
        api.launch(_UNSHUFFLE, n_blocks, N_THREADS, (table, n, n_tiles), stream)


def blosclz(api: DeviceApi, stream: Stream, *, table: Address, n: int, actual: Address, status: Address) -> None:
    """Enqueue the kernel that decompresses streams of blosclz.

    Parameters
    ----------
    api : DeviceApi
        Device.
    stream : Stream
        Stream that the kernel runs on.
    table : Address of uint64, shape (4, n)
        Addresses of the streams; their lengths in bytes; addresses for the results; the lengths of the results.
        Addresses may have any alignment, and lengths may be up to `MAX_NBYTES`.
    n : int
        Number of streams.
    actual : Address of uint64, shape (n,)
        Set to the number of bytes that were written of each result.
    status : Address of int32, shape (n,)
        Set to 0, or to nvCOMP's status for damaged streams, 12. A stream is damaged if it gives fewer or more bytes
        than its result should have, or refers to bytes before its result.

    Notes
    -----
    Whatever the streams hold, nothing outside them is read, and nothing outside the results is read or written. C-Blosc
    accepts the same streams. A warp decodes several neighbours in the table until the last of them ends, so streams
    that are sorted by length are decoded fastest.

    References
    ----------
    C-Blosc 1, ``blosc/blosclz.c``, function ``blosclz_decompress``.
    """
    if n:
        api.launch(_BLOSCLZ, -(-n // _N_STREAMS), _N_BLOSCLZ_THREADS, (table, n, actual, status), stream)
