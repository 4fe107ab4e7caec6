"""``.gpuzarr`` on arrays, with the methods that `DatasetAccessor` has for datasets."""

from __future__ import annotations

from typing import Any

from xarray import DataArray, Variable
from xarray.backends.api import DATAARRAY_NAME, DATAARRAY_VARIABLE

from xarray_gpuzarr.backend.accessor.abstract_accessor import Accessor, device_of, explanation_of
from xarray_gpuzarr.backend.accessor.dataset_accessor import DatasetAccessor
from xarray_gpuzarr.backend.accessor.encodings import Size
from xarray_gpuzarr.backend.accessor.explanation import Explanation
from xarray_gpuzarr.backend.accessor.host_copies import bring_to_host
from xarray_gpuzarr.backend.accessor.variable_rows import explain_variables
from xarray_gpuzarr.backend.lazy_array import load_together
from xarray_gpuzarr.decoders.protocol import Device

_UNNAMED = "<unnamed array>"
"""What `DataArrayAccessor.explain` calls an array without a name."""


class DataArrayAccessor(Accessor):
    """The accessor of a DataArray."""

    def __init__(self, array: DataArray) -> None:
        self._array = array

    @property
    def device(self) -> Device | None:
        """See `DatasetAccessor.device`; for the array and its coordinates."""
        return device_of([self._array.variable, *self._other_coords().values()])

    def explain(self) -> Explanation:
        """See `DatasetAccessor.explain`; for the array and its coordinates."""
        name = _UNNAMED if self._array.name is None else self._array.name
        rows = (*explain_variables({name: self._array.variable}), *explain_variables(self._other_coords()))
        return explanation_of(rows, self.device)

    def to_host(self) -> DataArray:
        """See `DatasetAccessor.to_host`; for the array and its coordinates."""
        copied = self._array.copy(deep=False)
        bring_to_host([copied.variable, *(coordinate.variable for coordinate in copied.coords.values())])
        return copied

    def to_zarr(self, store: Any, chunks: Size = "1 MiB", shards: Size | None = "128 MiB", **options: Any) -> Any:
        """Write the array and its coordinates as ``xarray.DataArray.to_zarr`` does; see `DatasetAccessor.to_zarr`.

        Parameters
        ----------
        store, chunks, shards, **options
            As for `DatasetAccessor.to_zarr`. The keys of `encoding` are names of variables. An array without a name, or
            with that of a coordinate or dimension, is called ``__xarray_dataarray_variable__``.

        Returns
        -------
        xarray.backends.ZarrStore or dask.delayed.Delayed
            The same as xarray returns.

        Raises
        ------
        OptionError, StoreWriteError
            As for `DatasetAccessor.to_zarr`.
        """
        array = self._array
        if array.name is not None and array.name not in array.coords and array.name not in array.dims:
            return DatasetAccessor(array.to_dataset()).to_zarr(store, chunks, shards, **options)
        dataset = array.to_dataset(name=DATAARRAY_VARIABLE)
        if array.name is not None:
            dataset.attrs[DATAARRAY_NAME] = array.name
        return DatasetAccessor(dataset).to_zarr(store, chunks, shards, **options)

    def load(self) -> DataArray:
        """See `DatasetAccessor.load`; for the array and its coordinates."""
        load_together([self._array.variable, *self._other_coords().values()])
        return self._array.load()

    def _other_coords(self) -> dict[Any, Variable]:
        """Return the coordinates by name, without the array itself if it is one of its own coordinates."""
        coords = self._array.coords
        return {name: coordinate.variable for name, coordinate in coords.items() if name != self._array.name}
