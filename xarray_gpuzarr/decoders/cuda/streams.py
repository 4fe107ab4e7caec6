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

from xarray_gpuzarr import blosc_frames
from xarray_gpuzarr.codecs import (
    BloscSpec,
    BytesBytesSpec,
    GzipSpec,
    Lz4Spec,
    ZlibSpec,
    ZstdSpec,
)
from xarray_gpuzarr.cuda import blosc
from xarray_gpuzarr.cuda.checksum import Kind
from xarray_gpuzarr.cuda.nvcomp import MAX_CHUNK_NBYTES, Format
from xarray_gpuzarr.frame_columns import device_ready

Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflate:
    """How the device undoes one format."""

    name: str
    nvcomp: Format | None
    """What nvCOMP calls it; None if the kernel is ours."""
    checksum: Kind | None = None
    """Checksum of the decoded bytes that is stored with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What stands around a stream."""

    inflate: Inflate
    head_nbytes: int = 0
    """Bytes before the stream."""
    tail_nbytes: int = 0
    """Bytes after it."""
    checksum_from_end: int = 0
    """Bytes from the start of the stored checksum to the end."""
    checksum_dtype: str = "<u4"


_ZSTD = Inflate(name="zstd", nvcomp="zstd")
_LZ4 = Inflate(name="lz4", nvcomp="lz4")
_SNAPPY = Inflate(name="snappy", nvcomp="snappy")
_GZIP = Inflate(name="gzip", nvcomp="gzip", checksum="crc32")
_DEFLATE = Inflate(name="zlib", nvcomp="deflate", checksum="adler32")
_BLOSCLZ = Inflate(name="blosclz", nvcomp=None)
RAW = Inflate(name="raw", nvcomp=None)

FORMATS = (_ZSTD, _LZ4, _SNAPPY, _GZIP, _DEFLATE, _BLOSCLZ, RAW)
"""Raw streams are only moved; they come last."""

_ZLIB = Envelope(inflate=_DEFLATE, head_nbytes=2, tail_nbytes=4, checksum_from_end=4, checksum_dtype=">u4")

ENVELOPES: dict[type[BytesBytesSpec], Envelope] = {
    ZstdSpec: Envelope(inflate=_ZSTD),
    Lz4Spec: Envelope(inflate=_LZ4, head_nbytes=4),
    GzipSpec: Envelope(inflate=_GZIP, checksum_from_end=8),
    ZlibSpec: _ZLIB,
}
"""RFC 1952: CRC-32 and length end a gzip member. RFC 1950: 2 bytes before a deflate stream, an Adler-32 after it.
numcodecs: the length before an LZ4 block."""

_IN_BLOSC = {
    blosc_frames.BLOSCLZ: Envelope(inflate=_BLOSCLZ),
    blosc_frames.LZ4: Envelope(inflate=_LZ4),
    blosc_frames.SNAPPY: Envelope(inflate=_SNAPPY),
    blosc_frames.ZLIB: _ZLIB,
    blosc_frames.ZSTD: Envelope(inflate=_ZSTD),
    blosc_frames.RAW: Envelope(inflate=RAW),
}


def longest_stream(stage: BytesBytesSpec) -> int | None:
    """Return the most bytes of a codec's streams, encoded or decoded; None if the device has no decoder."""
    envelope = ENVELOPES.get(type(stage))
    if envelope is not None and envelope.inflate.nvcomp is not None:
        return MAX_CHUNK_NBYTES[envelope.inflate.nvcomp][1]
    return blosc.MAX_NBYTES if isinstance(stage, BloscSpec) else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """One row per block of bytes that are shuffled, or lie among such blocks; as `cuda.blosc.unshuffle` wants them."""

    chunk: Rows
    """Number of the chunk that holds the block. The blocks of a chunk that has rows fill it."""
    start: Rows
    """First byte of the block, counted from the start of the decoded chunk."""
    nbytes: Rows
    typesize: Rows
    filter: Rows

    def __len__(self) -> int:
        return len(self.chunk)

    @classmethod
    def none(cls) -> Self:
        """Return no blocks."""
        column = np.zeros(0, np.int64)
        return cls(chunk=column, start=column, nbytes=column, typesize=column, filter=column)


def join[Columns: (Streams, Filters)](parts: Sequence[Columns], n_chunks: Sequence[int]) -> Columns:
    """Put columns of several runs of chunks together; `n_chunks` are the lengths of the runs."""
    if len(parts) == 1:
        return parts[0]
    first = np.cumsum([0, *n_chunks]).tolist()
    numbered = [replace(p, chunk=p.chunk + n) for p, n in zip(parts, first, strict=False)]
    names = [f.name for f in fields(parts[0])]
    return type(parts[0])(**{name: np.concatenate([getattr(p, name) for p in numbered]) for name in names})


def find_streams(
    stage: BytesBytesSpec, data: Bytes, start: Rows, nbytes: Rows, expected: int
) -> tuple[npt.NDArray[np.bool_], Streams, Filters]:
    """Find the streams of chunks whose frames the device may be given.

    Parameters
    ----------
    stage : codec spec
        One that has a `longest_stream`.
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
    filters : Filters
        Likewise.
    """
    if isinstance(stage, BloscSpec):
        return _find_in_blosc(data, start, nbytes, expected)
    most = longest_stream(stage)
    ready = (nbytes <= (most or 0)) & device_ready(stage, data, start, nbytes, expected)
    chunk = np.flatnonzero(ready)
    whole = Streams(
        chunk=chunk,
        format=np.zeros(len(chunk), np.uint8),
        source=np.zeros(len(chunk), np.int64),
        source_nbytes=nbytes[chunk],
        target=np.zeros(len(chunk), np.int64),
        target_nbytes=np.full(len(chunk), expected, np.int64),
        checksum=np.zeros(len(chunk), np.uint32),
    )
    return ready, _open(ENVELOPES[type(stage)], whole, data, start), Filters.none()


def _find_in_blosc(
    data: Bytes, start: Rows, nbytes: Rows, expected: int
) -> tuple[npt.NDArray[np.bool_], Streams, Filters]:
    walk = blosc_frames.walk_blosc(data, start, nbytes, expected)
    parts = []
    for codec, envelope in _IN_BLOSC.items():
        at = np.flatnonzero(walk.codec == codec)
        if len(at):
            whole = Streams(
                chunk=walk.chunk[at],
                format=np.zeros(len(at), np.uint8),
                source=walk.source[at] - start[walk.chunk[at]],
                source_nbytes=walk.source_nbytes[at],
                target=walk.target[at],
                target_nbytes=walk.target_nbytes[at],
                checksum=np.zeros(len(at), np.uint32),
            )
            parts.append(_open(envelope, whole, data, start))
    filters = Filters(
        chunk=walk.block_chunk,
        start=walk.block_start,
        nbytes=walk.block_nbytes,
        typesize=walk.block_typesize,
        filter=walk.block_filter.astype(np.int64),
    )
    return walk.ready, join(parts, [0] * len(parts)) if parts else Streams.none(), filters


def _open(envelope: Envelope, whole: Streams, data: Bytes, start: Rows) -> Streams:
    """Take streams out of what stands around them."""
    checksum = whole.checksum
    if envelope.checksum_from_end:
        end = start[whole.chunk] + whole.source + whole.source_nbytes
        at = (end - envelope.checksum_from_end)[:, None] + np.arange(4)
        checksum = data[at].view(envelope.checksum_dtype)[:, 0].astype(np.uint32)
    return replace(
        whole,
        format=np.full(len(whole), FORMATS.index(envelope.inflate), np.uint8),
        source=whole.source + envelope.head_nbytes,
        source_nbytes=whole.source_nbytes - (envelope.head_nbytes + envelope.tail_nbytes),
        checksum=checksum,
    )
