"""`require_equal_lengths`: refuses an append that would leave arrays of different lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xarray_gpuzarr.errors import OptionError


def require_equal_lengths(lengths: Mapping[Any, int], dim: Any) -> None:
    """Raise `OptionError` if arrays have different lengths before an append: they would differ afterwards, too.

    xarray appends to each array from its own end. A store whose arrays differ along a dimension cannot be opened.

    Parameters
    ----------
    lengths : mapping of variable name to int
        Length along `dim` of each stored array that the append makes longer; 0 for variables that the store lacks.
    dim : hashable
        The dimension.
    """
    if len({*lengths.values()}) <= 1:
        return
    by_length: dict[int, list[str]] = {}
    for name, length in lengths.items():
        by_length.setdefault(length, []).append(repr(name))
    descriptions = [f"{length or 'none'} in {', '.join(names)}" for length, names in sorted(by_length.items())]
    raise OptionError(
        f"the append would leave arrays of different lengths along {dim!r}",
        tried=f"to append to variables {', '.join(map(repr, lengths))}",
        found=f"lengths in the store: {'; '.join(descriptions)}",
        do="if a write was killed, cut the longer arrays back with zarr.open_array(path, mode='r+').resize(shape), "
        "call zarr.consolidate_metadata, and append again; if an earlier append has left out variables, append these "
        f"alone, without the index: ds[[...]].drop_vars({dim!r}); leave out a variable that the store lacks, or store "
        "it first, with all of its earlier values",
    )
