"""CF attributes -> `Cast`: how stored numbers become physical ones, as data.

A cast is computed once at open and carried out by the decoder in the pass that writes the result. The decoded dtype is
xarray's own answer, handed in by the caller, so that it cannot drift from xarray's rules; this module only reads the
numbers. What is not arithmetic (times, strings, enumerations) never comes here.

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
    """Turn stored elements into the elements of the result.

    In this order: reinterpret as `view`, convert to `arithmetic_dtype`, replace masked values by NaN, multiply, add,
    round to `dtype`.
    """

    dtype: str
    """Dtype of the result as NumPy writes it."""
    view: str | None = None
    """Integer dtype of the same width to reinterpret stored elements as (``_Unsigned``), in their own byte order."""
    mask: tuple[Number, ...] = ()
    """Values, compared after conversion to `arithmetic_dtype`, that mean "missing"."""
    scale: Number | None = None
    offset: Number | None = None
    wide_dtype: str | None = None
    """Dtype of the arithmetic where it is wider than `dtype`; None: the arithmetic is in `dtype`."""
    _written: str = field(init=False, repr=False)
    """Factor and summand as text: zeros of either sign are equal, but what they make of elements is not."""

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
    def is_copy(self) -> bool:
        """Whether values pass unchanged but for their dtype."""
        return self.view is None and not self.has_arithmetic

    def seen_as(self, stored: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype that elements stored as `stored` are read as, byte order included."""
        return stored if self.view is None else np.dtype(self.view).newbyteorder(stored.byteorder)

    def __str__(self) -> str:
        steps = [f"as {np.dtype(self.view).name}"] if self.view else []
        steps += ["mask " + ", ".join(f"{m:g}" for m in self.mask)] if self.mask else []
        steps += [f"* {self.scale:g}"] if self.scale is not None else []
        steps += [f"+ {self.offset:g}"] if self.offset is not None else []
        steps += [f"rounded to {np.dtype(self.dtype).name}"] if self.wide_dtype else []
        return ", ".join(steps) or "none"


@lru_cache(maxsize=64)
def plain_cast(dtype: str) -> Cast:
    """Return the cast that keeps elements of a dtype as they are."""
    return Cast(dtype=dtype)


def parse_cast(attrs: Mapping[Any, Any], *, stored: np.dtype[Any], decoded: np.dtype[Any]) -> Cast | None:
    """Read the CF attributes, as stored, of a numeric variable; `decoded` is the dtype that xarray gives it.

    None if they ask for something that a cast cannot express; xarray decodes such a variable itself.
    """
    view = None
    if (stored.kind, attrs.get("_Unsigned")) in (("i", "true"), ("u", "false")):
        view = f"{'u' if stored.kind == 'i' else 'i'}{stored.itemsize}"
    is_swapped = view is not None and not stored.isnative  # xarray compares such data with a byte-swapped _FillValue
    is_lossy = stored.kind == "c" and decoded.kind != "c"  # xarray warns of what is lost, whenever it is read
    if is_swapped or is_lossy:
        return None
    try:
        mask = _mask_values(attrs, stored, view, decoded)
    except (TypeError, ValueError, OverflowError):  # text, or a number that no element can have
        return None
    scale, offset = _scalar(attrs.get("scale_factor")), _scalar(attrs.get("add_offset"))
    boolean = attrs.get("dtype") == "bool"
    is_packed = bool(mask) or scale is not None or offset is not None
    if is_packed and decoded.kind not in "fc":
        return None
    if boolean and (view or is_packed):
        return None
    if not all(n is None or isinstance(n, int | float | complex) for n in (*mask, scale, offset)):
        return None
    return Cast(dtype=decoded.str, view=view, mask=mask, scale=scale, offset=offset)


def in_float32(cast: Cast) -> Cast:
    """Return a cast whose results are float32 where they would be float64.

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
    """Collect the values that mean "missing" and that an element of the result can have."""
    arrays = (np.ravel(attrs.get(name, [])) for name in ("missing_value", "_FillValue"))
    values, fill = (list(array[~np.isnan(array)]) for array in arrays)
    if view is not None and len(fill) == 1:
        # xarray reinterprets _FillValue, and only that, together with the data.
        fill = list(np.asarray(fill).astype(stored).view(view))
    return tuple(sorted({v.item() for v in (*values, *fill) if _is_exact(v, decoded)}, key=repr))


def _is_exact(value: np.generic, decoded: np.dtype[Any]) -> bool:
    """Whether `value`, which xarray compares in the wider of the two dtypes, can equal an element at all."""
    wider = np.result_type(decoded, value.dtype)
    return bool(decoded.type(value).astype(wider) == value.astype(wider))


def _scalar(value: Any) -> Any:
    return value if value is None else np.asarray(value).item()


def cast_array(cast: Cast, src: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `src`, cast: a new array, or `src` itself where there is nothing to do."""
    if cast.is_copy and src.dtype == np.dtype(cast.dtype):
        return src
    values = np.empty(src.shape, cast.arithmetic_dtype)
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
    return values.astype(cast.dtype, copy=False)
