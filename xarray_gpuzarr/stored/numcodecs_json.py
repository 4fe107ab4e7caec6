"""Configurations of numcodecs' codecs -> specs: format 2 names them by id, format 3 by ``numcodecs.`` and their id.

What a codec alone says is read here; which chains of codecs have a meaning is the part of `codec_json`. Settings that
only an encoder needs are not judged: a frame says how it is decoded. zarr-python has the last word on what numcodecs
refuses, when it decodes.

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
    AsTypeSpec,
    BloscSpec,
    ChecksumAlgorithm,
    ChecksumSpec,
    CompressorSpec,
    DeltaSpec,
    FixedScaleOffsetSpec,
    IdentitySpec,
    PackBitsSpec,
    ShuffleSpec,
    StageSpec,
)

Json = Any
"""A decoded JSON value."""
Conf = Mapping[str, Json]
DType = np.dtype[Any] | None
"""Dtype of what a codec encodes, for configurations that leave it out; None in format 2, where they do not."""

COMPRESSORS: dict[str, Callable[[], CompressorSpec]] = {
    str(kind()): kind for kind in get_args(CompressorSpec) if not fields(kind)
}
"""Codecs that need no configuration to decode."""

_DTYPES = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
"""Dtypes of elements that codecs may have, without their byte order."""
_SHUFFLES = {-1: "auto", 0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def parse_numcodec(codec_id: str, conf: Conf, dtype: DType) -> StageSpec | IdentitySpec | None:
    """Read one codec; `conf` is without its id, and `dtype` that of what it encodes, in format 3.

    None if this package leaves the codec, or this configuration of it, to zarr-python: so it does with malformed ones,
    which zarr-python refuses when it decodes, and not when an array is opened.
    """
    parse = _NUMCODECS.get(codec_id)
    if parse is None or not _is_accepted(codec_id, conf, dtype):
        return None
    try:
        return parse(codec_id, conf, dtype)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _is_accepted(codec_id: str, conf: Conf, dtype: DType) -> bool:
    """Whether numcodecs makes a codec of a configuration, with what zarr-python adds to it in format 3."""
    added = _ADDED.get(codec_id)
    if dtype is not None and added is not None and conf.get(added) is None:
        conf = {**conf, added: dtype.itemsize if codec_id == "shuffle" else dtype.str}
    try:
        numcodecs.get_codec({**conf, "id": codec_id})
    except Exception:  # noqa: BLE001  # zarr-python will meet it as well, and say so
        return False
    return True


_ADDED = {"shuffle": "elementsize", "fixedscaleoffset": "dtype", "quantize": "dtype", "astype": "decode_dtype"}
"""Fields that zarr-python takes from the dtype of an array where a configuration lacks them."""


def _numcodecs_blosc(_id: str, conf: Conf, _: DType) -> BloscSpec:
    shuffle, typesize = conf.get("shuffle", 1), conf.get("typesize")
    return BloscSpec(
        cname=str(conf.get("cname", "lz4")),
        shuffle=_SHUFFLES[shuffle] if isinstance(shuffle, int) and shuffle in _SHUFFLES else str(shuffle),
        typesize=typesize if isinstance(typesize, int) else None,
    )


def _shuffle(_id: str, conf: Conf, dtype: DType) -> ShuffleSpec | IdentitySpec | None:
    elementsize = conf.get("elementsize", 4 if dtype is None else None)
    if elementsize is None and dtype is not None:
        elementsize = dtype.itemsize
    if not isinstance(elementsize, int):
        return None
    return ShuffleSpec(elementsize=elementsize) if elementsize > 1 else IdentitySpec(name="shuffle")


def _checksum(algorithm: ChecksumAlgorithm, *, at_start: bool = False) -> Callable[..., ChecksumSpec | None]:
    def parse(_id: str, conf: Conf, _: DType) -> ChecksumSpec | None:
        if conf.get("prefix") is not None:
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
    np.zeros(0, dtypes[1]) / scale + offset  # OverflowError if no number of NumPy's is so large
    return FixedScaleOffsetSpec(decoded=dtypes[0], encoded=dtypes[1], scale=scale, offset=offset)


def _astype(codec_id: str, conf: Conf, dtype: DType) -> AsTypeSpec | IdentitySpec | None:
    """Read ``astype``, and ``quantize``, which is decoded likewise."""
    rounds = codec_id == "quantize"
    if not rounds and conf["encode_dtype"] is None:
        return None
    decoded, encoded = ("dtype", conf.get("astype")) if rounds else ("decode_dtype", conf["encode_dtype"])
    dtypes = _dtypes(conf.get(decoded), encoded, dtype)
    if dtypes is None or dtypes[0] == dtypes[1]:
        return IdentitySpec(name=codec_id) if dtypes else None
    if rounds and dtype is not None:  # in format 3, zarr-python forgets that the stored dtype is another one
        return None
    return AsTypeSpec(name="quantize" if rounds else "astype", decoded=dtypes[0], encoded=dtypes[1])


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
    """Return both dtypes of a codec; None if one of them is out of the ordinary.

    `dtype` replaces a missing `decoded`, and in format 3 must equal it; the decoded one replaces a missing `encoded`.
    """
    first = dtype_text(dtype if decoded is None else decoded)
    second = first if encoded is None else dtype_text(encoded)
    if first is None or second is None or np.dtype(first).kind != "c" == np.dtype(second).kind:
        return None
    fits = dtype is None or (first == dtype.str and np.dtype(second).isnative)
    return (first, second) if fits else None


def dtype_text(text: Json) -> str | None:
    """Return a dtype as NumPy writes it; None if it is out of the ordinary."""
    if text is None:
        raise TypeError("a codec of elements without their dtype")
    dtype = np.dtype(text)
    return dtype.str if dtype.str[1:] in _DTYPES else None
