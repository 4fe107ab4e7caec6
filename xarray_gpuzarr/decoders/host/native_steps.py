"""Steps of the compiled loops: operations on elements while they are placed in the output.

Filters that decode element by element and the cast of the result become steps (`steps_of_filter`, `steps_of_cast`),
which `Steps` writes to memory in the form that the loops take. Functions raise `NotKnownError` where the loops have no
operation that gives NumPy's result to the bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from xarray_gpuzarr.native.structs import StepsStruct, StepStruct
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.element_codecs import (
    AsTypeSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    ScaleOffsetSpec,
)

DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
"""Names of the dtypes that the loops know, in the order of `enum dtype` in `conversions.h`."""
_CONVERT, _MASK, _MULTIPLY, _DIVIDE, _ADD = range(5)
"""Kinds of steps: `enum kind` in `steps.h`."""
_MOST_MASKED = 4
"""Values that one step masks at most; `MOST_MASKED` in `steps.h`."""
Step = tuple[int, str, str | None, tuple[Any, ...]]
"""Kind, dtype of the operand, dtype of the result (None if it stays the same), and the numbers of the operation."""


class NotKnownError(Exception):
    """The loops do not know a codec, a dtype or a conversion."""


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name that the loops have for a dtype, whatever its byte order. Raises `NotKnownError`."""
    name = f"{dtype.kind}{dtype.itemsize}"
    if name not in DTYPES:
        raise NotKnownError
    return name


def swapped_nbytes(dtype: np.dtype[Any]) -> int:
    """Return how many bytes are reversed together in an element; 0 if the dtype has this machine's byte order."""
    if dtype.isnative or dtype.itemsize == 1:
        return 0
    if dtype.kind == "c":
        return dtype.itemsize // 2
    return dtype.itemsize


def conversion(before: str, after: str) -> list[Step]:
    """Return the steps that convert one dtype to another as NumPy does, which may take a third dtype in between.

    Raises `NotKnownError` for floats to integers: where a value does not fit, C leaves the result undefined, and
    NumPy's differs from machine to machine. It also does for complex numbers to anything else.
    """
    are_both_integers = before[0] in "iu" and after[0] in "iu"
    if before == after or (are_both_integers and before[1:] == after[1:]):  # integers of one size keep their bits
        return []
    # The loops convert to float16 from other floats only, and to a complex dtype from another one or from the float of
    # its parts.
    between = {"f2": "f4", "c8": "f4", "c16": "f8"}.get(after)
    is_direct = before in (between, "c8", "c16") or (before[0] == "f" and after == "f2")
    dtypes = [before, after] if is_direct or between is None else [before, between, after]
    steps: list[Step] = []
    for source, result in pairwise(dtypes):
        truncates = source[0] in "fc" and result[0] in "iu"
        if truncates or (source[0] == "c" and result[0] != "c"):
            raise NotKnownError
        steps.append((_CONVERT, source, result, ()))
    return steps


def _arithmetic(kind: int, dtype: str, number: Any) -> Step:
    """Return the step of an operation with one number.

    Raises `NotKnownError` for what the loops do not compute: operations on integers or with NaN, and on complex
    elements all but additions.
    """
    is_nan = number != number  # noqa: PLR0124  # `math.isnan` takes no complex numbers
    if dtype[0] not in "fc" or (dtype[0] == "c" and kind != _ADD) or is_nan:
        raise NotKnownError
    if isinstance(number, complex) and dtype[0] != "c":
        raise NotKnownError
    return kind, dtype, None, (number,)


def steps_of_filter(spec: ElementSpec) -> list[Step]:
    """Return the steps that decode a filter element by element. Raises `NotKnownError`."""
    encoded, decoded = np.dtype(spec.encoded), np.dtype(spec.decoded)
    before, after = dtype_name(encoded), dtype_name(decoded)
    if isinstance(spec, AsTypeSpec):
        return conversion(before, after)
    if isinstance(spec, ScaleOffsetSpec) and after[0] == "f" and before == after:
        return [_arithmetic(_DIVIDE, after, spec.scale), _arithmetic(_ADD, after, spec.offset)]
    if isinstance(spec, FixedScaleOffsetSpec):
        quotient = dtype_name(np.true_divide(np.zeros(0, encoded), spec.scale).dtype)
        shift = [_arithmetic(_DIVIDE, quotient, spec.scale), _arithmetic(_ADD, quotient, spec.offset)]
        return [*conversion(before, quotient), *shift, *conversion(quotient, after)]
    raise NotKnownError


def steps_of_cast(stored: np.dtype[Any], cast: Cast) -> list[Step]:
    """Return the steps that cast stored elements. Raises `NotKnownError`."""
    before = dtype_name(cast.viewed_dtype(stored))
    after = dtype_name(np.dtype(cast.arithmetic_dtype))
    steps = conversion(before, after)
    if cast.mask and after[0] not in "fc":  # the loops replace masked elements by NaN
        raise NotKnownError
    for start in range(0, len(cast.mask), _MOST_MASKED):
        steps.append((_MASK, after, None, cast.mask[start : start + _MOST_MASKED]))
    if cast.scale is not None:
        steps.append(_arithmetic(_MULTIPLY, after, cast.scale))
    if cast.offset is not None:
        steps.append(_arithmetic(_ADD, after, cast.offset))
    return steps + conversion(after, dtype_name(np.dtype(cast.dtype)))


class Steps:
    """Steps in a form that the loops take, and the memory that they lie in.

    Parameters
    ----------
    before, after : numpy.dtype
        Dtypes of the elements before the first and after the last step, in any byte order.
    steps : sequence of Step
        Operations on elements, in their order.
    """

    def __init__(self, before: np.dtype[Any], steps: Sequence[Step], after: np.dtype[Any]) -> None:
        structs = []
        for kind, dtype, result_dtype, numbers in steps:
            try:
                values = np.array(numbers, dtype).tobytes()
            except OverflowError as err:
                raise NotKnownError from err
            struct = StepStruct(
                kind=kind,
                dtype=DTYPES.index(dtype),
                to=DTYPES.index(result_dtype or dtype),
                n_values=len(numbers),
                values=values,
            )
            structs.append(struct)
        self._steps = (StepStruct * len(steps))(*structs)
        self.struct = StepsStruct(
            steps=ctypes.addressof(self._steps),
            n_steps=len(steps),
            in_itemsize=before.itemsize,
            out_itemsize=after.itemsize,
            in_swap=swapped_nbytes(before),
            out_swap=swapped_nbytes(after),
        )
        self.address = ctypes.addressof(self.struct)
        """Address of the `StepsStruct`."""


def sums_like_numpy(encoded: np.dtype[Any], decoded: np.dtype[Any]) -> bool:
    """Whether converting elements first and then adding them up gives the same sums as NumPy.

    NumPy adds up in the common dtype: int32 and float32 as float64, and rounds afterwards. Integers of any width wrap
    around in the same way.
    """
    is_summed = decoded.kind in "iu" or decoded.str[1:] in ("f4", "f8")
    common = np.result_type(encoded, decoded)
    return is_summed and (common == decoded or common.kind in "iu")
