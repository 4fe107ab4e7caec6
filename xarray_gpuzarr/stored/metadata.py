"""Parsing of Zarr metadata into an `ArraySpec`, or into the reason why an array cannot be planned.

An unsharded array becomes one whose shards hold a single chunk, and whose `ArraySpec.index` is None. Arrays become
`Unplanned`, and zarr-python reads their selections, if they have a dtype that is not numeric, an irregular grid, an
unknown key encoding, codecs around the sharding codec, a shard index that is compressed or transposed, storage
transformers, or sizes that no machine has.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding, V2ChunkKeyEncoding
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from xarray_gpuzarr.errors import ArrayTypeError, MetadataError, UnsupportedCodecError
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS, ArraySpec, KeyEncoding, Unplanned
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid, TooLargeError
from xarray_gpuzarr.stored.codec_json import parse_codecs, parse_v2_codecs
from xarray_gpuzarr.stored.codecs import (
    ArrayArraySpec,
    BytesSpec,
    ChecksumSpec,
    Endian,
    PipelineSpec,
    ShardingSpec,
    TransposeSpec,
)
from xarray_gpuzarr.stored.element_codecs import ElementSpec
from xarray_gpuzarr.stored.shard_index import ShardIndexSpec

_MAX_XARRAY_LENGTH = 2**63 - 1
"""Greatest length of an axis. NumPy and Python's `len` go no further, so xarray cannot open a longer array."""
ZARR_VERSION = tuple(map(int, zarr.__version__.split(".")[:2]))
"""Major and minor version of zarr-python. Code that depends on it can be removed when 3.3 is the oldest that is
supported."""

Metadata = ArrayV2Metadata | ArrayV3Metadata
"""Metadata of an array of Zarr format 2 or 3."""
parsed_metadata: dict[int, tuple[weakref.ref[Metadata], str, ArraySpec | Unplanned]] = {}
"""Parsed metadata by the `id` of the metadata object, while that exists. Parsing takes longer than reading a small
chunk."""
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that malformed metadata raise."""


def parse_metadata(metadata: Metadata, path: str) -> ArraySpec | Unplanned:
    """Return the description of an array, or the reason why it cannot be planned.

    Parameters
    ----------
    metadata : zarr.core.metadata.ArrayV2Metadata or ArrayV3Metadata
        The array's metadata, as zarr-python has parsed it.
    path : str
        Path of the array in the store, without leading slash.

    Raises
    ------
    MetadataError
        If a codec entry is malformed, or shapes do not fit each other.
    UnsupportedCodecError
        If zarr-python would have to decode the array, and the installed version decodes it to wrong values.
    """
    metadata_id = id(metadata)
    entry = parsed_metadata.get(metadata_id)
    if entry is not None:
        reference, parsed_path, spec = entry
        if reference() is metadata and parsed_path == path:
            return spec
    try:
        spec = _parse(metadata, path)
    except MetadataError:  # it is a ValueError, too
        raise
    except _MALFORMED as err:
        raise MetadataError(
            f"invalid metadata for array '/{path}'",
            tried="its shapes, dtype, fill value and codecs",
            found=f"{type(err).__name__}: {err}",
            do="check the array's metadata (zarr.json or .zarray) against the Zarr specification",
        ) from err
    # An array that is resized gets another metadata object.
    reference = weakref.ref(metadata, lambda _: parsed_metadata.pop(metadata_id, None))
    parsed_metadata[metadata_id] = reference, path, spec
    return spec


def native_dtype(metadata: Metadata) -> np.dtype[Any]:
    """Return the NumPy dtype of an array's elements in zarr-python. Its byte order may be foreign."""
    return np.dtype(metadata.dtype.to_native_dtype())


def _parse(metadata: Metadata, path: str) -> ArraySpec | Unplanned:
    """Return the result of `parse_metadata`. Malformed metadata raise one of `_MALFORMED`."""
    if max(metadata.shape, default=0) > _MAX_XARRAY_LENGTH:
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
        # Format 3 does not store the byte order of the dtype: this array was just created, and if it is opened again,
        # it has the native one. Arrays of format 2 do not come here, since all of their codecs work on bytes.
        spec = Unplanned(reason=f"filters of {dtype.str} elements, whose byte order is not stored")
    if ZARR_VERSION < (3, 3) and (isinstance(spec, Unplanned) or spec.codecs.other):
        _refuse_wrong_elements(path, array_codecs(metadata))
    if isinstance(spec, Unplanned):
        return spec
    fill_value = 0 if metadata.fill_value is None else metadata.fill_value
    fill = np.asarray(fill_value).astype(spec.numpy_dtype).tobytes()
    keys = replace(spec.keys, prefix=f"{path}/" if path else "")
    return replace(spec, path="/" + path, fill=fill, keys=keys)


@lru_cache(maxsize=256)
def _parse_document(text: str, dtype: np.dtype[Any]) -> ArraySpec | Unplanned:
    """Return the description that all arrays with a metadata document share.

    It lacks the path, also in the keys, and the fill value, which JSON may round.
    """
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


def _refuse_wrong_elements(path: str, codecs: PipelineSpec) -> None:
    """Raise `UnsupportedCodecError` if the codecs have filters of big-endian elements.

    zarr-python before 3.3 passes elements in the wrong byte order to these filters.
    """
    stored = codecs.array_to_bytes
    if isinstance(stored, ShardingSpec):
        _refuse_wrong_elements(path, stored.codecs)
    if _filters(codecs) and isinstance(stored, BytesSpec) and stored.endian == "big":
        raise UnsupportedCodecError(
            f"the installed zarr-python decodes array '/{path}' to wrong numbers",
            tried=f"{codecs}, which is left to zarr-python",
            found=f"zarr-python {zarr.__version__}, filters of big-endian elements",
            do="pip install 'zarr>=3.3', or leave the array out: drop_variables=[...]",
        )


def _filters(codecs: PipelineSpec) -> list[ArrayArraySpec]:
    """Return the array-to-array codecs, except transposes."""
    return [codec for codec in codecs.array_to_array if not isinstance(codec, TransposeSpec)]


def array_codecs(metadata: Metadata) -> PipelineSpec:
    """Return the codecs of an array, even if it cannot be planned.

    In format 3, codecs of elements become `OtherSpec`.
    """
    document: dict[str, Any] = dict(metadata.to_dict())
    if isinstance(metadata, ArrayV2Metadata):
        return _v2_codecs(document, native_dtype(metadata))
    return parse_codecs(document["codecs"])


def _v2_codecs(document: Mapping[str, Any], dtype: np.dtype[Any]) -> PipelineSpec:
    endian: Endian = "little" if dtype.isnative else "big"  # hosts are little-endian
    return parse_v2_codecs(
        compressor=document["compressor"],
        filters=document["filters"],
        order=document["order"],
        endian=None if dtype.itemsize == 1 else endian,
        ndim=len(document["shape"]),
    )


def _parse_v3(document: Mapping[str, Any], text: str, dtype: np.dtype[Any]) -> ArraySpec | Unplanned:
    """Return the description of an array of format 3; see `_parse_document`."""
    if document["chunk_grid"]["name"] != "regular":
        return Unplanned(reason=f"chunk grid {document['chunk_grid']['name']!r}")
    if document.get("storage_transformers"):
        return Unplanned(reason="storage transformers")
    shard_shape = tuple(document["chunk_grid"]["configuration"]["chunk_shape"])
    codecs = parse_codecs(document["codecs"], dtype)
    chunk_shape = shard_shape
    index = None
    if isinstance(codecs.array_to_bytes, ShardingSpec):
        sharding = codecs.array_to_bytes
        if codecs.array_to_array or codecs.bytes_to_bytes:
            return Unplanned(reason="codecs around the sharding codec")
        # zarr-python has checked that the chunks divide the shard.
        per_shard = tuple(n // m for n, m in zip(shard_shape, sharding.chunk_shape, strict=True))
        index = _index_spec(sharding, math.prod(per_shard))
        if index is None:
            return Unplanned(reason=f"shard index codecs {sharding.index_codecs}")
        codecs = sharding.codecs
        chunk_shape = sharding.chunk_shape
    stored = codecs.array_to_bytes
    # Filters have the byte order in their own dtypes; elements that they decode are in native order.
    changes_elements = any(isinstance(codec, ElementSpec) for codec in codecs.array_to_array)
    if isinstance(stored, BytesSpec) and not changes_elements:
        dtype = dtype.newbyteorder(">" if stored.endian == "big" else "<")
    keys = document["chunk_key_encoding"]
    return ArraySpec(
        path="",
        dtype=dtype.str,
        grid=ChunkGrid(
            shape=tuple(document["shape"]),
            chunk_shape=chunk_shape,
            chunks_per_shard=tuple(n // m for n, m in zip(shard_shape, chunk_shape, strict=True)),
        ),
        codecs=codecs,
        index=index,
        fill=b"",
        keys=KeyEncoding(prefix="", style=keys["name"], separator=keys["configuration"]["separator"]),
        metadata=text,
    )


def _index_spec(sharding: ShardingSpec, n_chunks: int) -> ShardIndexSpec | None:
    """Return the encoding of shard indexes; None unless it is ``bytes``, alone or followed by ``crc32c``."""
    codecs = sharding.index_codecs
    serializer, checksums = codecs.array_to_bytes, codecs.bytes_to_bytes
    if codecs.array_to_array or not isinstance(serializer, BytesSpec) or checksums not in ((), (ChecksumSpec(),)):
        return None
    return ShardIndexSpec(
        n_chunks=n_chunks,
        location=sharding.index_location,
        endian=serializer.endian or "little",  # metadata without a byte order mean that of the host
        checksum=bool(checksums),
    )


def to_json(document: Mapping[str, Any]) -> str:
    """Return an array's metadata as JSON text, without the user's attributes, which may be large."""

    def to_builtin(value: Any) -> Any:
        return value.to_dict() if hasattr(value, "to_dict") else value.get_config()

    return json.dumps({**document, "attributes": {}}, default=to_builtin)


def require_array(array: object, function: str = "read_array") -> None:
    """Raise `ArrayTypeError` unless `array` is a zarr array. `function` is the name of the public function."""
    if isinstance(array, zarr.Array):
        return
    kind = type(array)
    module = kind.__module__.partition(".")[0]
    if isinstance(array, str | os.PathLike):
        opened = f"zarr.open({os.fspath(array)!r}, mode='r')"
        do = f"open it: {opened} if it is an array, {opened}[name] if it is a group"
    elif isinstance(array, zarr.Group):
        do = f"choose one of its arrays: {', '.join(map(repr, sorted(array.array_keys()))) or 'it has none'}"
    elif module == "xarray" and function == "explain":
        do = "use the accessor: ds.gpuzarr.explain()"
    elif module == "xarray":
        do = "load it: .load() or .compute(); read_array reads without xarray, zarr.open_group(store, mode='r')[name]"
    else:
        do = "open one: zarr.open_array(store, mode='r'), or zarr.open_group(store, mode='r')[name]"
    raise ArrayTypeError(
        f"{function} takes an open zarr array",
        tried=f"{function} of an instance of {kind.__module__}.{kind.__qualname__}",
        found="an object that is not a zarr.Array",
        do=do,
    )
