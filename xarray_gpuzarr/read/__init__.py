"""Reading of selections: a selection becomes a plan, whose chunks a decoder fetches and decodes into one array."""

from xarray_gpuzarr.read.by_zarr import checked_array, refused_frame
from xarray_gpuzarr.read.reading import read, read_array, read_points, read_stacked, read_target
from xarray_gpuzarr.read.stored_array import StoredArray, in_store, stored_array

__all__ = [
    "StoredArray",
    "checked_array",
    "in_store",
    "read",
    "read_array",
    "read_points",
    "read_stacked",
    "read_target",
    "refused_frame",
    "stored_array",
]
