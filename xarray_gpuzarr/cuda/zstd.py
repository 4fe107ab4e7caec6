"""What zstd frames take on the GPU beside nvCOMP: a look at their blocks before nvCOMP is given them.

nvCOMP trusts what it is given: a frame that was cut, or is followed by another one, may make it read or write out of
bounds. Frame headers are checked on the host (`frame_columns`); the blocks lie all over a frame, so a thread of the
GPU follows them sooner than a host could. Called by the CUDA decoder.
"""

from __future__ import annotations

import numpy as np

from xarray_gpuzarr.cuda.api import Address, DeviceApi, Kernel, Stream

SPARE_FRAME = np.frombuffer(bytes.fromhex("28b52ffd 20 01 090000 41 000000000000"), np.uint64)
"""A frame of one byte, which takes the place of those that are refused; host memory, 16 bytes with its padding."""

_FRAMES_PER_BLOCK = 32
_ZSTD_BLOCKS = Kernel(file="zstd_blocks.cu", name="zstd_blocks")


def zstd_kernels() -> list[Kernel]:
    """Return the kernels of this module."""
    return [_ZSTD_BLOCKS]


def check_zstd(api: DeviceApi, stream: Stream, *, table: Address, n: int, spare: Address, refused: Address) -> None:
    """Take frames whose blocks are not sound out of a batch.

    Parameters
    ----------
    api : DeviceApi
    stream : Stream
    table : Address of uint64, shape (4, n)
        Addresses of the frames, of any alignment; their lengths in bytes, at least 10; addresses for the results; the
        lengths that their headers declare. The first two rows are changed where a frame is refused.
    n : int
        Number of frames.
    spare : Address of uint8, shape (10,)
        `SPARE_FRAME`, to be decoded in place of what is refused.
    refused : Address of uint64, shape (n,)
        Must hold zeros. Written: 1 where a frame is refused.

    Notes
    -----
    A frame passes if its blocks end where it does, none is of the reserved type or longer than the header allows, and
    their sizes can add up to the declared length. No byte outside of a frame is read.

    References
    ----------
    RFC 8878 section 3.1.1.
    """
    if n:
        n_blocks = -(-n // _FRAMES_PER_BLOCK)
        api.launch(_ZSTD_BLOCKS, n_blocks, _FRAMES_PER_BLOCK, (table, n, spare, refused), stream)
