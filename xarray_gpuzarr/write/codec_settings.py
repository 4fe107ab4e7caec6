"""`encoder_settings`: the settings of an array's compressor, as `EncoderStruct` of the compiled loops has them.

They are read from the array's metadata. Values that are unusual, or that a compressor might refuse, have no settings
here: zarr-python then encodes the array, and decides about them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.codecs import BloscSpec, CompressorSpec, GzipSpec, Lz4Spec, ZlibSpec, ZstdSpec

_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_AUTO_SHUFFLE = -1
"""Setting with which numcodecs chooses the shuffle by the typesize."""
_INT_LIMIT = 2**31
"""Numbers of a C int are smaller than this."""
_ZLIB_LEVELS = range(-1, 10)
_DEFAULT_ZLIB_LEVEL = 6
"""Level that zlib uses for -1."""
_BLOSC_LEVELS = range(10)
_BLOSC_COMPRESSORS = (b"blosclz", b"lz4", b"lz4hc", b"zlib", b"zstd")
"""Compressors in the C-Blosc of numcodecs."""


def encoder_settings(spec: ArraySpec, compressor: CompressorSpec, itemsize: int) -> dict[str, Any] | None:
    """Return the settings of an array's compressor.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    compressor : CompressorSpec
        One of the array's codecs, which `native_encoder` knows.
    itemsize : int
        Bytes of a stored element.

    Returns
    -------
    dict or None
        Values of the fields of `EncoderStruct`, by name. None if zarr-python has to decide about the settings.
    """
    configuration, is_v2 = _configuration(spec, compressor)
    # In Zarr v2 the compressor is handed elements, in Zarr v3 bytes.
    default_typesize = itemsize if is_v2 else 1
    return _PARSERS[type(compressor)](configuration, default_typesize)


def _configuration(spec: ArraySpec, compressor: CompressorSpec) -> tuple[Mapping[str, Any], bool]:
    """Return the configuration of a compressor as the metadata have it, and whether they are in Zarr format 2."""
    metadata = json.loads(spec.metadata)
    if metadata["zarr_format"] == 2:
        # `write.encoder` refuses arrays with other filters than bytes-to-bytes codecs, so the positions agree.
        entries = [*(metadata.get("filters") or ()), metadata["compressor"]]
        return entries[spec.codecs.bytes_to_bytes.index(compressor)], True
    codecs = metadata["codecs"]
    if spec.index is not None:  # `spec.codecs` are those of inner chunks, in the same order as in the metadata
        (sharding,) = (c for c in codecs if isinstance(c, Mapping) and c.get("name") == "sharding_indexed")
        codecs = sharding["configuration"]["codecs"]
    entry = codecs[list(spec.codecs).index(compressor)]
    if isinstance(entry, Mapping):
        return entry.get("configuration", {}), False
    return {}, False


def _integers(configuration: Mapping[str, Any], **defaults: int) -> dict[str, int] | None:
    """Return integer settings, or their defaults if they are missing; None if one is not an int that fits a C int."""
    settings = {name: configuration.get(name, default) for name, default in defaults.items()}
    for value in settings.values():
        if not isinstance(value, int) or abs(value) >= _INT_LIMIT:
            return None
    return {name: int(value) for name, value in settings.items()}


def _zlib_settings(configuration: Mapping[str, Any], _: int) -> dict[str, Any] | None:
    settings = _integers(configuration, level=1)
    if settings is None or settings["level"] not in _ZLIB_LEVELS:
        return None
    if settings["level"] < 0:
        settings["level"] = _DEFAULT_ZLIB_LEVEL
    return settings


def _lz4_settings(configuration: Mapping[str, Any], _: int) -> dict[str, Any] | None:
    settings = _integers(configuration, acceleration=1)
    if settings is None:
        return None
    return {"level": settings["acceleration"]}  # LZ4 has no levels; `EncoderStruct.level` holds its acceleration


def _zstd_settings(configuration: Mapping[str, Any], _: int) -> dict[str, Any] | None:
    settings = _integers(configuration, level=0)
    return None if settings is None else {**settings, "checksum": bool(configuration.get("checksum", False))}


def _blosc_settings(configuration: Mapping[str, Any], default_typesize: int) -> dict[str, Any] | None:
    cname = configuration.get("cname", "lz4")
    shuffle = configuration.get("shuffle", 1)
    if isinstance(shuffle, str):
        shuffle = _SHUFFLES.get(shuffle)
    typesize = configuration.get("typesize")
    if typesize is None:
        typesize = default_typesize
    configuration = {**configuration, "shuffle": shuffle, "typesize": typesize}
    settings = _integers(configuration, clevel=5, shuffle=1, typesize=1, blocksize=0)
    if settings is None or not isinstance(cname, str) or cname.encode() not in _BLOSC_COMPRESSORS:
        return None
    level = settings.pop("clevel")
    if settings["shuffle"] == _AUTO_SHUFFLE:
        settings["shuffle"] = _SHUFFLES["bitshuffle"] if settings["typesize"] == 1 else _SHUFFLES["shuffle"]
    if level not in _BLOSC_LEVELS or settings["shuffle"] not in _SHUFFLES.values():
        return None
    if settings["blocksize"] < 0 or settings["typesize"] <= 0:
        return None
    return {**settings, "level": level, "cname": cname.encode()}


_PARSERS: Mapping[type, Callable[[Mapping[str, Any], int], dict[str, Any] | None]] = {
    ZstdSpec: _zstd_settings,
    GzipSpec: _zlib_settings,
    ZlibSpec: _zlib_settings,
    Lz4Spec: _lz4_settings,
    BloscSpec: _blosc_settings,
}
"""For each compressor, the function that parses its configuration, given also the default typesize."""
