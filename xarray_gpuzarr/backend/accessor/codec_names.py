"""`named_codecs`: short names for the codecs that suit most data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numcodecs
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
        str is returned unchanged.
    zarr_format : {2, 3}
        Zarr format of the array.

    Raises
    ------
    OptionError
        If the name is unknown.
    """
    if not isinstance(compressors, str):
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
