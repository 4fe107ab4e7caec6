"""Which arrays and reads the device decodes, and why the host decodes others: decided from metadata alone.

The host decodes reads of a few chunks, too: nvCOMP gives each compressed stream to a few threads of the GPU, and their
latency is a multiple of what a thread of the host takes. Many streams at once make up for it, a few do not.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from xarray_gpuzarr.cuda.axes import MAX_AXES, MAX_BOX
from xarray_gpuzarr.cuda.cast import can_cast
from xarray_gpuzarr.decoders.cuda.chain import chain_of, read_chain
from xarray_gpuzarr.decoders.protocol import Route
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

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


MOST_LITTLE = 30
"""Chunks of a read that the host decodes: a thread of it takes a millisecond for 1 MB of zstd, where nvCOMP on an H100
takes 25 to 45 ms for 400 such chunks ("GPU-accelerated Zarr", 2025). For fewer it is assumed to take as long, and other
formats are assumed to be alike."""


def why_little(spec: ArraySpec, n_chunks: int) -> str | None:
    """Say why the host decodes so many chunks sooner than the device; None if it does not."""
    if n_chunks > MOST_LITTLE or read_chain(spec).compressor is None:
        return None
    return (
        f"reads of up to {MOST_LITTLE} chunks are decoded by the host: a GPU is assumed to take as long for one chunk "
        "as for hundreds, thirty times as long as a thread of the host"
    )
