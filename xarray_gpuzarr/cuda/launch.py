"""The source and the lists of all kernels below ``kernels/``, and typed launches of `move` and `check_zstd`.

Launches of the other kernels are in the modules of what they compute: `placers`, `filters`, `blosc` and `checksum`.
This module knows neither CuPy nor Zarr: launches go through `api.DeviceApi`.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from itertools import pairwise

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Kernel, Stream
from xarray_gpuzarr.cuda.axes import N_THREADS
from xarray_gpuzarr.cuda.blosc import blosc_kernels
from xarray_gpuzarr.cuda.cast import all_cast_defines, usual_cast_defines
from xarray_gpuzarr.cuda.checksum import checksum_kernels
from xarray_gpuzarr.cuda.filters import filter_kernels
from xarray_gpuzarr.process.records import Column

COMPILE_OPTIONS = ("-std=c++17", "--fmad=false")
"""Options of NVRTC besides the architecture. Without fused multiply-add, products and sums are rounded one by one, as
NumPy does."""

MOVE_TILE_NBYTES = 1 << 16
"""Number of bytes of a run that one block of threads moves. It must be ``tile_nbytes`` of ``move.cu``."""

SPARE_FRAME = np.frombuffer(bytes.fromhex("28b52ffd 20 01 090000 41 000000000000"), np.uint64)
"""A zstd frame of 10 bytes that decodes to one byte, padded to two words, in host memory; see `check_zstd`."""
_FRAMES_PER_BLOCK = 32
"""Number of threads in a block that checks frames, one for each frame. ``zstd_blocks.cu`` takes any number."""
_MOVE, _ZSTD_BLOCKS = Kernel(file="move.cu", name="move"), Kernel(file="zstd_blocks.cu", name="zstd_blocks")
_INCLUDE = re.compile(r'^#include "(\w+\.cuh)"$', re.MULTILINE)


@functools.cache
def kernel_source(kernel: Kernel) -> str:
    """Return the source of a kernel as one text, with its macros and the files that it includes.

    ``#line`` directives let compilers report errors with the names and lines of the files.
    """
    defines = "".join(f"#define {name} {value}\n" for name, value in kernel.defines)
    return defines + _inline_includes(kernel.file)


def _inline_includes(file: str) -> str:
    """Return the text of a file below ``kernels/``, with the text of included files in place of each ``#include``."""
    text = (resources.files(__package__) / "kernels" / file).read_text()

    def included_text(match: re.Match[str]) -> str:
        next_line = text.count("\n", 0, match.end()) + 2  # the number of the line below the match, counted from 1
        return f'{_inline_includes(match[1])}#line {next_line} "{file}"'

    return f'#line 1 "{file}"\n{_INCLUDE.sub(included_text, text)}'


def all_kernels() -> list[Kernel]:
    """Return every kernel below ``kernels/`` in all its variants."""
    variants = all_cast_defines()
    scatter = [Kernel(file="scatter.cu", name="scatter", defines=defines) for defines in variants]
    points = [Kernel(file="points.cu", name="points", defines=defines) for defines in variants]
    return [_MOVE, *checksum_kernels(), *blosc_kernels(), _ZSTD_BLOCKS, *filter_kernels(), *scatter, *points]


def usual_kernels() -> list[Kernel]:
    """Return the kernels that most reads launch. The others, mostly casts, are built when they are first launched."""
    scatter = [Kernel(file="scatter.cu", name="scatter", defines=defines) for defines in usual_cast_defines()]
    return [_MOVE, *checksum_kernels(), *blosc_kernels(), _ZSTD_BLOCKS, *scatter]


def move(api: DeviceApi, stream: Stream, *, table: Address, n: int, max_nbytes: int, rows: slice = slice(None)) -> None:
    """Copy runs of bytes within device memory. No run may overlap the destination of another.

    Parameters
    ----------
    api : DeviceApi
        Device.
    stream : Stream
        Stream that the kernel runs on.
    table : Address of uint64, shape (3, n)
        Addresses of the sources, addresses of the destinations, and lengths in bytes.
    n : int
        Number of runs in the table.
    max_nbytes : int
        Length of the longest run among `rows`: each run takes as many blocks of threads as that one.
    rows : slice
        Runs that are copied.
    """
    first, end, _ = rows.indices(n)
    n_tiles = -(-max_nbytes // MOVE_TILE_NBYTES)
    n_blocks = max(0, end - first) * n_tiles
    if n_blocks:
        # The kernel looks for each list of the table `n` words after the one before. So if the address of the table is
        # moved by `first` words, all three lists begin at run `first`.
        api.launch(_MOVE, n_blocks, N_THREADS, (table + 8 * first, n, n_tiles), stream)


def rows_by_length(nbytes: Column) -> list[slice]:
    """Cut a table of moves into slices of similar lengths, for one launch of `move` each.

    `nbytes` are the lengths in ascending order. A slice ends where the number of tiles of a run reaches the next power
    of two. Runs of length 0 are in no slice.
    """
    n_tiles = -(-nbytes // MOVE_TILE_NBYTES)
    exponents = np.frexp(n_tiles)[1]  # grow by 1 at each power of two
    bounds = [0, *(np.flatnonzero(np.diff(exponents)) + 1).tolist(), len(nbytes)]
    return [slice(lo, hi) for lo, hi in pairwise(bounds) if lo < hi and n_tiles[lo]]


def check_zstd(api: DeviceApi, stream: Stream, *, table: Address, n: int, spare: Address, refused: Address) -> None:
    """Replace what is not a sound zstd frame of the expected length by `spare`, before nvCOMP decodes the batch.

    nvCOMP trusts its input: a frame that was cut off, or that is followed by another one, may make it read or write out
    of bounds. Headers and blocks are spread over a whole shard, so threads of the GPU follow them sooner than a host.

    Parameters
    ----------
    api : DeviceApi
        Device.
    stream : Stream
        Stream that the kernel runs on.
    table : Address of uint64, shape (4, n)
        Addresses of the frames, of any alignment; their lengths in bytes; addresses for the results; their lengths. The
        first two rows are changed where a frame is refused.
    n : int
        Number of frames.
    spare : Address of uint8, shape (10,)
        `SPARE_FRAME`, which is decoded in place of refused frames.
    refused : Address of uint64, shape (n,)
        Must hold zeros. Set to 1 where a frame is refused.

    Notes
    -----
    A frame passes if all of this holds:

    - Its header declares the length of its result, at least one byte, and neither a dictionary nor a checksum, which
      would not be verified.
    - Its blocks end where the frame does, and none is of the reserved type or longer than the header allows.
    - The sizes of its blocks can add up to the length of the result.

    No byte outside a frame is read.

    References
    ----------
    RFC 8878 section 3.1.1.
    """
    if n:
        n_blocks = -(-n // _FRAMES_PER_BLOCK)
        api.launch(_ZSTD_BLOCKS, n_blocks, _FRAMES_PER_BLOCK, (table, n, spare, refused), stream)
