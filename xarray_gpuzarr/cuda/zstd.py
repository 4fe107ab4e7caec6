"""What zstd frames take on the GPU beside nvCOMP: a look at them before nvCOMP is given them.

nvCOMP trusts what it is given: a frame that was cut, or is followed by another one, may make it read or write out of
bounds. Headers and blocks lie all over a shard, so threads of the GPU follow them sooner than a host could. Called by
the CUDA decoder.
"""

from __future__ import annotations

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Kernel, Stream

SPARE_FRAME = np.frombuffer(bytes.fromhex("28b52ffd 20 01 090000 41 000000000000"), np.uint64)
"""A frame of one byte, which takes the place of those that are refused; host memory, 16 bytes with its padding."""

_FRAMES_PER_BLOCK = 32
_ZSTD_BLOCKS = Kernel(file="zstd_blocks.cu", name="zstd_blocks")


def zstd_kernels() -> list[Kernel]:
    """Return the kernels of this module."""
    return [_ZSTD_BLOCKS]


def check_zstd(api: DeviceApi, stream: Stream, *, table: Address, n: int, spare: Address, refused: Address) -> None:
    """Take what is not a sound frame of the expected length out of a batch.

    Parameters
    ----------
    api : DeviceApi
    stream : Stream
    table : Address of uint64, shape (4, n)
        Addresses of the frames, of any alignment; their lengths in bytes; addresses for the results; their lengths. The
        first two rows are changed where a frame is refused.
    n : int
        Number of frames.
    spare : Address of uint8, shape (10,)
        `SPARE_FRAME`, to be decoded in place of what is refused.
    refused : Address of uint64, shape (n,)
        Must hold zeros. Written: 1 where a frame is refused.

    Notes
    -----
    A frame passes if its header declares the length of its result, at least one byte, and neither a dictionary nor a
    checksum, which nobody would verify; if its blocks end where it does, none is of the reserved type or longer than
    the header allows; and if their sizes can add up to that length. No byte outside of a frame is read.

    References
    ----------
    RFC 8878 section 3.1.1.
    """
    if n:
        n_blocks = -(-n // _FRAMES_PER_BLOCK)
        api.launch(_ZSTD_BLOCKS, n_blocks, _FRAMES_PER_BLOCK, (table, n, spare, refused), stream)
