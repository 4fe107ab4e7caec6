"""Paths of the arrays of variables in a group."""

from __future__ import annotations

from typing import Any

from xarray_gpuzarr.errors import OptionError


def array_path(name: Any) -> str:
    """Return the path of a variable's array in its group, as xarray and zarr-python make it from the name."""
    text = "__values__" if name is None else str(name)
    return "/".join([part for part in text.replace("\\", "/").split("/") if part])


def same_path_error(name: Any, other: Any, path: str) -> OptionError:
    """Return the error for two variables whose arrays have one path."""
    return OptionError(
        f"variables {name!r} and {other!r} are stored in one array",
        tried=f"to write both to {path!r}",
        found="names that Zarr takes for one path",
        do="rename one of them",
    )
