"""Which arrays the device decodes, and why it does not decode others; decided from metadata alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from xarray_gpuzarr.cuda.axes import MAX_AXES, MAX_BOX
from xarray_gpuzarr.cuda.elements import can_cast
from xarray_gpuzarr.decoders.cuda.chain import chain_of
from xarray_gpuzarr.decoders.protocol import Route
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

ONE_COPY = "then one copy to the device"


@lru_cache(maxsize=256)
def why_not_device(spec: ArraySpec, cast: Cast) -> str | None:
    """Say why the device does not decode an array, or None if it does."""
    stored = cast.seen_as(spec.numpy_dtype)
    arithmetic = bool(cast.mask) or cast.scale is not None or cast.offset is not None
    return _why_not_chain(spec) or can_cast(stored, np.dtype(cast.dtype), has_arithmetic=arithmetic)


def _why_not_chain(spec: ArraySpec) -> str | None:
    if spec.codecs.other is not None:
        return f"codec {spec.codecs.other} is decoded chunk by chunk"
    if spec.grid.ndim > MAX_AXES:
        return f"{spec.grid.ndim} dimensions, the kernels handle {MAX_AXES}"
    if spec.chunk_nbytes // spec.numpy_dtype.itemsize >= MAX_BOX:
        return f"chunks of {spec.grid.chunk_shape} elements, the kernels handle fewer than {MAX_BOX} elements"
    chain = chain_of(spec)
    return chain if isinstance(chain, str) else None


def route(spec: ArraySpec, cast: Cast) -> Route:
    """Say where chunks are decoded and why."""
    why = why_not_device(spec, cast)
    if why is None:
        return Route(where="cuda", why="")
    by = "host, by zarr-python" if spec.codecs.other is not None else "host"
    return Route(where=f"{by}, {ONE_COPY}", why=why)
