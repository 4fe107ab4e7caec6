"""Checksums of many runs of bytes in device memory, in one launch.

Gzip stores a CRC-32 of the decoded bytes, and zlib an Adler-32; nvCOMP verifies neither. The CUDA decoder computes them
here, and compares them with the stored ones on the host.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Kernel, Stream
from xarray_gpuzarr.cuda.axes import MAX_BLOCKS, N_THREADS

Kind = Literal["crc32", "crc32c", "adler32"]
"""Kind of a checksum. ``checksum.cu`` has types of these names."""

TILE_NBYTES = 1 << 16
"""Number of bytes of a message that one block of threads handles. It must be ``tile_nbytes`` of ``checksum.cu``."""

_WORD_NBYTES = 16
"""Length of the words that ``checksum.cu`` reads, in bytes. Its ``stride`` must be ``N_THREADS * _WORD_NBYTES``."""
MAX_NBYTES = 2**32 - _WORD_NBYTES
"""Largest length of a message in bytes."""
_ADLER_MODULUS = 65521
_KERNELS = {kind: Kernel(file="checksum.cu", name="checksum", defines=(("KIND", kind),)) for kind in get_args(Kind)}


def checksum_kernels() -> list[Kernel]:
    """Return the kernel of each kind of checksum."""
    return list(_KERNELS.values())


def checksum(  # noqa: PLR0913
    api: DeviceApi, stream: Stream, kind: Kind, *, table: Address, n: int, max_nbytes: int, result: Address
) -> None:
    """Enqueue the kernel that adds up a result for each message. `final_checksums` makes the checksums from these.

    Parameters
    ----------
    api : DeviceApi
        Device.
    stream : Stream
        Stream that the kernel runs on.
    kind : {"crc32", "crc32c", "adler32"}
        Kind of the checksum.
    table : Address of uint64, shape (2, n)
        Addresses of the messages, of any alignment; their lengths in bytes, which may be 0.
    n : int
        Number of messages.
    max_nbytes : int
        Length of the longest message, at most `MAX_NBYTES`.
    result : Address of uint64, shape (n,)
        Must hold zeros. The caller may upload them as a third row of the table.

    Raises
    ------
    ValueError
        If a message is too long, or one launch cannot have so many blocks of threads.
    """
    if max_nbytes > MAX_NBYTES:
        raise ValueError(f"{kind} of {max_nbytes} bytes: a message may have at most {MAX_NBYTES}")
    # The kernel pads a message to whole words at aligned addresses, by up to 15 bytes.
    n_tiles = -(-(max_nbytes + _WORD_NBYTES - 1) // TILE_NBYTES) if max_nbytes else 0
    n_blocks = n * n_tiles
    if n_blocks > MAX_BLOCKS:
        raise ValueError(f"{n_blocks} blocks of threads in one launch: fewer messages at a time are needed")
    if n_blocks:
        api.launch(_KERNELS[kind], n_blocks, N_THREADS, (table, n, n_tiles, result), stream)


def final_checksums(kind: Kind, column: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Return the checksums, uint32 of shape (n,), from a column of results of `checksum`, in host memory.

    A result has a CRC in its lower 32 bits; or the first sum of an Adler-32 in its lower 32 bits, and the second sum in
    the upper ones, both not yet reduced by the modulus.
    """
    if kind != "adler32":
        return column.astype(np.uint32)
    # The first sum of an Adler-32 begins with 1, and the second sum adds up the first one after each byte. The kernel
    # counts this 1 in the second sum, but not in the first.
    first_sum = (column & 0xFFFFFFFF) + 1
    second_sum = column >> 32
    return (second_sum % _ADLER_MODULUS << 16 | first_sum % _ADLER_MODULUS).astype(np.uint32)
