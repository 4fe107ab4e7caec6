"""Zarr shards straight to the GPU, through xarray: ``xr.open_dataset(store, engine="gpuzarr", chunks={})``."""

from typing import TYPE_CHECKING, Any

from xarray_gpuzarr import accessor as _accessor  # registers `.gpuzarr`  # noqa: F401
from xarray_gpuzarr.cluster import register, stats
from xarray_gpuzarr.configuration import configure
from xarray_gpuzarr.cuda.options import ResourceOptions
from xarray_gpuzarr.errors import (
    CorruptChunkError,
    CudaError,
    DeviceMemoryError,
    DeviceUnavailableError,
    GpuZarrError,
    GpuZarrWarning,
    MetadataError,
    OptionError,
    SelectionError,
    ShardIndexError,
    StoreReadError,
    UnsupportedCodecError,
)
from xarray_gpuzarr.fetch import FetchOptions
from xarray_gpuzarr.progress_bar import progress
from xarray_gpuzarr.read import read_array

if TYPE_CHECKING:
    from xarray_gpuzarr.cluster import GpuZarrPlugin

__all__ = [
    "CorruptChunkError",
    "CudaError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "FetchOptions",
    "GpuZarrError",
    "GpuZarrPlugin",
    "GpuZarrWarning",
    "MetadataError",
    "OptionError",
    "ResourceOptions",
    "SelectionError",
    "ShardIndexError",
    "StoreReadError",
    "UnsupportedCodecError",
    "configure",
    "progress",
    "read_array",
    "register",
    "stats",
]


def __getattr__(name: str) -> Any:
    if name == "GpuZarrPlugin":
        from xarray_gpuzarr.cluster import GpuZarrPlugin  # noqa: PLC0415  # imports distributed

        return GpuZarrPlugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
