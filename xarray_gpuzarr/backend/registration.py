"""``.gpuzarr`` on datasets, arrays and trees, as xarray sees it: a name whose body is imported when it is first used.

Importing this registers the accessors; `xarray_gpuzarr` and `backend` see to it. What they do is in `accessor`.
"""

from __future__ import annotations

from typing import Any

from xarray import register_dataarray_accessor, register_dataset_accessor, register_datatree_accessor


class LazyAccessor:
    """Stands for an accessor's class until that is needed.

    Parameters
    ----------
    name : str
        Of the class, in `xarray_gpuzarr.backend.accessor`.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, described: Any) -> Any:
        """Return the accessor of a dataset, an array or a tree."""
        return self._body()(described)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._body(), attribute)

    def _body(self) -> Any:
        from xarray_gpuzarr.backend import accessor  # noqa: PLC0415  # which imports zarr and dask

        return getattr(accessor, self._name)


register_dataset_accessor("gpuzarr")(LazyAccessor("DatasetAccessor"))
register_dataarray_accessor("gpuzarr")(LazyAccessor("DataArrayAccessor"))
register_datatree_accessor("gpuzarr")(LazyAccessor("DataTreeAccessor"))
