"""Codecs as frozen data: a class for each codec, and `PipelineSpec` for the codecs of a chunk.

`codec_json` makes them from Zarr metadata, and decoders interpret them; nothing is parsed or decoded here. Those that
change elements are in `element_codecs`. An unknown codec becomes `OtherSpec`, which keeps its JSON, so that
zarr-python's codec can decode it.

References
----------
Zarr v3 core specification, "Codecs"; Zarr v2 specification, "Metadata"; numcodecs; the registered Zarr extensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Literal, get_args

import numpy as np

from xarray_gpuzarr.stored.element_codecs import ElementSpec, PackBitsSpec

Endian = Literal["little", "big"]
"""Byte order of elements."""
ChecksumAlgorithm = Literal["crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesSpec:
    """Elements one after another, in C order of the axes."""

    endian: Endian | None
    """Byte order of one element; None for one-byte types."""

    def __str__(self) -> str:
        return f"bytes({self.endian})" if self.endian else "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposeSpec:
    """A permutation of the axes, made before elements become bytes."""

    order: tuple[int, ...]
    """Axis of the array that each axis of the stored chunk holds."""

    def __str__(self) -> str:
        return f"transpose({','.join(map(str, self.order))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZstdSpec:
    """One Zstandard frame (RFC 8878)."""

    def __str__(self) -> str:
        return "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class GzipSpec:
    """A gzip file of one or more members (RFC 1952)."""

    def __str__(self) -> str:
        return "gzip"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZlibSpec:
    """A zlib stream (RFC 1950)."""

    def __str__(self) -> str:
        return "zlib"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lz4Spec:
    """The decoded size as a little-endian uint32, then one raw LZ4 block (numcodecs)."""

    def __str__(self) -> str:
        return "lz4"


@dataclass(frozen=True, slots=True, kw_only=True)
class BloscSpec:
    """One Blosc 1.x frame. Decoding follows the frame header, not these fields of the metadata."""

    cname: str
    shuffle: str
    typesize: int | None

    def __str__(self) -> str:
        return f"blosc(cname={self.cname}, shuffle={self.shuffle})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumSpec:
    """A payload and its checksum, a little-endian uint32."""

    algorithm: ChecksumAlgorithm = "crc32c"
    at_start: bool = False
    """Whether the checksum comes before the payload, rather than after it."""
    seed: int = 0
    """Initial value of the algorithm; only ``jenkins_lookup3`` has one."""

    def __str__(self) -> str:
        return self.algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSpec:
    """The first bytes of all elements, then their second bytes, and so on (numcodecs)."""

    elementsize: int
    """Number of bytes of an element, at least 2."""

    def __str__(self) -> str:
        return f"shuffle({self.elementsize})"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySpec:
    """A codec whose decoder returns its input, such as ``bitround``, which changes data only when it encodes."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSpec:
    """A shard: inner chunks, each encoded by `codecs`, and an index of their byte ranges."""

    chunk_shape: tuple[int, ...]
    """Shape of one inner chunk, in elements."""
    codecs: PipelineSpec
    """Codecs of one inner chunk."""
    index_codecs: PipelineSpec
    """Codecs of the index."""
    index_location: Literal["start", "end"]

    def __str__(self) -> str:
        return f"sharding(index at {self.index_location})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSpec:
    """A codec that zarr-python decodes."""

    name: str
    configuration: str
    """Configuration as JSON text."""

    def __str__(self) -> str:
        return self.name


DeviceCompressorSpec = ZstdSpec | GzipSpec | ZlibSpec | Lz4Spec | BloscSpec
"""Compressors that a GPU and the host decompress."""
CompressorSpec = DeviceCompressorSpec
"""Compressors that the host decompresses; at present, a GPU does, too. If one has no settings, its class has no fields,
and ``str`` returns its name in metadata. `numcodecs_json.COMPRESSORS` lists it under that name."""
StageSpec = CompressorSpec | ChecksumSpec | ShuffleSpec | ElementSpec
"""Codecs that change the bytes of a chunk, and that decoders undo one after another."""
ArrayArraySpec = TransposeSpec | IdentitySpec | ElementSpec | OtherSpec
ArrayBytesSpec = BytesSpec | ShardingSpec | OtherSpec
BytesBytesSpec = StageSpec | IdentitySpec | OtherSpec
"""Codecs of bytes. In format 2, these include codecs of elements."""
CodecSpec = ArrayArraySpec | ArrayBytesSpec | BytesBytesSpec


def complete_table[Row](kinds: UnionType, rows: dict[type, Row]) -> dict[type, Row]:
    """Return `rows`. Raises `TypeError` unless it has exactly one row for each codec in a union."""
    differences = sorted(kind.__name__ for kind in set(get_args(kinds)) ^ set(rows))
    if differences:
        raise TypeError(f"a table of codecs lacks a row, or has one too many: {', '.join(differences)}")
    return rows


NO_LIMIT = 2**63 - 1
"""Length of an object or a chunk that no real one reaches. As a limit, it means that there is none."""
_MAX_GROWTH, _MAX_EXTRA_NBYTES = 4, 1024 * 1024
"""Factor and summand that bound the length of an encoded chunk. Incompressible bytes grow by an eighth at most (zlib
with little memory), unless a writer flushes or restarts streams every few bytes, or adds names, extra fields or
skippable frames."""
_MAX_OTHER_GROWTH, _MAX_OTHER_EXTRA_NBYTES = 64, 16 * 1024 * 1024
"""Factor and summand for codecs that only zarr-python knows. Numbers that are written as text take 13 times their
bytes. Shards inside shards, with chunks of one byte, take 27 times the bytes of the chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """The codecs of one chunk, in the order of encoding."""

    array_to_array: tuple[ArrayArraySpec, ...] = ()
    array_to_bytes: ArrayBytesSpec
    bytes_to_bytes: tuple[BytesBytesSpec, ...] = ()

    def __iter__(self) -> Iterator[CodecSpec]:
        return iter((*self.array_to_array, self.array_to_bytes, *self.bytes_to_bytes))

    def __str__(self) -> str:
        return " > ".join(map(str, self))

    @property
    def other(self) -> OtherSpec | ShardingSpec | None:
        """First codec that this package leaves to zarr-python inside a chunk, or None."""
        return next((codec for codec in self if isinstance(codec, OtherSpec | ShardingSpec)), None)

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """Codecs that change the bytes of a chunk, in the order of decoding."""
        decoding_order = reversed((*self.array_to_array, *self.bytes_to_bytes))
        return tuple(codec for codec in decoding_order if isinstance(codec, StageSpec))

    def max_encoded_nbytes(self, chunk_nbytes: int) -> int:
        """Return the largest number of bytes that a chunk may have, stored or between two codecs.

        No usual writer reaches this bound. `chunk_nbytes` is the decoded length.
        """
        if self.other is not None:
            return _MAX_OTHER_GROWTH * chunk_nbytes + _MAX_OTHER_EXTRA_NBYTES
        longest = nbytes = chunk_nbytes
        for stage in reversed(self.stages):
            if isinstance(stage, ElementSpec):
                # An upper bound: a part of an element counts as a whole one, and a packed boolean as a byte.
                nbytes = -(-nbytes // np.dtype(stage.decoded).itemsize) * np.dtype(stage.encoded).itemsize
                longest = max(longest, nbytes)
        return _MAX_GROWTH * longest + _MAX_EXTRA_NBYTES


def encoded_nbytes(spec: StageSpec, nbytes: int) -> int | None:
    """Return the encoded length of `nbytes` decoded bytes; None if it varies, or no chunk has this decoded length."""
    if isinstance(spec, ChecksumSpec):
        return nbytes + 4
    if isinstance(spec, PackBitsSpec):
        return 1 + -(-nbytes // 8)
    if isinstance(spec, ElementSpec):
        n_elements, remainder = divmod(nbytes, np.dtype(spec.decoded).itemsize)
        return None if remainder else n_elements * np.dtype(spec.encoded).itemsize
    if isinstance(spec, ShuffleSpec):
        return None if nbytes % spec.elementsize else nbytes
    return None
