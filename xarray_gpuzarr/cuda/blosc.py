"""Kernels for Blosc frames beside nvCOMP: unshuffling their blocks, and decoding streams of blosclz.

Knows no frames: walking their headers, and copying streams that are stored raw, is the caller's part. Called by the
CUDA decoder.
"""

from __future__ import annotations

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Kernel, Stream
from xarray_gpuzarr.cuda.axes import MAX_BLOCKS, N_THREADS

MAX_NBYTES = 2**31 - 1
"""Largest block and largest stream, in bytes, compressed or not: more than C-Blosc makes."""

_TILE_NBYTES = 1 << 15
_N_STREAMS, _N_BLOSCLZ_THREADS = 8, 64
"""Streams and threads of a block."""
_UNSHUFFLE = Kernel(file="unshuffle.cu", name="unshuffle")
_BLOSCLZ = Kernel(file="blosclz.cu", name="blosclz")


def blosc_kernels() -> list[Kernel]:
    """Return the kernels of this module."""
    return [_UNSHUFFLE, _BLOSCLZ]


def unshuffle(api: DeviceApi, stream: Stream, *, table: Address, n: int, max_nbytes: int) -> None:
    """Put the bytes, or the bits, of decompressed blocks back in order.

    Parameters
    ----------
    table : Address of uint64, shape (5, n)
        Addresses of the blocks, of any alignment; addresses for the results, likewise; lengths in bytes, up to
        `MAX_NBYTES`; typesizes, from 1 to 255; filters: 0 none, 1 shuffle, 2 bitshuffle.
    max_nbytes : int
        Length of the longest block. One that is too long is a `ValueError`, and so are too many for one launch.

    Notes
    -----
    Bytes behind the last whole element are copied. C-Blosc leaves a block as it is where bitshuffle is asked for and
    the number of whole elements is no multiple of 8: the caller gives it filter 0. No result may overlap a block.

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
    """Decompress streams of blosclz.

    Parameters
    ----------
    table : Address of uint64, shape (4, n)
        Addresses of the streams, of any alignment; their lengths in bytes, up to `MAX_NBYTES`; addresses for the
        results, likewise; their lengths, likewise.
    actual : Address of uint64, shape (n,)
        Written: bytes of each result.
    status : Address of int32, shape (n,)
        Written: 0, or nvCOMP's status of damaged streams, 12, where a stream gives fewer bytes than its result should
        have, or more, or refers to what is not there. As many as `actual` says are then written.

    Notes
    -----
    Whatever the streams hold, nothing outside of them is read, and nothing outside of the results is read or written.
    C-Blosc accepts the same streams. A warp decodes several neighbours in the table and goes on until the last of them
    ends: streams in the order of their lengths are decoded soonest.

    References
    ----------
    C-Blosc 1, ``blosc/blosclz.c``, function ``blosclz_decompress``.
    """
    if n:
        api.launch(_BLOSCLZ, -(-n // _N_STREAMS), _N_BLOSCLZ_THREADS, (table, n, actual, status), stream)
