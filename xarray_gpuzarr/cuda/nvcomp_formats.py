"""The formats that nvCOMP decompresses, their limits, and the scratch memory they take.

All of it is known without the library, for planning on machines that do not have it. `nvcomp` says which versions the
numbers are from.
"""

from __future__ import annotations

from typing import Literal

Format = Literal["zstd", "lz4", "gzip", "gzip, looking ahead", "deflate", "snappy"]
"""Format of compressed chunks: a zstd frame, a raw LZ4 block, a gzip member, raw deflate, or raw snappy. Two algorithms
decode a gzip member; see `fastest_format`."""

MAX_CHUNK_NBYTES: dict[Format, tuple[int, int]] = {
    "zstd": (2**31 - 1, 2**31 - 1),
    "lz4": (2**32 - 1, 2**32 - 1),
    "gzip": (2**32 - 1, 2**32 - 1),
    "gzip, looking ahead": (2**32 - 1, 2**32 - 1),
    "deflate": (2**32 - 1, 2**32 - 1),
    "snappy": (2**31 - 1, 2**31 - 1),
}
"""Largest compressed and largest decompressed chunk, in bytes (``nvcomp<Format>DecompressionMaxAllowedChunkSize``)."""

_MAX_NAIVE_NBYTES = 64 * 1024
"""Decoded length of gzip chunks, in bytes, above which nvCOMP's header ``gzip.h`` recommends the algorithm that looks
ahead, rather than its naive one."""


def fastest_format(fmt: Format, max_nbytes: int) -> Format:
    """Return the format with the fastest algorithm for chunks of up to `max_nbytes` decoded bytes."""
    return "gzip, looking ahead" if fmt == "gzip" and max_nbytes > _MAX_NAIVE_NBYTES else fmt


def zstd_temp_nbytes(n_chunks: int, total_nbytes: int) -> int:
    """Return the bytes of scratch memory that decoding a batch of zstd chunks takes, by a formula.

    This is for planning on machines without nvCOMP; a call must be given what `Nvcomp.temp_nbytes` returns. The formula
    equals ``nvcompBatchedZstdDecompressGetTempSize`` of 6.0.0 for fewer than 2**24 chunks. It was fitted to 980 000 of
    that function's results up to 4 TiB (November 2026), and has no other source.

    Parameters
    ----------
    n_chunks : int
        Number of chunks.
    total_nbytes : int
        Decoded bytes of all chunks together.
    """
    return 3 * total_nbytes + 3468 * max(2 * n_chunks, total_nbytes // 65536)
