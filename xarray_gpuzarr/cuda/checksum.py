"""Checksums of many runs of bytes in device memory, in one launch.

For formats that carry one of decoded bytes, which nvCOMP leaves unverified: gzip a CRC-32, zlib an Adler-32. Comparing
with what was stored is the caller's part. Called by the CUDA decoder.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Kernel, Stream
from xarray_gpuzarr.cuda.axes import MAX_BLOCKS, N_THREADS

Kind = Literal["crc32", "crc32c", "adler32"]

TILE_NBYTES = 1 << 16
"""Bytes of a message that one block of threads handles."""

_WORD_NBYTES = 16
MAX_NBYTES = 2**32 - _WORD_NBYTES
_ADLER_MODULUS = 65521
_KERNELS = {kind: Kernel(file="checksum.cu", name="checksum", defines=(("KIND", kind),)) for kind in get_args(Kind)}


def checksum_kernels() -> list[Kernel]:
    """Return the kernel for each kind."""
    return list(_KERNELS.values())


def checksum(  # noqa: PLR0913
    api: DeviceApi, stream: Stream, kind: Kind, *, table: Address, n: int, max_nbytes: int, result: Address
) -> None:
    """Add the checksums of messages to a column of zeros; `finish` reads it.

    Parameters
    ----------
    table : Address of uint64, shape (2, n)
        Addresses of the messages, of any alignment; their lengths in bytes, which may be 0.
    max_nbytes : int
        Length of the longest message, up to `MAX_NBYTES`; else, or with too many for one launch, `ValueError`.
    result : Address of uint64, shape (n,)
        Must hold zeros: the caller uploads them, best as a third row of the table.
    """
    if max_nbytes > MAX_NBYTES:
        raise ValueError(f"{kind} of {max_nbytes} bytes: a message may have at most {MAX_NBYTES}")
    n_tiles = -(-(max_nbytes + _WORD_NBYTES - 1) // TILE_NBYTES) if max_nbytes else 0
    n_blocks = n * n_tiles
    if n_blocks > MAX_BLOCKS:
        raise ValueError(f"{n_blocks} blocks of threads in one launch: fewer messages at a time are needed")
    if n_blocks:
        api.launch(_KERNELS[kind], n_blocks, N_THREADS, (table, n, n_tiles, result), stream)


def finish(kind: Kind, column: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Return the checksums, in host memory, that `checksum` has left in its column of results.

    That has a CRC in the lower half, or both sums of Adler-32 in a half each, not yet reduced.
    """
    if kind != "adler32":
        return column.astype(np.uint32)
    a, b = (column & 0xFFFFFFFF) + 1, column >> 32
    return (b % _ADLER_MODULUS << 16 | a % _ADLER_MODULUS).astype(np.uint32)
