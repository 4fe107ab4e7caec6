"""`named_codecs`: short names for the codecs that suit most data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numcodecs
import numcodecs.abc
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from xarray_gpuzarr.errors import OptionError, similar_name_hint

_BY_NAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "zstd": (lambda: numcodecs.Zstd(level=3), lambda: ZstdCodec(level=3)),
    "blosc": (
        lambda: numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.SHUFFLE),
        lambda: BloscCodec(cname="zstd", clevel=3, shuffle="shuffle"),
    ),
    "gzip": (lambda: numcodecs.GZip(level=5), lambda: GzipCodec(level=5)),
}
"""By name, functions that make the codec for Zarr format 2 and for format 3."""


def named_codecs(compressors: Any, zarr_format: int) -> Any:
    """Return the codecs with a short name, for a Zarr format.

    Parameters
    ----------
    compressors : str, codec, sequence of codecs, or None
        "zstd", "blosc" (zstd in Blosc, with a byte shuffle), "gzip", or "none" for no compression. Anything else than a
        str is returned unchanged. A codec may also be a mapping, its metadata.
    zarr_format : {2, 3}
        Zarr format of the array.

    Raises
    ------
    OptionError
        If the name is unknown, or what was given is no codec of this format.
    """
    if compressors is None:
        return None
    if not isinstance(compressors, str):
        _require_codecs(compressors, zarr_format)
        return compressors
    if compressors == "none":
        return ()
    if compressors not in _BY_NAME:
        names = [*_BY_NAME, "none"]
        raise OptionError(
            "unknown name of a codec",
            tried=f"compressors={compressors!r}",
            found=f"names: {', '.join(names)}",
            do=f"give one of these{similar_name_hint(compressors, names)}, or a codec of zarr.codecs",
        )
    make_v2_codec, make_v3_codec = _BY_NAME[compressors]
    return make_v2_codec() if zarr_format == 2 else make_v3_codec()


def _require_codecs(compressors: Any, zarr_format: int) -> None:
    """Raise `OptionError` unless `compressors` is a codec that compresses arrays of a Zarr format, or several such."""
    base_class = numcodecs.abc.Codec if zarr_format == 2 else BytesBytesCodec
    for codec in compressors if isinstance(compressors, tuple | list) else [compressors]:
        if not isinstance(codec, Mapping | base_class):
            module = "numcodecs" if zarr_format == 2 else "zarr.codecs"
            raise OptionError(
                "unusable compressors",
                tried=f"compressors={compressors!r}, in Zarr format {zarr_format}",
                found=f"{codec!r}, which compresses no arrays of this format",
                do=f"give a codec of {module}, or one of the names {', '.join([*_BY_NAME, 'none'])}",
            )
