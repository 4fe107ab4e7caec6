"""Compressed streams as columns: what lies in the chunks of a batch, and where each stream's bytes belong.

A chunk of most codecs is one stream; a Blosc frame is many. Positions are counted from the start of a chunk, encoded or
decoded, so that the columns hold before anything has an address.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda import blosc, checksum
from xarray_gpuzarr.cuda.api import Bytes
from xarray_gpuzarr.cuda.checksum import Kind
from xarray_gpuzarr.cuda.nvcomp import MAX_CHUNK_NBYTES, Format
from xarray_gpuzarr.frames import blosc as blosc_frames
from xarray_gpuzarr.frames.device_ready import LEAST_ZSTD_NBYTES, device_ready
from xarray_gpuzarr.frames.headers import is_plain_zstd
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    CompressorSpec,
    DeviceCompressorSpec,
    GzipSpec,
    Lz4Spec,
    ShuffleSpec,
    ZlibSpec,
    ZstdSpec,
    complete_table,
)

Rows = npt.NDArray[np.int64]

NO_ROWS = np.zeros(0, np.int64)


class TableColumn:
    """One column of a `Columns`, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __get__(self, columns: Columns, kind: type[Columns]) -> Rows:
        column: Rows = columns.table[self.number]
        return column


class Columns:
    """Columns of int64 that are the rows of one table, shape (k, n)."""

    n_columns: ClassVar[int]
    chunk = TableColumn(0)
    """Number of the chunk that a row belongs to."""

    def __init__(self, table: Rows, *, one_each: bool = False) -> None:
        self.table = table
        self.one_each = one_each
        """Whether row i is the only one of chunk i, for all chunks, and all rows are of one format: so it mostly is,
        and then nothing has to be sorted out."""
        self._n = int(table.shape[1])

    def __len__(self) -> int:
        return self._n

    @classmethod
    def of(cls, n: int, **columns: npt.NDArray[Any] | int) -> Self:
        """Return `n` rows; columns that are not given are 0."""
        table = np.zeros((cls.n_columns, n), np.int64)
        rows = cls(table)
        for name, column in columns.items():
            getattr(rows, name)[:] = column
        return rows

    @classmethod
    @cache
    def none(cls) -> Self:
        """Return no rows."""
        return cls.of(0)

    def per_row[Scalar: np.generic](self, of_chunks: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Return, for each row, what a column of chunks holds."""
        return of_chunks if self.one_each else of_chunks.take(self.chunk)

    def numbered(self, numbers: Rows) -> Self:
        """Return the rows with other numbers for their chunks."""
        table = self.table.copy()
        table[0] = numbers[table[0]]
        return type(self)(table)


def join[C: Columns](parts: Sequence[C], n_chunks: Sequence[int]) -> C:
    """Put columns of several runs of chunks together; `n_chunks` are the lengths of the runs."""
    if len(parts) == 1 or not any(map(len, parts)):
        return parts[0]
    table = np.concatenate([p.table for p in parts], axis=1)
    row = first = 0
    for part, n in zip(parts, n_chunks, strict=True):
        table[0, row : row + len(part)] += first
        row, first = row + len(part), first + n
    return type(parts[0])(table, one_each=all(part.one_each for part in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflate:
    """How the device undoes one format."""

    name: str
    nvcomp: Format | None
    """Format of nvCOMP; None if the kernel is ours."""
    checksum: Kind | None = None
    """Checksum of the decoded bytes that is stored with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Header and trailer around a stream."""

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

ENVELOPES: dict[type, Envelope | None] = complete_table(
    DeviceCompressorSpec,
    {
        ZstdSpec: Envelope(inflate=_ZSTD),
        Lz4Spec: Envelope(inflate=_LZ4, head_nbytes=4),
        GzipSpec: Envelope(inflate=_GZIP, checksum_from_end=8),
        ZlibSpec: _ZLIB,
        BloscSpec: None,
    },
)
"""None for a Blosc frame, which has many streams.

RFC 1952: CRC-32 and length end a gzip member. RFC 1950: 2 bytes before a deflate stream, an Adler-32 after it.
numcodecs: the length before an LZ4 block."""

_IN_BLOSC = {
    blosc_frames.BLOSCLZ: Envelope(inflate=_BLOSCLZ),
    blosc_frames.LZ4: Envelope(inflate=_LZ4),
    blosc_frames.SNAPPY: Envelope(inflate=_SNAPPY),
    blosc_frames.ZLIB: _ZLIB,
    blosc_frames.ZSTD: Envelope(inflate=_ZSTD),
    blosc_frames.RAW: Envelope(inflate=RAW),
}


def longest_stream(stage: CompressorSpec) -> int:
    """Return the most bytes of a codec's streams, encoded or decoded."""
    envelope = ENVELOPES.get(type(stage))
    if envelope is not None and envelope.inflate.nvcomp is not None:
        longest = MAX_CHUNK_NBYTES[envelope.inflate.nvcomp][1]
        return longest if envelope.inflate.checksum is None else min(longest, checksum.MAX_NBYTES)
    return blosc.MAX_NBYTES


class Streams(Columns):
    """One row per compressed stream."""

    n_columns = 7
    format = TableColumn(1)
    """Index into `FORMATS`."""
    source = TableColumn(2)
    """First byte of the stream, counted from the start of the encoded chunk."""
    source_nbytes = TableColumn(3)
    target = TableColumn(4)
    """Where its first decoded byte belongs, counted from the start of the decoded chunk."""
    target_nbytes = TableColumn(5)
    checksum = TableColumn(6)
    """Stored checksum of the decoded bytes, where the format has one."""

    def by_format(self) -> Streams:
        """Return the streams sorted by format; those of blosclz, which share a warp, the longest first."""
        if self.one_each:
            return self
        shared = self.format == FORMATS.index(_BLOSCLZ)
        if np.count_nonzero(shared) < 2 and (self.format[1:] >= self.format[:-1]).all():
            return self
        order = np.lexsort((np.where(shared, -self.source_nbytes, 0), self.format))
        return Streams(self.table.take(order, axis=1))


class Filters(Columns):
    """One row per block of bytes that are shuffled, or lie among such blocks; as `cuda.blosc.unshuffle` wants them.

    The blocks of a chunk that has rows fill it.
    """

    n_columns = 5
    start = TableColumn(1)
    """First byte of the block, counted from the start of the decoded chunk."""
    nbytes = TableColumn(2)
    typesize = TableColumn(3)
    filter = TableColumn(4)


def shuffled(chunk: Rows, nbytes: int, spec: ShuffleSpec) -> Filters:
    """Return rows for chunks that are shuffled as a whole."""
    return Filters.of(len(chunk), chunk=chunk, nbytes=nbytes, typesize=spec.elementsize, filter=1)


def find_streams(
    stage: CompressorSpec, data: Bytes, start: Rows, nbytes: Rows, expected: int
) -> tuple[npt.NDArray[np.bool_], Streams, Filters]:
    """Find the streams of chunks whose frames the device may be given.

    The bytes of a chunk are ``data[start : start + nbytes]``, in host memory; decoded, each has `expected` bytes.

    Returns which chunks are ready, the others being for the host codec, and the streams and filters of those, numbered
    as in `start`.
    """
    if isinstance(stage, BloscSpec):
        return _find_in_blosc(stage.cname, data, start, nbytes, expected)
    if isinstance(stage, ZstdSpec) and len(start):
        first = memoryview(data)[int(start[0]) : int(start[0] + nbytes[0])]
        if is_plain_zstd(first, expected):
            return *zstd_streams(stage, nbytes, expected), Filters.none()
    ready = (nbytes <= longest_stream(stage)) & device_ready(stage, data, start, nbytes, expected)
    whole = _whole(ready, nbytes, expected)
    envelope = ENVELOPES[type(stage)]
    assert envelope is not None
    _open(envelope, whole, data, start)
    return ready, whole, Filters.none()


def zstd_streams(stage: CompressorSpec, nbytes: Rows, expected: int) -> tuple[npt.NDArray[np.bool_], Streams]:
    """Return which chunks may be zstd frames, by their lengths alone, and their streams: the device looks at the bytes.

    Where one writer wrote all chunks, a look at each on the host would be wasted, and each is a cache miss.
    """
    ready = (nbytes >= LEAST_ZSTD_NBYTES) & (nbytes <= longest_stream(stage))
    whole = _whole(ready, nbytes, expected)
    whole.format[:] = FORMATS.index(_ZSTD)
    return ready, whole


def _whole(ready: npt.NDArray[np.bool_], nbytes: Rows, expected: int) -> Streams:
    """Return a stream for each ready chunk, all of its bytes."""
    chunk = ready.nonzero()[0]
    table = np.zeros((Streams.n_columns, len(chunk)), np.int64)
    table[0], table[3], table[5] = chunk, nbytes.take(chunk), expected  # named columns are slower to set
    return Streams(table, one_each=len(chunk) == len(ready))


def _find_in_blosc(
    cname: str, data: Bytes, start: Rows, nbytes: Rows, expected: int
) -> tuple[npt.NDArray[np.bool_], Streams, Filters]:
    walk = blosc_frames.walk_blosc(data, start, nbytes, expected, cname=cname)
    parts = []
    for codec, envelope in _IN_BLOSC.items():
        at = np.flatnonzero(walk.codec == codec)
        if len(at):
            whole = Streams.of(
                len(at),
                chunk=walk.chunk[at],
                source=walk.source[at] - start[walk.chunk[at]],
                source_nbytes=walk.source_nbytes[at],
                target=walk.target[at],
                target_nbytes=walk.target_nbytes[at],
            )
            _open(envelope, whole, data, start)
            parts.append(whole)
    filters = Filters.of(
        len(walk.block_chunk),
        chunk=walk.block_chunk,
        start=walk.block_start,
        nbytes=walk.block_nbytes,
        typesize=walk.block_typesize,
        filter=walk.block_filter,
    )
    return walk.ready, join(parts, [0] * len(parts)) if parts else Streams.none(), filters


def _open(envelope: Envelope, whole: Streams, data: Bytes, start: Rows) -> None:
    """Take streams out of what stands around them."""
    if envelope.checksum_from_end:
        end = start[whole.chunk] + whole.source + whole.source_nbytes
        at = (end - envelope.checksum_from_end)[:, None] + np.arange(4)
        whole.checksum[:] = data[at].view(envelope.checksum_dtype)[:, 0]
    whole.format[:] = FORMATS.index(envelope.inflate)
    if envelope.head_nbytes or envelope.tail_nbytes:
        whole.source[:] += envelope.head_nbytes
        whole.source_nbytes[:] -= envelope.head_nbytes + envelope.tail_nbytes
