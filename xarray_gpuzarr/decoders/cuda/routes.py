"""Which arrays the device decodes, decided from metadata alone: a table from codec to nvCOMP format, and reasons."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xarray_gpuzarr.cf import Cast
from xarray_gpuzarr.codecs import (
    BytesBytesSpec,
    Crc32cSpec,
    GzipSpec,
    Lz4Spec,
    ZlibSpec,
    ZstdSpec,
)
from xarray_gpuzarr.cuda.axes import MAX_AXES, MAX_BOX
from xarray_gpuzarr.cuda.elements import can_cast
from xarray_gpuzarr.cuda.nvcomp import MAX_CHUNK_NBYTES, Format
from xarray_gpuzarr.decoders.base import Route
from xarray_gpuzarr.metadata import ArraySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Inflate:
    """How the device undoes one compressor."""

    format: Format
    """What nvCOMP calls it."""
    head_nbytes: int = 0
    """Bytes before the stream that nvCOMP wants."""
    tail_nbytes: int = 0
    """Bytes after it."""

    @property
    def max_nbytes(self) -> int:
        """Longest encoded chunk."""
        return MAX_CHUNK_NBYTES[self.format][0]


INFLATE: dict[type[BytesBytesSpec], Inflate] = {
    ZstdSpec: Inflate(format="zstd"),
    GzipSpec: Inflate(format="gzip"),
    ZlibSpec: Inflate(format="deflate", head_nbytes=2, tail_nbytes=4),
    Lz4Spec: Inflate(format="lz4", head_nbytes=4),
}
"""RFC 1950: 2 bytes before a deflate stream and an Adler-32 after it. numcodecs: the length before an LZ4 block."""


def compressor(spec: ArraySpec) -> BytesBytesSpec | None:
    """Return the codec that the device decodes; None if chunks are plain bytes."""
    return next((c for c in spec.codecs.bytes_to_bytes if not isinstance(c, Crc32cSpec)), None)


def why_not_device(spec: ArraySpec, cast: Cast) -> str | None:
    """Say why the device does not decode an array, or None if it does."""
    arithmetic = bool(cast.mask) or cast.scale is not None or cast.offset is not None
    return _why_not_chain(spec) or can_cast(stored_dtype(spec, cast), np.dtype(cast.dtype), has_arithmetic=arithmetic)


def _why_not_chain(spec: ArraySpec) -> str | None:
    if spec.codecs.other is not None:
        return f"codec {spec.codecs.other} is decoded chunk by chunk"
    chain = spec.codecs.bytes_to_bytes
    first = compressor(spec)
    if first is not None and (first is not chain[0] or sum(not isinstance(c, Crc32cSpec) for c in chain) > 1):
        return f"{' > '.join(map(str, chain))}: only checksums may follow one compressor"
    if first is not None and type(first) not in INFLATE:
        return f"codec {first} has no device decoder"
    return _why_not_size(spec, first)


def _why_not_size(spec: ArraySpec, first: BytesBytesSpec | None) -> str | None:
    if spec.grid.ndim > MAX_AXES:
        return f"{spec.grid.ndim} dimensions, the kernels handle {MAX_AXES}"
    if spec.chunk_nbytes // spec.numpy_dtype.itemsize >= MAX_BOX:
        return f"chunks of {spec.grid.chunk_shape} elements, the kernels handle fewer than {MAX_BOX} elements"
    if first is not None and spec.chunk_nbytes > MAX_CHUNK_NBYTES[INFLATE[type(first)].format][1]:
        return f"chunks of {spec.chunk_nbytes} bytes are longer than nvCOMP takes"
    return None


def stored_dtype(spec: ArraySpec, cast: Cast) -> np.dtype[np.generic]:
    """Return the dtype that stored elements are read as, the unsigned view applied."""
    stored = spec.numpy_dtype
    return stored if cast.view is None else np.dtype(cast.view)


def route(spec: ArraySpec, cast: Cast) -> Route:
    """Say where chunks are decoded and why."""
    why = why_not_device(spec, cast)
    if why is None:
        return Route(where="cuda", why="")
    by = "host, by zarr-python" if spec.codecs.other is not None else "host"
    return Route(where=f"{by}, then one copy to the device", why=why)
