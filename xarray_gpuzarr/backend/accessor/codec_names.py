"""`named_codecs`: short names for the codecs that suit most data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numcodecs
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from xarray_gpuzarr.errors import OptionError, perhaps

_BY_NAME: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "zstd": (lambda: numcodecs.Zstd(level=3), lambda: ZstdCodec(level=3)),
    "blosc": (
        lambda: numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.SHUFFLE),
        lambda: BloscCodec(cname="zstd", clevel=3, shuffle="shuffle"),
    ),
    "gzip": (lambda: numcodecs.GZip(level=5), lambda: GzipCodec(level=5)),
}
"""Name -> what makes the codec, for format 2 and for format 3."""


def named_codecs(compressors: Any, zarr_format: int) -> Any:
    """Return the codecs of a name, for a Zarr format; anything that is no text as it is.

    Parameters
    ----------
    compressors : str, codec, sequence of codecs, or None
        "zstd", "blosc" (zstd in Blosc, with a byte shuffle), "gzip", or "none" for no compression.
    zarr_format : 2 or 3

    Raises
    ------
    OptionError
        The name is not one of these.
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
            do=f"give one of these{perhaps(compressors, names)}, or a codec of zarr.codecs",
        )
    of_format_2, of_format_3 = _BY_NAME[compressors]
    return of_format_2() if zarr_format == 2 else of_format_3()
