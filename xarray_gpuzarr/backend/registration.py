"""Registers the accessor ``.gpuzarr`` on datasets, arrays and trees.

`xarray_gpuzarr` imports this module as soon as xarray is imported, and `backend` imports it as well. The accessor
classes, in `accessor`, are imported when ``.gpuzarr`` is first used.

xarray's own ``register_dataset_accessor`` is not used. It would keep the accessor object in the dataset, and therefore
in pickles of the dataset, which then could not be loaded without this package.
"""

from __future__ import annotations

from typing import Any

from xarray import DataArray, Dataset, DataTree


class LazyAccessor:
    """A descriptor that imports an accessor class of `xarray_gpuzarr.backend.accessor` when it is first used."""

    def __init__(self, class_name: str) -> None:
        self._class_name = class_name

    def __get__(self, instance: Any, _owner: object = None) -> Any:
        """Return the accessor of a dataset, an array or a tree. Looked up on a class, return this object itself."""
        if instance is None:
            return self
        return self._accessor_class()(instance)

    def __getattr__(self, attribute: str) -> Any:
        """Return an attribute of the accessor class, for code that inspects ``Dataset.gpuzarr``."""
        return getattr(self._accessor_class(), attribute)

    def _accessor_class(self) -> Any:
        from xarray_gpuzarr.backend import accessor  # noqa: PLC0415  # imports zarr and dask

        return getattr(accessor, self._class_name)


# `setattr`, because type checkers refuse the assignment of an attribute that a class does not declare.
setattr(Dataset, "gpuzarr", LazyAccessor("DatasetAccessor"))  # noqa: B010
setattr(DataArray, "gpuzarr", LazyAccessor("DataArrayAccessor"))  # noqa: B010
setattr(DataTree, "gpuzarr", LazyAccessor("DataTreeAccessor"))  # noqa: B010
