"""`Channels`: the data variables of a batch as one array, with one more axis for the variables (``stack=``)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from dask.array.utils import meta_from_array
from xarray import Dataset

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.training.sources import DaskSource, MemorySource, Source, StoredSource, XarraySource

SAMPLE = "sample"
"""Name of the first dimension of every batch."""
_CHOOSE_VARIABLES = (
    'choose variables that fit into one array, as in ds[["t2m", "u10"]]; '
    'dtype="float32" makes float64 and float32 alike'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The variables that are stacked, and the new dimension."""

    dim: Hashable
    """Name of the new dimension."""
    names: tuple[Hashable, ...]
    """Names of the variables, in their order along `dim`."""
    dims: tuple[Hashable, ...]
    """Dimensions that each of the variables has."""
    dtype: np.dtype[Any]
    """Dtype that samples of each of the variables have."""

    @classmethod
    def from_dataset(cls, ds: Dataset, dim: Hashable, dtypes: Mapping[Hashable, np.dtype[Any]]) -> Self:
        """Return all data variables of a dataset as channels.

        Parameters
        ----------
        ds : xarray.Dataset
            At least one data variable has one of the dimensions that samples are cut along.
        dim : hashable
            Name of the new dimension.
        dtypes : mapping of hashable to numpy.dtype
            Dtypes of samples, for each variable that has a dimension that samples are cut along.

        Raises
        ------
        OptionError
            The data variables differ in dimensions or dtype, or lack the dimensions that samples are cut
            along; or `dim` is a boolean, or the name of a dimension or variable of the dataset.
        """
        found = None
        if isinstance(dim, bool):
            found = "not a name"
        elif dim in ds.dims or dim in ds.variables or dim == SAMPLE:
            found = "a dimension or a variable of that name"
        if found is not None:
            raise OptionError(
                "unusable stack=",
                tried=f"stack={dim!r}",
                found=found,
                do='give a new name for the dimension of the variables, such as stack="channel"',
            )
        names = tuple(ds.data_vars)
        dims = ds.variables[names[0]].dims
        for name in names:
            other_dims = ds.variables[name].dims
            if other_dims != dims:
                do = "transpose() the dataset" if {*other_dims} == {*dims} else _CHOOSE_VARIABLES
                raise _mismatch(dim, f"dimensions {other_dims} of {name!r}, {dims} of {names[0]!r}", do)
            if name not in dtypes:
                raise _mismatch(dim, f"no dimension of the samples in {name!r}")
            if dtypes[name] != dtypes[names[0]]:
                raise _mismatch(dim, f"dtype {dtypes[name]} of {name!r}, {dtypes[names[0]]} of {names[0]!r}")
        return cls(dim=dim, names=names, dims=dims, dtype=dtypes[names[0]])

    def require_one_device(self, sources: Mapping[Hashable, Source]) -> None:
        """Raise an `OptionError` if the variables are read to different devices.

        Variables that dask computes are not checked, because their device is not known beforehand.
        """
        devices = {name: _device_of(sources[name]) for name in self.names}
        examples = {device: name for name, device in devices.items() if device is not None}
        if len(examples) > 1:
            raise _mismatch(self.dim, ", ".join(f"{name!r} on {device}" for device, name in examples.items()))

    def allocate(self, sources: Mapping[Hashable, Source], shape: tuple[int, ...]) -> Any:
        """Return an uninitialised array in C order, on the device that samples of the first variable are read to."""
        source = sources[self.names[0]]
        if isinstance(source, StoredSource):
            return source.parts.lazy.by_decoder(lambda decoder: decoder.empty(shape, self.dtype))
        if isinstance(source, XarraySource):
            return np.empty(shape, self.dtype)
        like = meta_from_array(source.array) if isinstance(source, DaskSource) else source.array
        return np.empty_like(like, dtype=self.dtype, order="C", shape=shape)


def _device_of(source: Source) -> str | None:
    """Return the device that samples of a variable are read to, or None if dask computes them."""
    if isinstance(source, StoredSource):
        return source.parts.lazy.device
    if isinstance(source, DaskSource):
        return None
    is_on_device = isinstance(source, MemorySource) and hasattr(source.array, "__cuda_array_interface__")
    return "cuda" if is_on_device else "host"


def _mismatch(dim: Hashable, found: str, do: str = _CHOOSE_VARIABLES) -> OptionError:
    return OptionError("variables that do not fit into one array", tried=f"stack={dim!r}", found=found, do=do)
