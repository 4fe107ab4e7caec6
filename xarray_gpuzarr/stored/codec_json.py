"""Codec metadata -> `PipelineSpec`.

`parse_codecs` reads the v3 ``codecs`` list and `parse_v2_codecs` the v2 ``compressor``, ``filters``, ``order`` and
``dtype``. A codec that is not known, or not known with its configuration, becomes `OtherSpec`. Called by `metadata`.

References
----------
Zarr v3 core specification, "Codecs"; Zarr v2 specification, "Metadata"; numcodecs configuration ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np

from xarray_gpuzarr.errors import MetadataError
from xarray_gpuzarr.stored.codecs import (
    ArrayArraySpec,
    ArrayBytesSpec,
    AsTypeSpec,
    BloscSpec,
    BytesBytesSpec,
    BytesSpec,
    CastValueSpec,
    ChecksumSpec,
    CodecSpec,
    ElementSpec,
    Endian,
    OtherSpec,
    PipelineSpec,
    ScaleOffsetSpec,
    ShardingSpec,
    TransposeSpec,
)
from xarray_gpuzarr.stored.numcodecs_json import COMPRESSORS, Conf, DType, Json, dtype_text, parse_numcodec

_PREFIX = "numcodecs."


def parse_codecs(codecs: Sequence[Json], dtype: DType = None) -> PipelineSpec:
    """Read a v3 ``codecs`` list: ``{"name": ..., "configuration": {...}}`` objects or plain names.

    Without the native `dtype` of the array, codecs of elements are left to zarr-python. An entry that has no name, or
    lacks a value that it needs, is a `MetadataError`.
    """
    before: list[ArrayArraySpec] = []
    serializer: ArrayBytesSpec | None = None
    after: list[BytesBytesSpec] = []
    for number, entry in enumerate(codecs):
        transposed = any(_name(later) == "transpose" for later in codecs[number + 1 :])
        spec = _parse_codec(entry, dtype, transposed=transposed)
        if isinstance(spec, BytesSpec | ShardingSpec):
            serializer = spec
        elif serializer is None and isinstance(spec, ArrayArraySpec):
            before.append(spec)
            if isinstance(spec, OtherSpec | ElementSpec):
                dtype = np.dtype(spec.encoded) if isinstance(spec, ElementSpec) else None
        else:
            after.append(spec)  # type: ignore[arg-type]  # whatever stands here works on bytes
    if serializer is None:
        # An unknown array->bytes codec (vlen-utf8, packbits ...) is the last of the leading ones.
        if not before or not isinstance(before[-1], OtherSpec):
            raise _bad_codec(codecs, "no codec turns the array into bytes")
        serializer = OtherSpec(name=before[-1].name, configuration=before[-1].configuration)
        before.pop()
    last = next((at for at in reversed(range(len(before))) if isinstance(before[at], ElementSpec)), None)
    # The last of those that change elements encodes them in the byte order of the bytes.
    if last is not None and isinstance(serializer, BytesSpec):
        elements = cast("ElementSpec", before[last])
        stored = np.dtype(elements.encoded).newbyteorder(">" if serializer.endian == "big" else "<")
        before[last] = replace(elements, encoded=stored.str)
    return PipelineSpec(array_to_array=tuple(before), array_to_bytes=serializer, bytes_to_bytes=tuple(after))


def _name(entry: Json) -> Json:
    return entry.get("name") if isinstance(entry, Mapping) else entry


def _parse_codec(entry: Json, dtype: DType, *, transposed: bool) -> CodecSpec:
    """Read one entry; `transposed` says whether a transpose follows, `dtype` what the codec encodes."""
    name = _name(entry)
    if not isinstance(name, str):
        raise _bad_codec(entry, "an entry without a name")
    conf = (entry.get("configuration") if isinstance(entry, Mapping) else None) or {}
    try:
        return _known_codec(name, conf, dtype, transposed=transposed) or OtherSpec(name=name, configuration=_text(conf))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as err:
        raise _bad_codec(entry, f"{type(err).__name__}: {err}") from err


def _known_codec(name: str, conf: Conf, dtype: DType, *, transposed: bool) -> CodecSpec | None:
    if name in _WITH_CONFIGURATION:
        return _WITH_CONFIGURATION[name](conf, dtype)
    if not name.startswith(_PREFIX):
        return _WITHOUT_CONFIGURATION[name]() if name in _WITHOUT_CONFIGURATION else None
    codec_id = name.removeprefix(_PREFIX)
    if dtype is None:
        return parse_numcodec(codec_id, conf, None) if codec_id in {*COMPRESSORS, "blosc"} else None
    spec = parse_numcodec(codec_id, conf, dtype)
    if not isinstance(spec, ElementSpec):
        return spec
    # zarr-python hands numcodecs a transposed view, which some of its codecs read in the order of memory.
    in_order = not transposed or isinstance(spec, AsTypeSpec)
    return spec if in_order and spec.decoded == dtype.str else None


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
    scale, offset = (_exact(conf.get(key, default), dtype) for key, default in (("scale", 1), ("offset", 0)))
    if not scale or offset is None:
        return None
    return ScaleOffsetSpec(decoded=dtype.str, encoded=dtype.str, scale=scale, offset=offset)


def _exact(value: Json, dtype: np.dtype[Any]) -> float | None:
    """Return a JSON number as the number of `dtype` that zarr-python takes it for; None if it is written oddly."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if dtype.kind != "f" and value != int(value):
        return None
    with np.errstate(all="ignore"):
        number: float = dtype.type(value if dtype.kind == "f" else int(value)).item()
    return number


def _cast_value(conf: Conf, dtype: DType) -> CastValueSpec | None:
    try:
        encoded = dtype_text(conf["data_type"])
    except TypeError:
        if not isinstance(conf["data_type"], str):
            raise
        return None  # one of an extension, such as ml_dtypes
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
    "endian": _bytes,
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
    """Read the codec part of a v2 ``.zarray``; `endian` is that of its ``dtype``, `ndim` the number of its axes.

    The order "F" is a transpose that reverses the axes. Every codec takes the bytes that the one before gave, whatever
    their dtype: all are bytes-to-bytes.
    """
    transposed = order == "F" and ndim > 1
    before = (TransposeSpec(order=tuple(reversed(range(ndim)))),) if transposed else ()
    after: list[BytesBytesSpec] = []
    for conf in (*(filters or ()), *([] if compressor is None else [compressor])):
        if not isinstance(conf, Mapping) or not isinstance(conf.get("id"), str):
            raise _bad_codec(conf, "a v2 codec without an id")
        codec_id, rest = conf["id"], {k: v for k, v in conf.items() if k != "id"}
        spec = parse_numcodec(codec_id, rest, None)
        after.append(spec or OtherSpec(name=codec_id, configuration=_text(rest)))
    return PipelineSpec(array_to_array=before, array_to_bytes=BytesSpec(endian=endian), bytes_to_bytes=tuple(after))


def _text(conf: Conf) -> str:
    return json.dumps(dict(conf), sort_keys=True, default=str)


def _bad_codec(entry: Json, found: str) -> MetadataError:
    return MetadataError(
        "cannot read the codecs of an array",
        tried=json.dumps(entry, default=str),
        found=found,
        do="check the array's metadata (zarr.json or .zarray) against the Zarr specification",
    )
