"""Operations of a kernel on one element on its way to the result, as data, and how they are compiled.

Pure NumPy. `launch` packs it for the kernels; ``kernels/cast.cuh`` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

UNIT_NBYTES = (1, 2, 4, 8, 16)
"""Widths that the copying kernels are compiled for."""

REAL_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
"""Dtypes, as ``cast.cuh`` names them, that the casting kernels are compiled for, both stored and as results."""

Defines = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementCast:
    """Turn a stored element into an element of the result.

    In this order, each step rounded to `work`: swap bytes, convert, replace masked values by NaN, multiply, add. Then
    convert to `result`.
    """

    stored: np.dtype[Any]
    """Dtype of decoded elements, with their byte order; an unsigned view has been applied to it."""
    result: np.dtype[Any]
    """Native dtype of the output."""
    mask: tuple[complex, ...] = ()
    """Values, compared after conversion to `work`, that become NaN."""
    scale: complex | None = None
    offset: complex | None = None
    wide: np.dtype[Any] | None = None
    """Native dtype of the arithmetic where it is wider than `result`; None: the arithmetic is in `result`."""

    def __post_init__(self) -> None:
        why = can_cast(self.stored, self.result, has_arithmetic=self.has_arithmetic)
        if why is not None:
            raise ValueError(f"no kernel turns {self.stored} into {self.result}: {why}")

    @property
    def work(self) -> np.dtype[Any]:
        """Native dtype in which values are compared with masks, multiplied and added."""
        return self.wide or self.result

    @property
    def has_arithmetic(self) -> bool:
        """Whether values change, beyond their dtype."""
        return bool(self.mask) or self.scale is not None or self.offset is not None

    @property
    def is_copy(self) -> bool:
        """Whether bytes pass as they are, but for their order."""
        return not self.has_arithmetic and _same_bytes(self.stored, self.result)

    @property
    def swap_nbytes(self) -> int:
        """Bytes that are reversed together; 0 if the stored byte order is the machine's."""
        if self.stored.isnative:
            return 0
        return self.stored.itemsize // 2 if self.stored.kind == "c" else self.stored.itemsize

    def defines(self, unit_nbytes: int) -> Defines:
        """Return the macros that compile a kernel for this cast; `unit_nbytes` counts for copies only."""
        if self.is_copy:
            return _copy_defines(unit_nbytes)
        return _cast_defines(self.stored, self.result, self.wide)

    def mask_words(self) -> Words:
        """Return the mask values as elements of `work`, padded to whole words."""
        return pad_words(np.array(self.mask, self.work))

    def words(self, mask_at: int) -> list[int]:
        """Return the fields of ``struct Cast``; `mask_at` is the place of `mask_words`."""
        scale, offset = self.scale, self.offset
        constants = [0 if c is None else int(pad_words(np.array([c], self.work))[0]) for c in (scale, offset)]
        return [self.swap_nbytes, len(self.mask), mask_at, scale is not None, offset is not None, *constants]


def can_cast(stored: np.dtype[Any], result: np.dtype[Any], *, has_arithmetic: bool) -> str | None:
    """Return why no kernel can do a cast, in words, or None; `has_arithmetic`: values are masked, scaled or offset."""
    if not result.isnative:
        return f"results are written in the byte order of the machine, not as {result.str}"
    if not has_arithmetic and _same_bytes(stored, result):
        return None
    for dtype in (stored, result):
        if dtype_name(dtype) not in REAL_DTYPES:
            return f"elements of {dtype} can only be copied"
    if has_arithmetic and result.kind != "f":
        return f"masks and arithmetic need a floating result, not {result}"
    return None


def cast_kernels() -> list[Defines]:
    """Return the macros of every element that kernels are compiled for."""
    copies = [_copy_defines(n) for n in UNIT_NBYTES]
    dtypes = [np.dtype(name) for name in REAL_DTYPES]
    casts = [(s, r) for s in dtypes for r in dtypes if r.kind == "f" or not _same_bytes(s, r)]
    rounding = [_cast_defines(s, np.dtype("f4"), np.dtype("f8")) for s in dtypes]
    return copies + [_cast_defines(s, r, None) for s, r in casts] + rounding


def usual_casts() -> list[Defines]:
    """Return the macros of the elements that most stores have: copied, masked, or packed in small integers."""
    pairs = [("f4", "f4"), ("f8", "f8"), *((s, r) for s in ("i2", "u1") for r in ("f4", "f8"))]
    return [_copy_defines(n) for n in UNIT_NBYTES] + [(("STORED", s), ("RESULT", r)) for s, r in pairs]


def pad_words(values: npt.NDArray[Any]) -> Words:
    """Return the bytes of a flat array as words, with zeros at the end."""
    data = values.tobytes()
    return np.frombuffer(data + bytes(-len(data) % 8), np.uint64)


def _same_bytes(stored: np.dtype[Any], result: np.dtype[Any]) -> bool:
    """Whether a copy of the bytes is a cast, up to byte order."""
    if stored.kind in "iu" and result.kind in "iu":
        return stored.itemsize == result.itemsize
    return stored.newbyteorder("=") == result and result.kind in "biufcmM" and result.itemsize in UNIT_NBYTES


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a dtype as the kernels name it, without its byte order."""
    return f"{dtype.kind}{dtype.itemsize}"


def _cast_defines(stored: np.dtype[Any], result: np.dtype[Any], wide: np.dtype[Any] | None) -> Defines:
    defines = (("STORED", dtype_name(stored)), ("RESULT", dtype_name(result)))
    return defines if wide is None else (*defines, ("WORK", dtype_name(wide)))


def _copy_defines(unit_nbytes: int) -> Defines:
    return (("STORED", f"u{unit_nbytes}"), ("RESULT", f"u{unit_nbytes}"), ("COPY", "1"))
