"""Stored arrays that another version of this package has pickled: they say so once they are used."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

from xarray_gpuzarr.errors import GpuZarrError


@cache
def own_version() -> str:
    """Return the version of this package that is installed; empty where only its files are there."""
    try:
        return metadata.version("xarray-gpuzarr")
    except metadata.PackageNotFoundError:
        return ""


class OfAnotherVersion:
    """What stands for an array whose fields this version may not know.

    Parameters
    ----------
    rebuild : callable
        Makes the array of `pickled`, where the version is the one that has pickled it: `pickled[0]`.
    pickled : tuple

    Notes
    -----
    An error while it is unpickled would end the connection of a worker of dask, and the computation would hang.
    """

    def __init__(self, rebuild: Any, pickled: tuple[Any, ...]) -> None:
        self._reduced = rebuild, pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced

    def __getattr__(self, name: str) -> Any:
        raise GpuZarrError(
            "another version of xarray_gpuzarr has opened this array",
            tried=f"to use it after it was pickled ({name})",
            found=f"version {self._reduced[1][0]} has pickled it, and version {own_version()} is installed here",
            do="install the same version on the client and on all workers; or open the dataset here",
        )
