"""Codecs as frozen data: what Zarr metadata says about a chunk's bytes, and nothing that decodes them.

`parse_codecs` reads the v3 ``codecs`` list and `parse_v2_codecs` the v2 ``compressor``, ``filters``, ``order`` and
``dtype``; both give one `CodecPipeline`. Decoders interpret it. A codec that is not known here becomes `OtherSpec`
and keeps its JSON, so that zarr-python's own codec can be asked to decode it.

References
----------
Zarr v3 core specification, "Codecs"; Zarr v2 specification, "Metadata"; numcodecs configuration ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from xarray_gpuzarr.errors import MetadataError

Json = Any
"""A decoded JSON value."""

Endian = Literal["little", "big"]


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
class Crc32cSpec:
    """Payload followed by its CRC-32C, little-endian uint32."""

    def __str__(self) -> str:
        return "crc32c"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingSpec:
    """A shard: inner chunks, each encoded by `codecs`, and an index of their byte ranges."""

    chunk_shape: tuple[int, ...]
    """Shape of one inner chunk, in elements."""
    codecs: CodecPipeline
    """How one inner chunk is encoded."""
    index_codecs: CodecPipeline
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


ArrayBytesSpec = BytesSpec | ShardingSpec | OtherSpec
BytesBytesSpec = ZstdSpec | GzipSpec | ZlibSpec | Lz4Spec | BloscSpec | Crc32cSpec | OtherSpec
CodecSpec = TransposeSpec | ArrayBytesSpec | BytesBytesSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecPipeline:
    """The codecs of one chunk in the order in which they encode."""

    array_to_array: tuple[TransposeSpec | OtherSpec, ...] = ()
    array_to_bytes: ArrayBytesSpec
    bytes_to_bytes: tuple[BytesBytesSpec, ...] = ()

    def __iter__(self) -> Any:
        return iter((*self.array_to_array, self.array_to_bytes, *self.bytes_to_bytes))

    def __str__(self) -> str:
        return " > ".join(map(str, self))

    @property
    def other(self) -> OtherSpec | ShardingSpec | None:
        """First codec that only zarr-python can decode inside a chunk, or None."""
        return next((c for c in self if isinstance(c, OtherSpec | ShardingSpec)), None)


_BYTES_TO_BYTES_NAMES: dict[str, type[Any]] = {
    "zstd": ZstdSpec,
    "gzip": GzipSpec,
    "zlib": ZlibSpec,
    "lz4": Lz4Spec,
    "crc32c": Crc32cSpec,
    "numcodecs.zstd": ZstdSpec,
    "numcodecs.gzip": GzipSpec,
    "numcodecs.zlib": ZlibSpec,
    "numcodecs.lz4": Lz4Spec,
}

_V2_SHUFFLE = {-1: "auto", 0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def parse_codecs(codecs: Sequence[Json]) -> CodecPipeline:
    """Read a v3 ``codecs`` list.

    Parameters
    ----------
    codecs : sequence of JSON
        ``{"name": ..., "configuration": {...}}`` objects or plain names.

    Raises
    ------
    MetadataError
        An entry has no name, or a known codec lacks a value that it needs.
    """
    before: list[TransposeSpec | OtherSpec] = []
    serializer: ArrayBytesSpec | None = None
    after: list[BytesBytesSpec] = []
    for entry in codecs:
        spec = _parse_codec(entry)
        if isinstance(spec, BytesSpec | ShardingSpec):
            serializer = spec
        elif isinstance(spec, TransposeSpec) or (isinstance(spec, OtherSpec) and serializer is None):
            before.append(spec)
        else:
            after.append(spec)
    if serializer is None:
        # An unknown array->bytes codec (vlen-utf8, packbits ...) is the last of the leading ones.
        if not before or not isinstance(before[-1], OtherSpec):
            raise _bad_codec(codecs, "no codec turns the array into bytes")
        serializer = OtherSpec(name=before[-1].name, configuration=before[-1].configuration)
        before.pop()
    return CodecPipeline(array_to_array=tuple(before), array_to_bytes=serializer, bytes_to_bytes=tuple(after))


def _parse_codec(entry: Json) -> CodecSpec:
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise _bad_codec(entry, "an entry without a name")
    name, conf = entry["name"], entry.get("configuration") or {}
    try:
        return _known_codec(name, conf)
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        raise _bad_codec(entry, f"{type(err).__name__}: {err}") from err


def _known_codec(name: str, conf: Mapping[str, Json]) -> CodecSpec:  # noqa: PLR0911  # one per kind of codec
    if name == "bytes":
        return BytesSpec(endian=conf.get("endian"))
    if name == "transpose" and not isinstance(conf["order"], str):
        return TransposeSpec(order=tuple(int(axis) for axis in conf["order"]))
    if name in _BYTES_TO_BYTES_NAMES:
        spec: CodecSpec = _BYTES_TO_BYTES_NAMES[name]()
        return spec
    if name == "blosc":
        return BloscSpec(cname=str(conf["cname"]), shuffle=str(conf["shuffle"]), typesize=conf.get("typesize"))
    if name == "numcodecs.blosc":
        return _v2_blosc(conf)
    if name == "sharding_indexed":
        return ShardingSpec(
            chunk_shape=tuple(int(n) for n in conf["chunk_shape"]),
            codecs=parse_codecs(conf["codecs"]),
            index_codecs=parse_codecs(conf["index_codecs"]),
            index_location=conf.get("index_location", "end"),
        )
    return OtherSpec(name=name, configuration=json.dumps(dict(conf), sort_keys=True, default=str))


def parse_v2_codecs(
    *,
    compressor: Json | None,
    filters: Sequence[Json] | None,
    order: Literal["C", "F"],
    endian: Endian | None,
    ndim: int,
) -> CodecPipeline:
    """Read the codec part of a v2 ``.zarray``.

    Parameters
    ----------
    compressor : JSON object or None
    filters : sequence of JSON objects or None
    order : "C" or "F"
        Memory layout of a chunk; "F" is a transpose that reverses the axes.
    endian : "little", "big" or None
        Byte order named by the v2 ``dtype``.
    ndim : int
        Number of axes of the array.
    """
    transposed = order == "F" and ndim > 1
    before: tuple[TransposeSpec | OtherSpec, ...] = (
        (TransposeSpec(order=tuple(reversed(range(ndim)))),) if transposed else ()
    )
    after: list[BytesBytesSpec] = [_v2_other(f) for f in filters or ()]
    if compressor is not None:
        after.append(_v2_compressor(compressor))
    return CodecPipeline(array_to_array=before, array_to_bytes=BytesSpec(endian=endian), bytes_to_bytes=tuple(after))


def _v2_compressor(conf: Json) -> BytesBytesSpec:
    known: dict[str, type[Any]] = {
        "zstd": ZstdSpec,
        "gzip": GzipSpec,
        "zlib": ZlibSpec,
        "lz4": Lz4Spec,
    }
    if not isinstance(conf, Mapping):
        raise _bad_codec(conf, "a v2 codec that is not an object")
    codec_id = conf.get("id")
    if codec_id == "blosc":
        return _v2_blosc(conf)
    if codec_id in known:
        spec: BytesBytesSpec = known[codec_id]()
        return spec
    return _v2_other(conf)


def _v2_blosc(conf: Mapping[str, Json]) -> BloscSpec:
    shuffle = conf.get("shuffle", 1)
    return BloscSpec(
        cname=str(conf.get("cname", "lz4")),
        shuffle=_V2_SHUFFLE.get(shuffle, str(shuffle)),
        typesize=conf.get("typesize"),
    )


def _v2_other(conf: Json) -> OtherSpec:
    if not isinstance(conf, Mapping) or not isinstance(conf.get("id"), str):
        raise _bad_codec(conf, "a v2 codec without an id")
    rest = {k: v for k, v in conf.items() if k != "id"}
    return OtherSpec(name=conf["id"], configuration=json.dumps(rest, sort_keys=True, default=str))


def _bad_codec(entry: Json, found: str) -> MetadataError:
    return MetadataError(
        "cannot read the codecs of an array",
        tried=json.dumps(entry, default=str),
        found=found,
        do="check the array's metadata (zarr.json or .zarray) against the Zarr specification",
    )
