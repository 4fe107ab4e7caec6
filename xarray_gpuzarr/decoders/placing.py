"""From decoded elements to the output: cast, mask, scale and fill with NumPy, chunk by chunk while they are in cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cf import Cast

Array = npt.NDArray[Any]


def place(cast: Cast, src: Array, dst: Array, work: Array) -> None:
    """Write `src`, cast, to `dst`.

    Parameters
    ----------
    cast : Cast
    src : ndarray, any shape, stored dtype
        Decoded elements, not modified.
    dst : ndarray, shape of `src`, dtype `cast.dtype`
    work : ndarray, shape (n,) with n >= src.size, dtype `cast.dtype`, C order
        Scratch, overwritten.
    """
    if cast.view is not None:
        src = src.view(cast.view)
    if cast.is_copy or not cast.mask and cast.scale is None and cast.offset is None:
        np.copyto(dst, src, casting="unsafe")
        return
    values = work[: src.size].reshape(src.shape)
    np.copyto(values, src, casting="unsafe")
    if cast.mask:
        _mask(cast, values)
    if cast.scale is not None and cast.offset is not None:
        np.multiply(values, cast.scale, out=values, casting="unsafe")
        np.add(values, cast.offset, out=dst, casting="unsafe")
    elif cast.scale is not None:
        np.multiply(values, cast.scale, out=dst, casting="unsafe")
    elif cast.offset is not None:
        np.add(values, cast.offset, out=dst, casting="unsafe")
    else:
        np.copyto(dst, values)


def _mask(cast: Cast, values: Array) -> None:
    hit = values == cast.mask[0]
    for value in cast.mask[1:]:
        hit |= values == value
    nan = complex(np.nan, np.nan) if values.dtype.kind == "c" else np.nan
    np.copyto(values, nan, where=hit)


def cast_array(cast: Cast, src: Array) -> Array:
    """Return `src`, cast: a new C-ordered array, or `src` itself where there is nothing to do."""
    dtype = np.dtype(cast.dtype)
    if cast.is_copy and src.dtype == dtype:
        return src
    out = np.empty(src.shape, dtype)
    place(cast, src, out, np.empty(src.size, dtype))
    return out
