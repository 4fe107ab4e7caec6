"""Decide which arrays and reads the device decodes, and why the host decodes the others, from metadata alone.

The host also decodes reads of a few chunks. nvCOMP gives each compressed stream to a few threads of the GPU, which take
many times as long for it as a thread of the host. A GPU makes up for that only if it decodes many streams at once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from xarray_gpuzarr.cuda.axes import MAX_AXES, MAX_BOX
from xarray_gpuzarr.cuda.cast import why_no_cast
from xarray_gpuzarr.decoders.cuda.chain import find_chain, require_chain
from xarray_gpuzarr.decoders.protocol import Route
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

ONE_COPY = "then one copy to the device"
"""End of `Route.where` if the host decodes for the device."""


@lru_cache(maxsize=256)
def why_not_device(spec: ArraySpec, cast: Cast) -> str | None:
    """Return why the device does not decode an array and cast it; None if it does."""
    if spec.codecs.other is not None:
        return f"codec {spec.codecs.other} is decoded chunk by chunk"
    if spec.grid.ndim > MAX_AXES:
        return f"{spec.grid.ndim} dimensions, the kernels handle {MAX_AXES}"
    if spec.chunk_nbytes // spec.numpy_dtype.itemsize >= MAX_BOX:
        return f"chunks of {spec.grid.chunk_shape} elements, the kernels handle fewer than {MAX_BOX} elements"
    chain = find_chain(spec)
    if isinstance(chain, str):
        return chain
    return why_no_cast(cast.viewed_dtype(spec.numpy_dtype), np.dtype(cast.dtype), has_arithmetic=cast.has_arithmetic)


def route(spec: ArraySpec, cast: Cast) -> Route:
    """Return where the chunks of an array are decoded, and why."""
    why = why_not_device(spec, cast)
    if why is None:
        return Route(where="cuda", why="")
    decoder = "host" if spec.codecs.other is None else "host, by zarr-python"
    return Route(where=f"{decoder}, {ONE_COPY}", why=why)


MAX_HOST_CHUNKS = 30
"""Largest number of chunks of a read that the host decodes sooner than the device.

A thread of the host takes 1 ms for 1 MB of zstd; nvCOMP on an H100 takes 25 to 45 ms for 400 chunks of that size
("GPU-accelerated Zarr", 2025). It is assumed to take as long for fewer chunks, and for chunks of other formats.
"""


def why_host_is_faster(spec: ArraySpec, n_chunks: int) -> str | None:
    """Return why the host decodes a read of `n_chunks` chunks sooner than the device; None if it does not.

    The array must be one that the device can decode. Chunks without a compressor are faster on the device, whatever
    their number.
    """
    if n_chunks > MAX_HOST_CHUNKS or require_chain(spec).compressor is None:
        return None
    return (
        f"reads of up to {MAX_HOST_CHUNKS} chunks are decoded by the host: a GPU is assumed to take as long for one "
        "chunk as for hundreds, thirty times as long as a thread of the host"
    )
