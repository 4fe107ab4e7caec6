"""From stored elements to those of the result, by NumPy: cast, mask, scale, offset."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.stored.cf import Cast

Array = npt.NDArray[Any]


def cast_array(cast: Cast, src: Array) -> Array:
    """Return `src`, cast: a new array, or `src` itself where there is nothing to do."""
    dtype = np.dtype(cast.dtype)
    if cast.is_copy and src.dtype == dtype:
        return src
    values = np.empty(src.shape, dtype)
    np.copyto(values, src if cast.view is None else src.view(cast.seen_as(src.dtype)), casting="unsafe")
    if cast.mask:
        hit = values == cast.mask[0]
        for value in cast.mask[1:]:
            hit |= values == value
        if hit.any():  # looking takes less time than replacing none
            nan = complex(np.nan, np.nan) if values.dtype.kind == "c" else np.nan
            np.copyto(values, nan, where=hit)
    if cast.scale is not None:
        np.multiply(values, cast.scale, out=values, casting="unsafe")
    if cast.offset is not None:
        np.add(values, cast.offset, out=values, casting="unsafe")
    return values
