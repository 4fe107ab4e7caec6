"""Codecs as frozen data: what a chunk's bytes are, and nothing that parses or decodes them.

`codec_json` makes them of Zarr metadata, decoders interpret them. A codec that is not known here becomes `OtherSpec`
and keeps its JSON, so that zarr-python's own codec can be asked to decode it.

References
----------
Zarr v3 core specification, "Codecs"; Zarr v2 specification, "Metadata"; numcodecs; the registered Zarr extensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Literal, get_args

import numpy as np

Endian = Literal["little", "big"]

ChecksumAlgorithm = Literal["crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"]
Rounding = Literal["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]
OutOfRange = Literal["clamp", "wrap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesSpec:
    """Elements laid out one after another."""

    endian: Endian | None
    """Byte order of one element; None for one-byte types."""

    def __str__(self) -> str:
        return f"bytes({self.endian})" if self.endian else "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransposeSpec:
    """Axes permuted before the elements are laid out."""

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
    """A little-endian uint32 decoded size, then one raw LZ4 block (numcodecs)."""

    def __str__(self) -> str:
        return "lz4"


@dataclass(frozen=True, slots=True, kw_only=True)
class BloscSpec:
    """One Blosc 1.x frame. The frame header, not the metadata, rules how it decodes."""

    cname: str
    shuffle: str
    typesize: int | None

    def __str__(self) -> str:
        return f"blosc(cname={self.cname}, shuffle={self.shuffle})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumSpec:
    """A payload and a checksum of it, a little-endian uint32."""

    algorithm: ChecksumAlgorithm = "crc32c"
    at_start: bool = False
    """Whether the checksum stands before the payload, rather than behind it."""
    seed: int = 0
    """Number that the algorithm starts from; only ``jenkins_lookup3`` has one."""

    def __str__(self) -> str:
        return self.algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSpec:
    """First bytes of all elements, then their second bytes, and so on (numcodecs)."""

    elementsize: int
    """Bytes of one element."""

    def __str__(self) -> str:
        return f"shuffle({self.elementsize})"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySpec:
    """A codec that decodes to the bytes that it is given: what it loses was lost when it encoded."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementSpec:
    """A codec of elements one after another; the base of those that follow."""

    decoded: str
    """Dtype of decoded elements as NumPy writes it, byte order included, such as ``">f4"``."""
    encoded: str
    """Dtype of encoded elements."""

    def _named(self, name: str) -> str:
        """Write the name of a codec and its dtypes, for people."""
        decoded, encoded = np.dtype(self.decoded).name, np.dtype(self.encoded).name
        return f"{name}({decoded})" if decoded == encoded else f"{name}({decoded} as {encoded})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsTypeSpec(ElementSpec):
    """Elements converted as C does (numcodecs)."""

    name: Literal["astype", "quantize"] = "astype"

    def __str__(self) -> str:
        return self._named(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec(ElementSpec):
    """The first element, then differences between neighbours (numcodecs)."""

    def __str__(self) -> str:
        return self._named("delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSpec(ElementSpec):
    """Decoded as ``encoded / scale + offset``; the base of two."""

    scale: float
    """An int stays one."""
    offset: float
    _written: str = field(init=False, repr=False)
    """The numbers as text; see `Cast`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_written", f"{self.scale!r} {self.offset!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedScaleOffsetSpec(ScaledSpec):
    """In NumPy's arithmetic with Python numbers (numcodecs)."""

    def __str__(self) -> str:
        return self._named("fixedscaleoffset")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBitsSpec(ElementSpec):
    """A byte that counts unused bits, then eight booleans a byte, the first one highest (numcodecs)."""

    def __str__(self) -> str:
        return "packbits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOffsetSpec(ScaledSpec):
    """Within one dtype, with scale and offset exactly of it; integers divide without a rest (Zarr extension)."""

    def __str__(self) -> str:
        return f"scale_offset(scale={self.scale}, offset={self.offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CastValueSpec(ElementSpec):
    """Elements converted by value, by stated rules (Zarr extension)."""

    rounding: Rounding
    out_of_range: OutOfRange | None
    """Rule for numbers that do not fit the dtype; None if they are errors."""
    scalar_map: tuple[tuple[str, str], ...]
    """Encoded numbers and what they decode to, before any rule; as text, since NaN equals nothing."""

    def __str__(self) -> str:
        return self._named("cast_value")

    @property
    def numbers(self) -> dict[float, float]:
        """The scalar map as numbers: ints where the dtype is one of integers."""
        of_key, of_value = (float if np.dtype(d).kind == "f" else int for d in (self.encoded, self.decoded))
        return {of_key(key): of_value(value) for key, value in self.scalar_map}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSpec:
    """A shard: inner chunks, each encoded by `codecs`, and an index of their byte ranges."""

    chunk_shape: tuple[int, ...]
    """Shape of one inner chunk, in elements."""
    codecs: PipelineSpec
    """How one inner chunk is encoded."""
    index_codecs: PipelineSpec
    """How the index is encoded."""
    index_location: Literal["start", "end"]

    def __str__(self) -> str:
        return f"sharding(index at {self.index_location})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSpec:
    """A codec that this package leaves to zarr-python."""

    name: str
    configuration: str
    """The configuration as JSON text."""

    def __str__(self) -> str:
        return self.name


DeviceCompressorSpec = ZstdSpec | GzipSpec | ZlibSpec | Lz4Spec | BloscSpec
"""Compressors that a GPU decompresses; the host does, too."""
CompressorSpec = DeviceCompressorSpec
"""Compressors that the host decompresses in bulk. The text of one without fields is its name in metadata."""
AnyElementSpec = AsTypeSpec | CastValueSpec | DeltaSpec | FixedScaleOffsetSpec | PackBitsSpec | ScaleOffsetSpec
StageSpec = CompressorSpec | ChecksumSpec | ShuffleSpec | ElementSpec
ArrayArraySpec = TransposeSpec | IdentitySpec | ElementSpec | OtherSpec
ArrayBytesSpec = BytesSpec | ShardingSpec | OtherSpec
BytesBytesSpec = StageSpec | IdentitySpec | OtherSpec
"""In format 2, codecs of elements work on bytes too."""
CodecSpec = ArrayArraySpec | ArrayBytesSpec | BytesBytesSpec


def of_each[Row](kinds: UnionType, rows: dict[type, Row]) -> dict[type, Row]:
    """Return a table that says something of each kind of codec in a union: one left out is an error at import."""
    if odd := sorted(kind.__name__ for kind in set(get_args(kinds)) ^ set(rows)):
        raise TypeError(f"a table of codecs lacks a row, or has one too many: {', '.join(odd)}")
    return rows


NO_LIMIT = 2**63 - 1
"""Bytes of an object or a chunk, where nothing bounds them."""
_MOST_TIMES, _MOST_SLACK_NBYTES = 4, 1024 * 1024
"""Incompressible bytes grow by an eighth at most (zlib with little memory), unless streams are flushed, or begun anew,
every few bytes, or carry names, extra fields or skippable frames."""
_UNKNOWN_TIMES, _UNKNOWN_SLACK_NBYTES = 64, 16 * 1024 * 1024
"""The same of codecs that only zarr-python knows: numbers as text take 13 times their bytes, shards in shards 27 times
those of chunks of one byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """The codecs of one chunk in the order in which they encode."""

    array_to_array: tuple[ArrayArraySpec, ...] = ()
    array_to_bytes: ArrayBytesSpec
    bytes_to_bytes: tuple[BytesBytesSpec, ...] = ()

    def __iter__(self) -> Iterator[CodecSpec]:
        return iter((*self.array_to_array, self.array_to_bytes, *self.bytes_to_bytes))

    def __str__(self) -> str:
        return " > ".join(map(str, self))

    @property
    def other(self) -> OtherSpec | ShardingSpec | None:
        """First codec that only zarr-python can decode inside a chunk, or None."""
        return next((c for c in self if isinstance(c, OtherSpec | ShardingSpec)), None)

    @property
    def stages(self) -> tuple[StageSpec, ...]:
        """Codecs that turn stored bytes into the elements of a chunk, in the order of decoding, without transposes."""
        return tuple(c for c in reversed((*self.array_to_array, *self.bytes_to_bytes)) if isinstance(c, StageSpec))

    def most_nbytes(self, chunk_nbytes: int) -> int:
        """Return how many bytes a chunk has at most, stored or between two codecs: more than writers make of it."""
        if self.other is not None:
            return _UNKNOWN_TIMES * chunk_nbytes + _UNKNOWN_SLACK_NBYTES
        longest = nbytes = chunk_nbytes
        for stage in reversed(self.stages):
            if isinstance(stage, ElementSpec):
                nbytes = -(-nbytes // np.dtype(stage.decoded).itemsize) * np.dtype(stage.encoded).itemsize
                longest = max(longest, nbytes)
        return _MOST_TIMES * longest + _MOST_SLACK_NBYTES


def encoded_nbytes(spec: StageSpec, nbytes: int) -> int | None:
    """Return the encoded length of `nbytes` decoded bytes; None if the content decides, or nothing has that length."""
    if isinstance(spec, ChecksumSpec):
        return nbytes + 4
    if isinstance(spec, PackBitsSpec):
        return 1 + -(-nbytes // 8)
    if isinstance(spec, ElementSpec):
        n_elements, rest = divmod(nbytes, np.dtype(spec.decoded).itemsize)
        return None if rest else n_elements * np.dtype(spec.encoded).itemsize
    if isinstance(spec, ShuffleSpec):
        return None if nbytes % max(1, spec.elementsize) else nbytes
    return None
