"""The accessor ``.gpuzarr`` of datasets, arrays and trees. `registration` imports it when it is first used."""

from xarray_gpuzarr.backend.accessor.array_accessor import DataArrayAccessor
from xarray_gpuzarr.backend.accessor.dataset_accessor import DatasetAccessor
from xarray_gpuzarr.backend.accessor.explanation import Explanation
from xarray_gpuzarr.backend.accessor.tree_accessor import DataTreeAccessor
from xarray_gpuzarr.backend.accessor.variable_rows import Row

__all__ = ["DataArrayAccessor", "DataTreeAccessor", "DatasetAccessor", "Explanation", "Row"]
