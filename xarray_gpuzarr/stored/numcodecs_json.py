"""Parsing of the configurations of numcodecs' codecs.

Format 2 names a codec by its id, format 3 by ``numcodecs.`` and the id. This module parses each codec by itself, and
`codec_json` the chain of codecs. Settings that only an encoder needs are not interpreted: a frame says by itself how it
is decoded. A configuration that numcodecs refuses is left to zarr-python, which raises the error when it decodes.

References
----------
numcodecs, the constructors of its codecs and their ``get_config``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, get_args

import numcodecs
import numpy as np

from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    ChecksumAlgorithm,
    ChecksumSpec,
    CompressorSpec,
    IdentitySpec,
    ShuffleSpec,
    StageSpec,
)
from xarray_gpuzarr.stored.element_codecs import AsTypeSpec, DeltaSpec, FixedScaleOffsetSpec, PackBitsSpec

Json = Any
"""A decoded JSON value."""
Conf = Mapping[str, Json]
"""Configuration of a codec."""
DType = np.dtype[Any] | None
"""Dtype of the array in format 3, which completes a configuration that omits it. In this module, None means format 2;
in `codec_json`, it means that the dtype is unknown."""

# `str()` of a specification is its id in numcodecs. One without fields needs no configuration.
COMPRESSORS: dict[str, Callable[[], CompressorSpec]] = {
    str(kind()): kind for kind in get_args(CompressorSpec) if not fields(kind)
}
"""Compressors that are decoded without a configuration, by id."""

_DTYPES = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
"""Dtypes that codecs of elements may have, without byte order."""
_SHUFFLES = {-1: "auto", 0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def parse_numcodec(codec_id: str, conf: Conf, dtype: DType) -> StageSpec | IdentitySpec | None:
    """Parse the configuration of a codec.

    Parameters
    ----------
    codec_id : str
        Id of the codec in numcodecs.
    conf : mapping
        Configuration without the id.
    dtype : numpy.dtype or None
        Dtype of the array in format 3; None means format 2.

    Returns
    -------
    StageSpec, IdentitySpec or None
        None for codecs and configurations that are left to zarr-python. These include malformed ones, which zarr-python
        refuses when it decodes, rather than when an array is opened.
    """
    parse = _NUMCODECS.get(codec_id)
    if parse is None or not _is_accepted(codec_id, conf, dtype):
        return None
    try:
        return parse(codec_id, conf, dtype)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _is_accepted(codec_id: str, conf: Conf, dtype: DType) -> bool:
    """Whether numcodecs accepts a configuration, together with the field that zarr-python adds in format 3."""
    field = _ADDED_FIELD.get(codec_id)
    if dtype is not None and field is not None and conf.get(field) is None:
        conf = {**conf, field: dtype.itemsize if codec_id == "shuffle" else dtype.str}
    try:
        numcodecs.get_codec({**conf, "id": codec_id})
    except Exception:  # noqa: BLE001  # zarr-python will raise the same error
        return False
    return True


_ADDED_FIELD = {"shuffle": "elementsize", "fixedscaleoffset": "dtype", "quantize": "dtype", "astype": "decode_dtype"}
"""Field that zarr-python fills in from the dtype of the array if a configuration lacks it."""


def _numcodecs_blosc(_id: str, conf: Conf, _: DType) -> BloscSpec:
    shuffle, typesize = conf.get("shuffle", 1), conf.get("typesize")
    return BloscSpec(
        cname=str(conf.get("cname", "lz4")),
        shuffle=_SHUFFLES[shuffle] if isinstance(shuffle, int) and shuffle in _SHUFFLES else str(shuffle),
        typesize=typesize if isinstance(typesize, int) else None,
    )


def _shuffle(_id: str, conf: Conf, dtype: DType) -> ShuffleSpec | IdentitySpec | None:
    # A missing size is 4 in format 2, as in numcodecs, and the array's itemsize in format 3, as in zarr-python.
    elementsize = conf.get("elementsize", 4 if dtype is None else None)
    if elementsize is None and dtype is not None:
        elementsize = dtype.itemsize
    if not isinstance(elementsize, int):
        return None
    return ShuffleSpec(elementsize=elementsize) if elementsize > 1 else IdentitySpec(name="shuffle")


def _checksum(algorithm: ChecksumAlgorithm, *, at_start: bool = False) -> Callable[..., ChecksumSpec | None]:
    def parse(_id: str, conf: Conf, _: DType) -> ChecksumSpec | None:
        if conf.get("prefix") is not None:  # bytes that ``jenkins_lookup3`` hashes before the payload
            return None
        location = conf.get("location") or ("start" if at_start else "end")
        seed = conf.get("initval", 0)
        if not isinstance(seed, int) or not 0 <= seed < 2**32:
            return None
        return ChecksumSpec(algorithm=algorithm, at_start=location == "start", seed=seed)

    return parse


def _delta(_id: str, conf: Conf, dtype: DType) -> DeltaSpec | None:
    dtypes = _dtypes(conf["dtype"], conf.get("astype"), dtype)
    return None if dtypes is None else DeltaSpec(decoded=dtypes[0], encoded=dtypes[1])


def _fixed_scale_offset(_id: str, conf: Conf, dtype: DType) -> FixedScaleOffsetSpec | None:
    dtypes = _dtypes(conf.get("dtype"), conf.get("astype"), dtype)
    scale, offset = conf["scale"], conf["offset"]
    if dtypes is None or any(isinstance(n, bool) or not isinstance(n, int | float) for n in (scale, offset)):
        return None
    np.zeros(0, dtypes[1]) / scale + offset  # raises OverflowError if a number is too large for NumPy
    return FixedScaleOffsetSpec(decoded=dtypes[0], encoded=dtypes[1], scale=scale, offset=offset)


def _astype(codec_id: str, conf: Conf, dtype: DType) -> AsTypeSpec | IdentitySpec | None:
    """Parse ``astype`` or ``quantize``, which are decoded in the same way."""
    is_quantize = codec_id == "quantize"
    if is_quantize:
        dtypes = _dtypes(conf.get("dtype"), conf.get("astype"), dtype)
    elif conf["encode_dtype"] is None:  # it means float64 to numcodecs, and to `_dtypes` the decoded dtype
        return None
    else:
        dtypes = _dtypes(conf.get("decode_dtype"), conf["encode_dtype"], dtype)
    if dtypes is None:
        return None
    decoded, encoded = dtypes
    if decoded == encoded:
        return IdentitySpec(name=codec_id)
    if is_quantize and dtype is not None:
        # In format 3, zarr-python goes on with the array's dtype although `quantize` stores another.
        return None
    return AsTypeSpec(name="quantize" if is_quantize else "astype", decoded=decoded, encoded=encoded)


_NUMCODECS: dict[str, Callable[[str, Conf, DType], StageSpec | IdentitySpec | None]] = {
    **dict.fromkeys(COMPRESSORS, lambda codec_id, _conf, _dtype: COMPRESSORS[codec_id]()),
    "blosc": _numcodecs_blosc,
    "shuffle": _shuffle,
    "crc32": _checksum("crc32", at_start=True),
    "adler32": _checksum("adler32", at_start=True),
    "crc32c": _checksum("crc32c"),
    "fletcher32": _checksum("fletcher32"),
    "jenkins_lookup3": _checksum("jenkins_lookup3"),
    "delta": _delta,
    "fixedscaleoffset": _fixed_scale_offset,
    "astype": _astype,
    "quantize": _astype,
    "bitround": lambda name, _, dtype: IdentitySpec(name=name) if dtype is None or dtype.kind == "f" else None,
    "packbits": lambda _id, _conf, _dtype: PackBitsSpec(decoded="|b1", encoded="|u1"),
}


def _dtypes(decoded: Json, encoded: Json, dtype: DType) -> tuple[str, str] | None:
    """Return the decoded and the encoded dtype of a codec; None if the codec is left to zarr-python.

    A missing `decoded` is `dtype`, and a missing `encoded` is the decoded dtype. In format 3, the decoded dtype must
    equal `dtype`, and the encoded one must be in native byte order. In both formats, complex numbers that decode to
    real ones are left to zarr-python, because NumPy warns that it discards the imaginary part.
    """
    decoded_dtype = dtype_text(dtype if decoded is None else decoded)
    encoded_dtype = decoded_dtype if encoded is None else dtype_text(encoded)
    if decoded_dtype is None or encoded_dtype is None:
        return None
    loses_imaginary_part = np.dtype(encoded_dtype).kind == "c" and np.dtype(decoded_dtype).kind != "c"
    is_refused_in_v3 = dtype is not None and (decoded_dtype != dtype.str or not np.dtype(encoded_dtype).isnative)
    return None if loses_imaginary_part or is_refused_in_v3 else (decoded_dtype, encoded_dtype)


def dtype_text(dtype: Json | DType) -> str | None:
    """Return a dtype as NumPy writes it, with byte order; None if codecs of elements do not support it.

    `dtype` is a NumPy dtype, or its name in a configuration. Raises `TypeError` if it is None or names no dtype.
    """
    if dtype is None:
        raise TypeError("a codec of elements without their dtype")
    text = np.dtype(dtype).str
    return text if text[1:] in _DTYPES else None
