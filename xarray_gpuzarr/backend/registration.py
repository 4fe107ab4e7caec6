"""Registers ``.gpuzarr`` on datasets, arrays and trees. `accessor` is imported when it is first used.

`xarray_gpuzarr` imports this module as soon as xarray is there, and `backend` as well. xarray's own
``register_dataset_accessor`` would keep an accessor in the dataset, and so in its pickles, which could not be loaded
without this package.
"""

from __future__ import annotations

from typing import Any

from xarray import DataArray, Dataset, DataTree


class LazyAccessor:
    """Stands for an accessor class of `xarray_gpuzarr.backend.accessor` until it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, described: Any, _: object = None) -> Any:
        """Return the accessor of a dataset, an array or a tree; of their class, what stands for the accessor's."""
        return self if described is None else self._body()(described)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._body(), attribute)

    def _body(self) -> Any:
        from xarray_gpuzarr.backend import accessor  # noqa: PLC0415  # which imports zarr and dask

        return getattr(accessor, self._name)


for described, name in ((Dataset, "DatasetAccessor"), (DataArray, "DataArrayAccessor"), (DataTree, "DataTreeAccessor")):
    setattr(described, "gpuzarr", LazyAccessor(name))  # noqa: B010
