"""Parsing of codec metadata into a `PipelineSpec`.

`parse_codecs` reads the v3 ``codecs`` list, `parse_v2_codecs` the v2 ``compressor``, ``filters`` and ``order``. An
unknown codec, or a known one with an unknown configuration, becomes `OtherSpec`.

References
----------
Zarr v3 core specification, "Codecs"; Zarr v2 specification, "Metadata"; numcodecs configuration ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.stored.codecs import (
    ArrayArraySpec,
    ArrayBytesSpec,
    BloscSpec,
    BytesBytesSpec,
    BytesSpec,
    ChecksumSpec,
    CodecSpec,
    Endian,
    OtherSpec,
    PipelineSpec,
    ShardingSpec,
    TransposeSpec,
)
from xarray_gpuzarr.stored.element_codecs import AsTypeSpec, CastValueSpec, ElementSpec, ScaleOffsetSpec
from xarray_gpuzarr.stored.numcodecs_json import COMPRESSORS, Conf, DType, Json, dtype_text, parse_numcodec

_PREFIX = "numcodecs."


def parse_codecs(codecs: Sequence[Json], dtype: DType = None) -> PipelineSpec:
    """Parse a v3 ``codecs`` list.

    Parameters
    ----------
    codecs : sequence of JSON values
        Objects ``{"name": ..., "configuration": {...}}``, or names.
    dtype : numpy.dtype, optional
        Native dtype of the array. Without it, codecs of elements become `OtherSpec`.

    Raises
    ------
    MetadataError
        If an entry has no name or lacks a required value, or no codec turns the array into bytes.
    """
    array_to_array: list[ArrayArraySpec] = []
    serializer: ArrayBytesSpec | None = None
    bytes_to_bytes: list[BytesBytesSpec] = []
    for number, entry in enumerate(codecs):
        is_transposed = any(_name(later) == "transpose" for later in codecs[number + 1 :])
        spec = _parse_codec(entry, dtype, is_transposed=is_transposed)
        if isinstance(spec, BytesSpec | ShardingSpec):
            serializer = spec
        elif serializer is None and isinstance(spec, ArrayArraySpec):
            array_to_array.append(spec)
            if isinstance(spec, OtherSpec | ElementSpec):
                # The next codec gets the elements that this one encodes to; an unknown codec may encode to any.
                dtype = np.dtype(spec.encoded) if isinstance(spec, ElementSpec) else None
        else:
            bytes_to_bytes.append(spec)  # type: ignore[arg-type]  # codecs after the serializer work on bytes
    if serializer is None:
        # An unknown serializer (vlen-utf8, packbits, ...) has been put among the array-to-array codecs, as the last
        # one.
        last_codec = array_to_array.pop() if array_to_array else None
        if not isinstance(last_codec, OtherSpec):
            raise _bad_codec(codecs, "no codec turns the array into bytes")
        serializer = last_codec
    if isinstance(serializer, BytesSpec):
        _set_byte_order(array_to_array, serializer.endian)
    return PipelineSpec(
        array_to_array=tuple(array_to_array), array_to_bytes=serializer, bytes_to_bytes=tuple(bytes_to_bytes)
    )


def _set_byte_order(codecs: list[ArrayArraySpec], endian: Endian | None) -> None:
    """Give the last codec of elements the byte order in which its encoded elements are stored."""
    for number in reversed(range(len(codecs))):
        spec = codecs[number]
        if isinstance(spec, ElementSpec):
            stored = np.dtype(spec.encoded).newbyteorder(">" if endian == "big" else "<")
            codecs[number] = replace(spec, encoded=stored.str)
            return


def _name(entry: Json) -> Json:
    return entry.get("name") if isinstance(entry, Mapping) else entry


def _parse_codec(entry: Json, dtype: DType, *, is_transposed: bool) -> CodecSpec:
    """Parse one entry of a ``codecs`` list.

    `dtype` is that of the elements that the codec encodes. `is_transposed` says whether a transpose follows it.
    """
    name = _name(entry)
    if not isinstance(name, str):
        raise _bad_codec(entry, "an entry without a name")
    conf = (entry.get("configuration") if isinstance(entry, Mapping) else None) or {}
    try:
        spec = _known_codec(name, conf, dtype, is_transposed=is_transposed)
        return spec or OtherSpec(name=name, configuration=_text(conf))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as err:
        raise _bad_codec(entry, f"{type(err).__name__}: {err}") from err


def _known_codec(name: str, conf: Conf, dtype: DType, *, is_transposed: bool) -> CodecSpec | None:
    """Parse a codec; None if it is left to zarr-python."""
    if name in _WITH_CONFIGURATION:
        return _WITH_CONFIGURATION[name](conf, dtype)
    if not name.startswith(_PREFIX):
        return _WITHOUT_CONFIGURATION[name]() if name in _WITHOUT_CONFIGURATION else None
    codec_id = name.removeprefix(_PREFIX)
    if dtype is None:
        # The dtype is unknown here, but to `parse_numcodec`, None means format 2. So only compressors are passed on,
        # which are parsed alike in both formats.
        is_compressor = codec_id in {*COMPRESSORS, "blosc"}
        return parse_numcodec(codec_id, conf, None) if is_compressor else None
    spec = parse_numcodec(codec_id, conf, dtype)
    if not isinstance(spec, ElementSpec):
        return spec
    # zarr-python passes a transposed view to numcodecs, some of whose codecs read it in the order of memory. Such
    # arrays are left to zarr-python, unless the codec is `astype`, which converts each element by itself.
    if is_transposed and not isinstance(spec, AsTypeSpec):
        return None
    # `packbits` decodes to booleans. An array of another dtype that has this codec is left to zarr-python.
    return spec if spec.decoded == dtype.str else None


def _bytes(conf: Conf, dtype: DType) -> BytesSpec:
    endian = conf.get("endian")
    if endian not in ("little", "big", None) or (endian is None and dtype is not None and dtype.itemsize > 1):
        raise ValueError(f"endian {endian!r} of elements of {dtype}")
    return BytesSpec(endian=endian)


def _sharding(conf: Conf, dtype: DType) -> ShardingSpec:
    return ShardingSpec(
        chunk_shape=tuple(int(n) for n in conf["chunk_shape"]),
        codecs=parse_codecs(conf["codecs"], dtype),
        index_codecs=parse_codecs(conf["index_codecs"]),
        index_location=conf.get("index_location", "end"),
    )


def _scale_offset(conf: Conf, dtype: DType) -> ScaleOffsetSpec | None:
    if dtype is None or dtype.kind not in "iuf":
        return None
    scale = _number_of_dtype(conf.get("scale", 1), dtype)
    offset = _number_of_dtype(conf.get("offset", 0), dtype)
    if not scale or offset is None:
        return None
    return ScaleOffsetSpec(decoded=dtype.str, encoded=dtype.str, scale=scale, offset=offset)


def _number_of_dtype(value: Json, dtype: np.dtype[Any]) -> float | None:
    """Return a JSON number rounded to `dtype`, as in zarr-python.

    Returns None if it is not a number, or if it has a fraction although `dtype` is an integer dtype.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if dtype.kind != "f" and value != int(value):
        return None
    with np.errstate(all="ignore"):
        number: float = dtype.type(value if dtype.kind == "f" else int(value)).item()
    return number


def _cast_value(conf: Conf, dtype: DType) -> CastValueSpec | None:
    """Parse ``cast_value``; None if it converts from or to a dtype that is left to zarr-python."""
    try:
        encoded = dtype_text(conf["data_type"])
    except TypeError:
        if not isinstance(conf["data_type"], str):
            raise
        return None  # a dtype of an extension, such as ml_dtypes
    if dtype is None or encoded is None or dtype.kind not in "iuf" or np.dtype(encoded).kind not in "iuf":
        return None
    numbers = dict((conf.get("scalar_map") or {}).get("decode") or {})
    return CastValueSpec(
        decoded=dtype.str,
        encoded=encoded,
        rounding=conf.get("rounding", "nearest-even"),
        out_of_range=conf.get("out_of_range"),
        scalar_map=tuple((str(key), str(value)) for key, value in numbers.items()),
    )


_WITH_CONFIGURATION: dict[str, Callable[[Conf, DType], CodecSpec | None]] = {
    "bytes": _bytes,
    "endian": _bytes,  # its name in drafts of format 3
    # Drafts of format 3 had the orders "C" and "F", as text.
    "transpose": lambda conf, _: (
        None if isinstance(conf["order"], str) else TransposeSpec(order=tuple(map(int, conf["order"])))
    ),
    "blosc": lambda conf, _: BloscSpec(
        cname=str(conf["cname"]), shuffle=str(conf["shuffle"]), typesize=conf.get("typesize")
    ),
    "sharding_indexed": _sharding,
    "scale_offset": _scale_offset,
    "cast_value": _cast_value,
}
_WITHOUT_CONFIGURATION: dict[str, Callable[[], BytesBytesSpec]] = {**COMPRESSORS, "crc32c": ChecksumSpec}


def parse_v2_codecs(
    *,
    compressor: Json | None,
    filters: Sequence[Json] | None,
    order: Literal["C", "F"],
    endian: Endian | None,
    ndim: int,
) -> PipelineSpec:
    """Parse the codecs of a v2 ``.zarray``.

    Parameters
    ----------
    compressor, filters, order
        Fields of the document.
    endian : "little", "big" or None
        Byte order of the ``dtype``; None for elements of one byte.
    ndim : int
        Number of axes of the array.

    Raises
    ------
    MetadataError
        If a codec has no id.
    """
    # The order "F" is a transpose that reverses the axes.
    is_transposed = order == "F" and ndim > 1
    array_to_array = (TransposeSpec(order=tuple(reversed(range(ndim)))),) if is_transposed else ()
    entries = list(filters or ())
    if compressor is not None:
        entries.append(compressor)
    # Each codec takes the bytes that the one before it has encoded, whatever their dtype: all work on bytes.
    bytes_to_bytes: list[BytesBytesSpec] = []
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
            raise _bad_codec(entry, "a v2 codec without an id")
        codec_id = entry["id"]
        conf = {key: value for key, value in entry.items() if key != "id"}
        spec = parse_numcodec(codec_id, conf, None)
        bytes_to_bytes.append(spec or OtherSpec(name=codec_id, configuration=_text(conf)))
    return PipelineSpec(
        array_to_array=array_to_array, array_to_bytes=BytesSpec(endian=endian), bytes_to_bytes=tuple(bytes_to_bytes)
    )


def _text(conf: Conf) -> str:
    return json.dumps(dict(conf), sort_keys=True, default=str)


def _bad_codec(entry: Json, found: str) -> MetadataError:
    return MetadataError(
        "cannot read the codecs of an array",
        tried=json.dumps(entry, default=str),
        found=found,
        do="check the array's metadata (zarr.json or .zarray) against the Zarr specification",
    )
