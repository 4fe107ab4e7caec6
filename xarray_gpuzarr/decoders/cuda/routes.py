"""Which arrays and reads the device decodes, and why the host decodes others: decided from metadata alone.

The host decodes reads of a few chunks, too: nvCOMP gives each compressed stream to a few threads of the GPU, and their
latency is a multiple of what a thread of the host takes. Many streams at once make up for it, a few do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from xarray_gpuzarr.cuda.axes import MAX_AXES, MAX_BOX
from xarray_gpuzarr.cuda.cast import can_cast
from xarray_gpuzarr.decoders.cuda.chain import chain_of, read_chain
from xarray_gpuzarr.decoders.host.compressors import decoded_rate
from xarray_gpuzarr.decoders.protocol import Route
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import BloscSpec, CompressorSpec, GzipSpec, Lz4Spec, ZlibSpec, ZstdSpec

ONE_COPY = "then one copy to the device"


@lru_cache(maxsize=256)
def why_not_device(spec: ArraySpec, cast: Cast) -> str | None:
    """Say why the device does not decode an array, or None if it does."""
    if spec.codecs.other is not None:
        return f"codec {spec.codecs.other} is decoded chunk by chunk"
    if spec.grid.ndim > MAX_AXES:
        return f"{spec.grid.ndim} dimensions, the kernels handle {MAX_AXES}"
    if spec.chunk_nbytes // spec.numpy_dtype.itemsize >= MAX_BOX:
        return f"chunks of {spec.grid.chunk_shape} elements, the kernels handle fewer than {MAX_BOX} elements"
    chain = chain_of(spec)
    if isinstance(chain, str):
        return chain
    return can_cast(cast.seen_as(spec.numpy_dtype), np.dtype(cast.dtype), has_arithmetic=cast.has_arithmetic)


def route(spec: ArraySpec, cast: Cast) -> Route:
    """Say where chunks are decoded and why."""
    why = why_not_device(spec, cast)
    if why is None:
        return Route(where="cuda", why="")
    by = "host, by zarr-python" if spec.codecs.other is not None else "host"
    return Route(where=f"{by}, {ONE_COPY}", why=why)


_LAUNCH_S = 0.5e-3
"""Of a call of nvCOMP, however short its streams are. Assumed."""
_ZSTD_RATE = 34e6
"""Decoded bytes a second of one stream. 400 chunks of 1.024 MB take an H100 25 to 45 ms ("GPU-accelerated Zarr", 2025);
one frame of 16 MiB takes an H200 39 ms if it hardly compresses (srivarra/czarr, 2026)."""
_STREAM_RATES: dict[str, float] = {
    "zstd": _ZSTD_RATE,
    "lz4": 5 * _ZSTD_RATE,
    "snappy": 5 * _ZSTD_RATE,
    "zlib": _ZSTD_RATE / 1.5,
    "blosclz": 45e6,
}
"""LZ4 and snappy: for batched LZ4, 31 to 110 GB/s are reported (kvikio, issue 293), zstd decodes 9 to 16. Deflate:
nvCOMP's documentation calls its throughput low, and zstd's moderate. blosclz: instructions of our kernel, counted."""
_FORMATS: dict[type[CompressorSpec], str] = {ZstdSpec: "zstd", Lz4Spec: "lz4", GzipSpec: "zlib", ZlibSpec: "zlib"}
_BLOSC_BLOCK_NBYTES = 256 * 1024
"""C-Blosc compresses a chunk in blocks of about this length, each a stream or several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """What one chunk takes on either side, in seconds."""

    host_s: float
    """One thread of the host."""
    device_s: float
    """A call of nvCOMP, of any number of chunks that the device decodes at once."""

    @property
    def most_chunks(self) -> int:
        """Chunks of a read that the host decodes."""
        return int(self.device_s / self.host_s)

    def __str__(self) -> str:
        return (
            f"reads of up to {self.most_chunks} chunks are decoded by the host: one of its threads takes "
            f"{self.host_s * 1e3:.3g} ms for a chunk, the GPU at least {self.device_s * 1e3:.3g} ms for a read"
        )


@lru_cache(maxsize=256)
def latency(spec: ArraySpec) -> Latency | None:
    """Return what a chunk of an array takes on either side; None where nothing is decompressed."""
    compressor = read_chain(spec).compressor
    if compressor is None:
        return None
    stream_nbytes = spec.chunk_nbytes
    if isinstance(compressor, BloscSpec):
        name, stream_nbytes = compressor.cname.removesuffix("hc"), min(stream_nbytes, _BLOSC_BLOCK_NBYTES)
    else:
        name = _FORMATS[type(compressor)]
    device_s = _LAUNCH_S + stream_nbytes / _STREAM_RATES[name]
    return Latency(host_s=spec.chunk_nbytes / decoded_rate(spec.codecs), device_s=device_s)


def is_little(spec: ArraySpec, n_chunks: int) -> bool:
    """Say whether one thread of the host decodes so many chunks sooner than the device decodes one."""
    of_chunk = latency(spec)
    return of_chunk is not None and n_chunks <= of_chunk.most_chunks
