"""Zarr metadata -> `ArraySpec`: all that planning and decoding need to know about one stored array.

The only room that touches zarr-python's metadata classes. An unsharded array becomes an array whose shards hold one
chunk, here and nowhere else. What cannot be planned (irregular grids, unknown key encodings, variable-length shard
indexes, storage transformers, sizes that no machine has) becomes a reason, and `read` then asks zarr-python for the
whole selection.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numcodecs.registry
import numpy as np
import numpy.typing as npt
import zarr
from zarr.buffer import cpu, default_buffer_prototype
from zarr.codecs import ShardingCodec
from zarr.core.array import create_codec_pipeline
from zarr.core.array_spec import ArrayConfig
from zarr.core.array_spec import ArraySpec as ZarrChunkSpec
from zarr.core.buffer import BufferPrototype
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding, V2ChunkKeyEncoding
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.core.sync import sync
from zarr.registry import get_codec_class, get_pipeline_class

from xarray_gpuzarr.errors import ArrayTypeError, MetadataError, UnsupportedCodecError
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS, ArraySpec, KeyEncoding, Unplanned
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid, TooLargeError
from xarray_gpuzarr.stored.codec_json import parse_codecs, parse_v2_codecs
from xarray_gpuzarr.stored.codecs import (
    ArrayArraySpec,
    BytesSpec,
    ChecksumSpec,
    ElementSpec,
    Endian,
    PipelineSpec,
    ShardingSpec,
    TransposeSpec,
)
from xarray_gpuzarr.stored.shard_index import ShardIndexSpec

_MAX_LENGTH = 2**63 - 1
"""Greatest length of an axis: neither NumPy nor Python's own `len` count further, so xarray opens no longer array."""
ZARR = tuple(map(int, zarr.__version__.split(".")[:2]))
"""Version of zarr-python. Code that asks for it can go when 3.3 is the oldest supported."""

Metadata = ArrayV2Metadata | ArrayV3Metadata
"""Metadata of an array, of either format."""
parsed: dict[int, tuple[weakref.ref[Metadata], str, ArraySpec | Unplanned]] = {}
"""Parsed metadata of living objects, by `id`: parsing takes longer than reading a small chunk."""
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that arithmetic and lookups raise where a document holds something else than it should."""


def parse_array(array: zarr.Array[Any]) -> ArraySpec | Unplanned:
    """Describe a stored array, or say why it cannot be planned.

    Raises
    ------
    MetadataError
        A codec entry is malformed, shapes do not fit each other, or a chunk is larger than any machine's memory.
    UnsupportedCodecError
        zarr-python would have to decode it, and the installed version does so wrongly.
    """
    return parse_metadata(array.metadata, array.path)


def parse_metadata(metadata: Metadata, path: str) -> ArraySpec | Unplanned:
    """Describe an array as `parse_array` does, from its metadata and its path inside the store, without a slash."""
    number = id(metadata)
    known = parsed.get(number)
    if known is not None and known[0]() is metadata and known[1] == path:
        return known[2]
    try:
        spec = _parse(metadata, path)
    except MetadataError:
        raise
    except _MALFORMED as err:
        raise MetadataError(
            f"invalid metadata for array '/{path}'",
            tried="its shapes, dtype, fill value and codecs",
            found=f"{type(err).__name__}: {err}",
            do="check the array's metadata (zarr.json or .zarray) against the Zarr specification",
        ) from err
    # A resize gives an array another metadata object.
    parsed[number] = weakref.ref(metadata, lambda _: parsed.pop(number, None)), path, spec
    return spec


def native_dtype(metadata: Metadata) -> np.dtype[Any]:
    """Return the dtype that zarr-python gives the elements of an array."""
    return np.dtype(metadata.dtype.to_native_dtype())


def _parse(metadata: Metadata, path: str) -> ArraySpec | Unplanned:
    if max(metadata.shape, default=0) > _MAX_LENGTH:
        raise ValueError(f"shape {metadata.shape}")
    dtype = native_dtype(metadata)
    if dtype.kind not in NUMERIC_KINDS:
        return Unplanned(reason=f"dtype {dtype} is not numeric")
    if not isinstance(metadata, ArrayV2Metadata):
        encoding = metadata.chunk_key_encoding
        if not isinstance(encoding, DefaultChunkKeyEncoding | V2ChunkKeyEncoding):
            return Unplanned(reason=f"chunk key encoding {encoding.name!r}")
    try:
        spec = _parse_document(to_json(metadata.to_dict()), dtype)
    except TooLargeError as err:
        spec = Unplanned(reason=str(err))
    if isinstance(spec, ArraySpec) and not dtype.isnative and _filters(spec.codecs):
        # Only an array that was just made has such a dtype: what its filters encode, its stored metadata do not tell.
        spec = Unplanned(reason=f"filters of {dtype.str} elements, whose byte order is not stored")
    if ZARR < (3, 3) and (isinstance(spec, Unplanned) or spec.codecs.other):
        _require_right_elements(path, array_codecs(metadata))
    if isinstance(spec, Unplanned):
        return spec
    fill = np.asarray(0 if metadata.fill_value is None else metadata.fill_value).astype(spec.numpy_dtype).tobytes()
    return replace(spec, path="/" + path, fill=fill, keys=replace(spec.keys, prefix=f"{path}/" if path else ""))


@lru_cache(maxsize=256)
def _parse_document(text: str, dtype: np.dtype[Any]) -> ArraySpec | Unplanned:
    """Describe all arrays that have the same metadata; path and fill value, which JSON may round, are left empty."""
    document = json.loads(text)
    if document["zarr_format"] != 2:
        return _parse_v3(document, text, dtype)
    shape = tuple(document["shape"])
    return ArraySpec(
        path="",
        dtype=dtype.str,
        grid=ChunkGrid(shape=shape, chunk_shape=tuple(document["chunks"]), chunks_per_shard=(1,) * len(shape)),
        codecs=_v2_codecs(document, dtype),
        index=None,
        fill=b"",
        keys=KeyEncoding(prefix="", style="v2", separator=document["dimension_separator"]),
        metadata=text,
    )


def _require_right_elements(path: str, codecs: PipelineSpec) -> None:
    """Refuse what zarr-python before 3.3 reads as wrong numbers: it gives swapped bytes to filters of elements."""
    stored = codecs.array_to_bytes
    if isinstance(stored, ShardingSpec):
        _require_right_elements(path, stored.codecs)
    if _filters(codecs) and isinstance(stored, BytesSpec) and stored.endian == "big":
        raise UnsupportedCodecError(
            f"the installed zarr-python decodes array '/{path}' to wrong numbers",
            tried=f"{codecs}, which is left to zarr-python",
            found=f"zarr-python {zarr.__version__}, filters of big-endian elements",
            do="pip install 'zarr>=3.3', or leave the array out: drop_variables=[...]",
        )


def _filters(codecs: PipelineSpec) -> list[ArrayArraySpec]:
    """Return the codecs that change elements, not only where they are."""
    return [c for c in codecs.array_to_array if not isinstance(c, TransposeSpec)]


def array_codecs(metadata: Metadata) -> PipelineSpec:
    """Name the codecs of an array, whether it can be planned or not; in format 3, those of elements as unknown ones."""
    document: dict[str, Any] = dict(metadata.to_dict())
    if isinstance(metadata, ArrayV2Metadata):
        return _v2_codecs(document, native_dtype(metadata))
    return parse_codecs(document["codecs"])


def _v2_codecs(document: Mapping[str, Any], dtype: np.dtype[Any]) -> PipelineSpec:
    endian: Endian | None = "big" if dtype.newbyteorder("=") != dtype else "little"
    return parse_v2_codecs(
        compressor=document["compressor"],
        filters=document["filters"],
        order=document["order"],
        endian=None if dtype.itemsize == 1 else endian,
        ndim=len(document["shape"]),
    )


def _parse_v3(document: Mapping[str, Any], text: str, dtype: np.dtype[Any]) -> ArraySpec | Unplanned:
    if document["chunk_grid"]["name"] != "regular":
        return Unplanned(reason=f"chunk grid {document['chunk_grid']['name']!r}")
    if document.get("storage_transformers"):
        return Unplanned(reason="storage transformers")
    shard_shape = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
    codecs, chunk_shape, index = parse_codecs(document["codecs"], dtype), shard_shape, None
    if isinstance(codecs.array_to_bytes, ShardingSpec):
        sharding = codecs.array_to_bytes
        if codecs.array_to_array or codecs.bytes_to_bytes:
            return Unplanned(reason="codecs around the sharding codec")
        per_shard = tuple(a // b for a, b in zip(shard_shape, sharding.chunk_shape, strict=True))
        index = _index_spec(sharding, math.prod(per_shard))
        if index is None:
            return Unplanned(reason=f"shard index codecs {sharding.index_codecs}")
        codecs, chunk_shape = sharding.codecs, sharding.chunk_shape
    stored = codecs.array_to_bytes
    if isinstance(stored, BytesSpec) and not any(isinstance(c, ElementSpec) for c in codecs.array_to_array):
        dtype = dtype.newbyteorder(">" if stored.endian == "big" else "<")
    keys = document["chunk_key_encoding"]
    return ArraySpec(
        path="",
        dtype=dtype.str,
        grid=ChunkGrid(
            shape=tuple(document["shape"]),
            chunk_shape=chunk_shape,
            chunks_per_shard=tuple(a // b for a, b in zip(shard_shape, chunk_shape, strict=True)),
        ),
        codecs=codecs,
        index=index,
        fill=b"",
        keys=KeyEncoding(prefix="", style=keys["name"], separator=keys["configuration"]["separator"]),
        metadata=text,
    )


def _index_spec(sharding: ShardingSpec, n_chunks: int) -> ShardIndexSpec | None:
    """Describe the index if its encoded length is known beforehand, as planning needs."""
    codecs = sharding.index_codecs
    after = codecs.bytes_to_bytes
    plain = isinstance(codecs.array_to_bytes, BytesSpec) and not codecs.array_to_array
    if not plain or len(after) > 1 or not all(c == ChecksumSpec() for c in after):
        return None
    endian: Endian | None = codecs.array_to_bytes.endian  # type: ignore[union-attr]
    return ShardIndexSpec(
        n_chunks=n_chunks, location=sharding.index_location, endian=endian or "little", checksum=bool(after)
    )


def to_json(document: Mapping[str, Any]) -> str:
    """Write an array's metadata as text, without the user's attributes, which may be large."""

    def plain(value: Any) -> Any:
        return value.to_dict() if hasattr(value, "to_dict") else value.get_config()

    return json.dumps({**document, "attributes": {}}, default=plain)


def zarr_chunk_decoder(
    spec: ArraySpec, prepare: Callable[[Metadata], Metadata]
) -> Callable[[memoryview], npt.NDArray[Any]]:
    """Return a function that decodes one inner chunk with zarr-python's own codecs.

    `prepare` may replace the codecs in the array's metadata by others that decode the same.

    The function returns an ndarray of shape `spec.grid.chunk_shape` and dtype `spec.dtype` in host memory, perhaps of
    the encoded bytes, and raises whatever the codec raises. It is safe to call from several threads.
    """
    dtype = spec.numpy_dtype
    classes = _codec_classes(spec.metadata)
    is_shard = any(
        isinstance(codec, ShardingCodec)
        for codec in _zarr_pipeline(spec.metadata, cpu.buffer_prototype, classes, prepare)[0]
    )

    def decode(encoded: memoryview) -> npt.NDArray[Any]:
        # zarr-python takes chunks out of shards in the buffers of its settings only.
        prototype = default_buffer_prototype() if is_shard else cpu.buffer_prototype
        pipeline, chunk_spec = _zarr_pipeline(spec.metadata, prototype, classes, prepare)
        buffer = prototype.buffer.from_bytes(encoded)
        (decoded,) = sync(pipeline.decode([(buffer, chunk_spec)]))
        if decoded is None:
            raise ValueError("the codec pipeline returned nothing")
        # Codecs may give another dtype, or byte order, than the array has; zarr-python assigns that to its result.
        return np.asarray(decoded.as_numpy_array()).astype(dtype, copy=False)

    return decode


@lru_cache(maxsize=64)
def _codec_names(document: str) -> tuple[str, ...]:
    """Return what names a codec in metadata, and may be registered anew."""
    data = json.loads(document)
    if data["zarr_format"] == 2:
        return tuple(conf["id"] for conf in [*(data["filters"] or ()), data["compressor"]] if conf)

    def names(codecs: list[Any]) -> Iterator[str]:
        for codec in codecs:
            yield codec["name"]
            yield from names(codec.get("configuration", {}).get("codecs", ()))

    return tuple(names(data["codecs"]))


def _codec_classes(document: str) -> tuple[object, ...]:
    """Return the classes that stand for the codecs of an array now: registered by name, and chosen by settings."""
    classes: list[object] = []
    for name in _codec_names(document):
        classes.append(numcodecs.registry.codec_registry.get(name.removeprefix("numcodecs.")))
        with suppress(KeyError, ValueError):  # it is one of numcodecs' alone, or of nobody any more
            classes.append(get_codec_class(name))
    return tuple(classes)


@lru_cache(maxsize=64)
def _zarr_pipeline(
    document: str,
    prototype: BufferPrototype,
    classes: tuple[object, ...],  # noqa: ARG001  # others make another pipeline
    prepare: Callable[[Metadata], Metadata],
) -> tuple[Any, ZarrChunkSpec]:
    """Build zarr-python's pipeline for the inner chunks that `document` describes; one for each prototype.

    Its codecs of shards keep the one that they first decode with.
    """
    data = json.loads(document)
    config = ArrayConfig.from_dict({"order": data.get("order", "C")})
    if data["zarr_format"] == 2:
        v2 = prepare(ArrayV2Metadata.from_dict(data))
        assert isinstance(v2, ArrayV2Metadata)
        spec = v2.get_chunk_spec((), config, prototype)
        return create_codec_pipeline(v2), spec
    v3 = prepare(ArrayV3Metadata.from_dict(data))
    assert isinstance(v3, ArrayV3Metadata)
    spec = ZarrChunkSpec(
        shape=v3.chunks, dtype=v3.data_type, fill_value=v3.fill_value, config=config, prototype=prototype
    )
    pipeline = get_pipeline_class().from_codecs(v3.inner_codecs)
    # Before 3.3, a pipeline loses its codecs when it is fitted to an array; but those of metadata fit already.
    return (pipeline.evolve_from_array_spec(spec) if ZARR >= (3, 3) else pipeline), spec


def require_array(array: object, asked: str = "read_array") -> None:
    """Refuse what is no zarr array with an `ArrayTypeError`, and say how to get one from it."""
    if isinstance(array, zarr.Array):
        return
    kind = type(array)
    module = kind.__module__.partition(".")[0]
    if isinstance(array, str | os.PathLike):
        opened = f"zarr.open({os.fspath(array)!r}, mode='r')"
        do = f"open it: {opened} if it is an array, {opened}[name] if it is a group"
    elif isinstance(array, zarr.Group):
        do = f"choose one of its arrays: {', '.join(map(repr, sorted(array.array_keys()))) or 'it has none'}"
    elif module == "xarray" and asked == "explain":
        do = "use the accessor: ds.gpuzarr.explain()"
    elif module == "xarray":
        do = "load it: .load() or .compute(); read_array reads without xarray, zarr.open_group(store, mode='r')[name]"
    else:
        do = "open one: zarr.open_array(store, mode='r'), or zarr.open_group(store, mode='r')[name]"
    raise ArrayTypeError(
        f"{asked} takes an open zarr array",
        tried=f"{asked} of an instance of {kind.__module__}.{kind.__qualname__}",
        found="an object that is not a zarr.Array",
        do=do,
    )
