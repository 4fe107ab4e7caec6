"""Compiled loops that release the GIL: many chunks read, decoded and placed, or encoded and written, in one call.

Optional: whoever calls them has another way, for what they do not know and for installations without them. The decoders
that they call are those of imagecodecs' libraries.
"""

from xarray_gpuzarr.native.codec_functions import Codec, NativeCodec, NativeEncoder, native_codec, native_encoder
from xarray_gpuzarr.native.library import (
    Loops,
    address,
    address_of,
    crc32c,
    empty_columns,
    int64_columns,
    loops,
    why_absent,
)

__all__ = [
    "Codec",
    "Loops",
    "NativeCodec",
    "NativeEncoder",
    "address",
    "address_of",
    "crc32c",
    "empty_columns",
    "int64_columns",
    "loops",
    "native_codec",
    "native_encoder",
    "why_absent",
]
