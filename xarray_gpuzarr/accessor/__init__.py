"""``.gpuzarr`` on datasets, arrays and trees, and the tables that it prints.

Importing this registers the accessors with xarray; `xarray_gpuzarr` does it.
"""

from xarray_gpuzarr.accessor.accessors import DataArrayAccessor, DatasetAccessor, DataTreeAccessor
from xarray_gpuzarr.accessor.explain import Row
from xarray_gpuzarr.accessor.explanation import Explanation

__all__ = ["DataArrayAccessor", "DataTreeAccessor", "DatasetAccessor", "Explanation", "Row"]
