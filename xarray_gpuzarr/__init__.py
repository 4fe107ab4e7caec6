"""Zarr shards straight to the GPU, through xarray: ``xr.open_dataset(store, engine="gpuzarr", chunks={})``."""

from xarray_gpuzarr import accessor as _accessor  # registers `.gpuzarr`  # noqa: F401
from xarray_gpuzarr.cuda.options import ResourceOptions
from xarray_gpuzarr.cuda.resources import configure
from xarray_gpuzarr.errors import (
    CorruptChunkError,
    CudaError,
    DeviceMemoryError,
    DeviceUnavailableError,
    GpuZarrError,
    MetadataError,
    OptionError,
    SelectionError,
    ShardIndexError,
    StoreReadError,
    UnsupportedCodecError,
)
from xarray_gpuzarr.read import read_array

__all__ = [
    "CorruptChunkError",
    "CudaError",
    "DeviceMemoryError",
    "DeviceUnavailableError",
    "GpuZarrError",
    "MetadataError",
    "OptionError",
    "ResourceOptions",
    "SelectionError",
    "ShardIndexError",
    "StoreReadError",
    "UnsupportedCodecError",
    "configure",
    "read_array",
]
