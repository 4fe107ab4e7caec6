"""Zarr shards straight to the GPU, through xarray: ``xr.open_dataset(store, engine="gpuzarr", chunks={})``."""

from xarray_gpuzarr import accessor as _accessor  # registers `.gpuzarr`  # noqa: F401
from xarray_gpuzarr.errors import (
    CorruptChunkError,
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
    "DeviceUnavailableError",
    "GpuZarrError",
    "MetadataError",
    "OptionError",
    "SelectionError",
    "ShardIndexError",
    "StoreReadError",
    "UnsupportedCodecError",
    "read_array",
]
