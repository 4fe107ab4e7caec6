"""Casts: the conversion of stored numbers to physical ones, from CF attributes.

`parse_cast` computes a `Cast` when an array is opened, and decoders carry it out in the pass that writes the result.
The caller passes the dtype that xarray gives the decoded variable, so the dtype of the result follows xarray's rules;
this module reads only the numbers. Variables that are not numeric once decoded (times, strings, enumerations) are left
to xarray.

References
----------
CF conventions 1.12, sections 2.5.1 "Missing data" and 8.1 "Packed data"; NetCDF Users Guide, attribute ``_Unsigned``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Number = int | float | complex


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """Conversion of stored elements to those of the result.

    The steps, in order: reinterpret as `view`, convert to `arithmetic_dtype`, replace masked values by NaN, multiply by
    `scale`, add `offset`, round to `dtype`.
    """

    dtype: str
    """Dtype of the result as NumPy writes it."""
    view: str | None = None
    """Integer dtype of the same width that stored elements are reinterpreted as (``_Unsigned``), without byte order."""
    mask: tuple[Number, ...] = ()
    """Values that mean "missing". They are compared after conversion to `arithmetic_dtype`."""
    scale: Number | None = None
    offset: Number | None = None
    wide_dtype: str | None = None
    """Dtype of the arithmetic if it is wider than `dtype`; None if the arithmetic is in `dtype`."""
    _written: str = field(init=False, repr=False)
    """Scale and offset as text, so that casts with 0.0 and -0.0 are unequal: their results differ."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_written", f"{self.scale!r} {self.offset!r}")

    @property
    def arithmetic_dtype(self) -> str:
        """Dtype in which values are compared with masks, multiplied and added."""
        return self.wide_dtype or self.dtype

    @property
    def has_arithmetic(self) -> bool:
        """Whether values are masked or scaled."""
        return bool(self.mask) or self.scale is not None or self.offset is not None

    @property
    def only_converts(self) -> bool:
        """Whether elements are converted to another dtype at most: not reinterpreted, masked or scaled."""
        return self.view is None and not self.has_arithmetic

    def viewed_dtype(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype that elements of the dtype `stored` are reinterpreted as, with its byte order."""
        return stored if self.view is None else np.dtype(self.view).newbyteorder(stored.byteorder)

    def __str__(self) -> str:
        steps = []
        if self.view:
            steps.append(f"as {np.dtype(self.view).name}")
        if self.mask:
            steps.append("mask " + ", ".join(f"{value:g}" for value in self.mask))
        if self.scale is not None:
            steps.append(f"* {self.scale:g}")
        if self.offset is not None:
            steps.append(f"+ {self.offset:g}")
        if self.wide_dtype:
            steps.append(f"rounded to {np.dtype(self.dtype).name}")
        return ", ".join(steps) or "none"


@lru_cache(maxsize=64)
def plain_cast(dtype: str) -> Cast:
    """Return the cast that keeps elements of `dtype` unchanged."""
    return Cast(dtype=dtype)


def parse_cast(attrs: Mapping[Any, Any], *, stored: np.dtype[Any], decoded: np.dtype[Any]) -> Cast | None:
    """Return the cast for a numeric variable; None if a cast cannot express its attributes, and xarray must decode it.

    Parameters
    ----------
    attrs : mapping
        Attributes of the variable as they are stored.
    stored : numpy.dtype
        Dtype of the stored elements.
    decoded : numpy.dtype
        Dtype that xarray gives the decoded variable.
    """
    view = None
    if (stored.kind, attrs.get("_Unsigned")) in (("i", "true"), ("u", "false")):
        view = f"{'u' if stored.kind == 'i' else 'i'}{stored.itemsize}"
    # xarray compares such data with a byte-swapped _FillValue, so only xarray's own decoding gives its results.
    is_swapped = view is not None and not stored.isnative
    # xarray warns at each read that the imaginary part is lost.
    is_lossy = stored.kind == "c" and decoded.kind != "c"
    if is_swapped or is_lossy:
        return None
    try:
        mask = _mask_values(attrs, stored, view, decoded)
    except (TypeError, ValueError, OverflowError):  # text, or a number that does not fit the dtype
        return None
    scale = _scalar(attrs.get("scale_factor"))
    offset = _scalar(attrs.get("add_offset"))
    is_boolean = attrs.get("dtype") == "bool"  # xarray stores booleans as int8 with this attribute
    has_arithmetic = bool(mask) or scale is not None or offset is not None
    # xarray masks and scales in floats or complex numbers, and goes on from there to a result of another dtype. It also
    # makes booleans of what the other attributes have decoded. A cast has no such second step.
    has_second_step = is_boolean or decoded.kind not in "fc"
    if has_arithmetic and has_second_step:
        return None
    if is_boolean and view:
        return None
    # A scale or an offset may be text, for example.
    if not all(number is None or isinstance(number, int | float | complex) for number in (*mask, scale, offset)):
        return None
    return Cast(dtype=decoded.str, view=view, mask=mask, scale=scale, offset=offset)


def in_float32(cast: Cast) -> Cast:
    """Return a cast to float32 in the place of one to float64; other casts unchanged.

    Values are masked and scaled in float64, and rounded once.
    """
    if np.dtype(cast.dtype).newbyteorder("=") != np.float64:
        return cast
    wide_dtype = np.dtype(np.float64).str if cast.has_arithmetic else None
    return replace(cast, dtype=np.dtype(np.float32).str, wide_dtype=wide_dtype)


@np.errstate(all="ignore")
def _mask_values(
    attrs: Mapping[Any, Any], stored: np.dtype[Any], view: str | None, decoded: np.dtype[Any]
) -> tuple[Number, ...]:
    """Return the values that mean "missing", except those that no element of the result can have."""
    missing_values = _without_nan(attrs.get("missing_value", []))
    fill_values = _without_nan(attrs.get("_FillValue", []))
    if view is not None and len(fill_values) == 1:
        # xarray reinterprets a single _FillValue together with the data, but neither several nor missing_value.
        fill_values = list(np.asarray(fill_values).astype(stored).view(view))
    values = {value.item() for value in (*missing_values, *fill_values) if _may_equal(value, decoded)}
    return tuple(sorted(values, key=repr))  # complex numbers have no order, but their texts do


def _without_nan(values: Any) -> list[Any]:
    """Return the numbers of an attribute as NumPy scalars, except NaN, which masks nothing that is not NaN already."""
    array = np.ravel(values)
    return list(array[~np.isnan(array)])


def _may_equal(value: np.generic, decoded: np.dtype[Any]) -> bool:
    """Whether an element of dtype `decoded` can equal `value`. xarray compares in the wider of the two dtypes."""
    wider = np.result_type(decoded, value.dtype)
    return bool(decoded.type(value).astype(wider) == value.astype(wider))


def _scalar(value: Any) -> Any:
    """Return the number of an attribute as Python's; None if there is no such attribute."""
    return value if value is None else np.asarray(value).item()


def cast_array(cast: Cast, src: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array with a cast applied: a new array, or `src` itself if the cast changes nothing.

    Parameters
    ----------
    cast : Cast
        The conversion.
    src : numpy.ndarray
        Stored elements.

    Returns
    -------
    numpy.ndarray
        Shape of `src`, dtype `cast.dtype`.
    """
    if cast.only_converts and src.dtype == np.dtype(cast.dtype):
        return src
    values = np.empty(src.shape, cast.arithmetic_dtype)
    np.copyto(values, src if cast.view is None else src.view(cast.viewed_dtype(src.dtype)), casting="unsafe")
    if cast.mask:
        is_masked = values == cast.mask[0]
        for value in cast.mask[1:]:
            is_masked |= values == value
        if is_masked.any():  # this test takes less time than a replacement of no elements
            nan = complex(np.nan, np.nan) if values.dtype.kind == "c" else np.nan
            np.copyto(values, nan, where=is_masked)
    if cast.scale is not None:
        np.multiply(values, cast.scale, out=values, casting="unsafe")
    if cast.offset is not None:
        np.add(values, cast.offset, out=values, casting="unsafe")
    return values.astype(cast.dtype, copy=False)
