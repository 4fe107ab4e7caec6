"""Compressed streams as columns: what lies in the chunks of a batch, and where each stream's bytes belong.

A chunk of most codecs is one stream; a Blosc frame is many. Positions are counted from the start of a chunk, encoded or
decoded, so that the columns hold before anything has an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.codecs import (
    BytesBytesSpec,
    GzipSpec,
    Lz4Spec,
    ZlibSpec,
    ZstdSpec,
)
from xarray_gpuzarr.cuda.checksum import Kind
from xarray_gpuzarr.cuda.nvcomp import MAX_CHUNK_NBYTES, Format
from xarray_gpuzarr.frame_columns import device_ready

Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflate:
    """How the device undoes one format."""

    format: Format
    """What nvCOMP calls it."""
    head_nbytes: int = 0
    """Bytes before the stream that nvCOMP wants."""
    tail_nbytes: int = 0
    """Bytes after it."""
    checksum: Kind | None = None
    """Checksum of the decoded bytes that is stored with them."""
    checksum_from_end: int = 0
    """Bytes from the start of the stored checksum to the end of the chunk."""
    checksum_dtype: str = "<u4"

    @property
    def max_nbytes(self) -> int:
        """Longest stream, encoded or decoded."""
        return MAX_CHUNK_NBYTES[self.format][1]


FORMATS = (
    Inflate(format="zstd"),
    Inflate(format="lz4", head_nbytes=4),
    Inflate(format="gzip", checksum="crc32", checksum_from_end=8),
    Inflate(
        format="deflate", head_nbytes=2, tail_nbytes=4, checksum="adler32", checksum_from_end=4, checksum_dtype=">u4"
    ),
)
"""RFC 1952: CRC-32 and length end a gzip member. RFC 1950: 2 bytes before a deflate stream, an Adler-32 after it.
numcodecs: the length before an LZ4 block."""

_FORMAT_OF: dict[type[BytesBytesSpec], int] = {ZstdSpec: 0, Lz4Spec: 1, GzipSpec: 2, ZlibSpec: 3}


def inflate_of(stage: BytesBytesSpec) -> Inflate | None:
    """Return how the device undoes a codec, None if it cannot."""
    number = _FORMAT_OF.get(type(stage))
    return None if number is None else FORMATS[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """One row per compressed stream."""

    chunk: Rows
    """Number of the chunk that holds the stream."""
    format: npt.NDArray[np.uint8]
    """Index into `FORMATS`."""
    source: Rows
    """First byte of the stream, counted from the start of the encoded chunk."""
    source_nbytes: Rows
    target: Rows
    """Where its first decoded byte belongs, counted from the start of the decoded chunk."""
    target_nbytes: Rows
    checksum: npt.NDArray[np.uint32]
    """Stored checksum of the decoded bytes, where the format has one."""

    def __len__(self) -> int:
        return len(self.chunk)

    def by_format(self) -> Self:
        """Return the streams sorted by format."""
        if len(self) == 0 or (self.format[0] == self.format).all():
            return self
        order = np.argsort(self.format, kind="stable")
        columns: dict[str, Any] = {f.name: getattr(self, f.name)[order] for f in fields(self)}
        return type(self)(**columns)

    @classmethod
    def none(cls) -> Self:
        """Return no streams."""
        column = np.zeros(0, np.int64)
        return cls(
            chunk=column,
            format=column.astype(np.uint8),
            source=column,
            source_nbytes=column,
            target=column,
            target_nbytes=column,
            checksum=column.astype(np.uint32),
        )

    @classmethod
    def join(cls, parts: Sequence[Self], n_chunks: Sequence[int]) -> Self:
        """Put streams of several runs of chunks together; `n_chunks` are the lengths of the runs."""
        first = np.cumsum([0, *n_chunks])
        numbered = [replace(p, chunk=p.chunk + n) for p, n in zip(parts, first.tolist(), strict=False)]
        if len(numbered) == 1:
            return numbered[0]
        columns: dict[str, Any] = {
            f.name: np.concatenate([getattr(p, f.name) for p in (cls.none(), *numbered)]) for f in fields(cls)
        }
        return cls(**columns)


def find_streams(
    stage: BytesBytesSpec, data: Bytes, start: Rows, nbytes: Rows, expected: int
) -> tuple[npt.NDArray[np.bool_], Streams]:
    """Find the streams of chunks whose frames the device may be given.

    Parameters
    ----------
    stage : codec spec
        One that `inflate_of` knows.
    data : uint8, shape (m,), host memory
    start, nbytes : int64, shape (n,)
        The bytes of a chunk are ``data[start : start + nbytes]``.
    expected : int
        Decoded length of every chunk in bytes.

    Returns
    -------
    ready : bool, shape (n,)
        The others are for the host codec.
    streams : Streams
        Of the ready chunks, numbered as in `start`.
    """
    number = _FORMAT_OF[type(stage)]
    inflate = FORMATS[number]
    ready = (nbytes <= inflate.max_nbytes) & device_ready(stage, data, start, nbytes, expected)
    chunk = np.flatnonzero(ready)
    n = len(chunk)
    checksum = np.zeros(n, np.uint32)
    if inflate.checksum is not None:
        at = start[chunk] + nbytes[chunk] - inflate.checksum_from_end
        checksum[:] = data[at[:, None] + np.arange(4)].view(inflate.checksum_dtype)[:, 0]
    return ready, Streams(
        chunk=chunk,
        format=np.full(n, number, np.uint8),
        source=np.full(n, inflate.head_nbytes, np.int64),
        source_nbytes=nbytes[chunk] - (inflate.head_nbytes + inflate.tail_nbytes),
        target=np.zeros(n, np.int64),
        target_nbytes=np.full(n, expected, np.int64),
        checksum=checksum,
    )
