"""Description of how elements are converted on their way to the result, and the macros that compile kernels for it.

Pure NumPy. `placers` packs an `ElementCast` into the kernels' parameters, and ``kernels/cast.cuh`` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
"""Parameters of a kernel, as 64-bit words in host memory."""

UNIT_LENGTHS = (1, 2, 4, 8, 16)
"""Lengths in bytes of units, the elements that the copying kernels are compiled for. Several stored elements may be
copied as one unit."""
MAX_UNIT_NBYTES = max(UNIT_LENGTHS)
"""Length in bytes of the longest unit."""

REAL_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
"""Stored and result dtypes, as ``cast.cuh`` names them, that the casting kernels are compiled for."""

Defines = tuple[tuple[str, str], ...]
"""Preprocessor macros and their values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementCast:
    """Conversion of a stored element to an element of the result.

    The steps are: swap bytes, convert to `work`, replace masked values by NaN, multiply, add, convert to `result`. Each
    step is rounded to `work`.

    Raises
    ------
    ValueError
        If no kernel can do it; see `why_no_cast`.
    """

    stored: np.dtype[Any]
    """Dtype of decoded elements, with their byte order. The CF attribute ``_Unsigned`` has been applied."""
    result: np.dtype[Any]
    """Native dtype of the output."""
    mask: tuple[complex, ...] = ()
    """Values that become NaN. They are compared after conversion to `work`."""
    scale: complex | None = None
    """Factor; None for none."""
    offset: complex | None = None
    """Summand; None for none."""
    wide: np.dtype[Any] | None = None
    """Native dtype of the arithmetic if this is wider than `result`; None for arithmetic in `result`."""

    def __post_init__(self) -> None:
        why = why_no_cast(self.stored, self.result, has_arithmetic=self.has_arithmetic)
        if why is not None:
            raise ValueError(f"no kernel turns {self.stored} into {self.result}: {why}")

    @property
    def work(self) -> np.dtype[Any]:
        """Native dtype in which values are compared with masks, multiplied and added."""
        return self.wide or self.result

    @property
    def has_arithmetic(self) -> bool:
        """Whether values are masked, multiplied or added to, not only converted."""
        return bool(self.mask) or self.scale is not None or self.offset is not None

    @property
    def is_copy(self) -> bool:
        """Whether elements are only copied, with their bytes swapped if necessary."""
        return not self.has_arithmetic and _same_bytes(self.stored, self.result)

    @property
    def swap_nbytes(self) -> int:
        """Number of bytes that are reversed together; 0 if the stored byte order is the machine's."""
        if self.stored.isnative:
            return 0
        return self.stored.itemsize // 2 if self.stored.kind == "c" else self.stored.itemsize

    def defines(self, unit_nbytes: int) -> Defines:
        """Return the macros that compile a kernel for this cast; a copy moves `unit_nbytes` bytes at once."""
        if self.is_copy:
            return _copy_defines(unit_nbytes)
        return _cast_defines(self.stored, self.result, self.wide)

    def mask_words(self) -> Words:
        """Return the mask values as elements of `work`, padded to whole words."""
        return pad_words(np.array(self.mask, self.work))

    def words(self, mask_offset: int) -> list[int]:
        """Return the fields of ``struct Cast`` except the last one, `missing`.

        `mask_offset` is where `mask_words` begin in the kernel's table of parameters, in bytes.
        """
        has_scale, has_offset = self.scale is not None, self.offset is not None
        scale, offset = self._constant_word(self.scale), self._constant_word(self.offset)
        return [self.swap_nbytes, len(self.mask), mask_offset, has_scale, has_offset, scale, offset]

    def _constant_word(self, number: complex | None) -> int:
        """Return a number as an element of `work` in the low bytes of a word; 0 for None."""
        return 0 if number is None else int(pad_words(np.array([number], self.work))[0])


def why_no_cast(stored: np.dtype[Any], result: np.dtype[Any], *, has_arithmetic: bool) -> str | None:
    """Return why no kernel can do a cast, in words; None if one can.

    `has_arithmetic` tells whether values are masked, multiplied or added to.
    """
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


def all_cast_defines() -> list[Defines]:
    """Return the macros of every variant of a kernel that places elements."""
    copies = [_copy_defines(n) for n in UNIT_LENGTHS]
    dtypes = [np.dtype(name) for name in REAL_DTYPES]
    pairs = [(stored, result) for stored in dtypes for result in dtypes]
    casts = [
        _cast_defines(stored, result, None)
        for stored, result in pairs
        # A cast that keeps the bytes is one of `copies`, unless it masks or scales, which only floating results allow.
        if result.kind == "f" or not _same_bytes(stored, result)
    ]
    # The only wide arithmetic that reads ask for is that of float64 for results of float32.
    wide = [_cast_defines(stored, np.dtype("f4"), np.dtype("f8")) for stored in dtypes]
    return copies + casts + wide


def usual_cast_defines() -> list[Defines]:
    """Return the macros of the usual variants: copies, masked floating numbers, and unpacked small integers."""
    copies = [_copy_defines(n) for n in UNIT_LENGTHS]
    pairs = [("f4", "f4"), ("f8", "f8"), ("i2", "f4"), ("i2", "f8"), ("u1", "f4"), ("u1", "f8")]
    return copies + [(("STORED", stored), ("RESULT", result)) for stored, result in pairs]


def pad_words(values: npt.NDArray[Any]) -> Words:
    """Return the bytes of a flat array as words, padded with zeros to whole words."""
    data = values.tobytes()
    return np.frombuffer(data + bytes(-len(data) % 8), np.uint64)


def _same_bytes(stored: np.dtype[Any], result: np.dtype[Any]) -> bool:
    """Whether a conversion keeps the bytes, apart from their order, and the copying kernels take the dtypes."""
    if stored.kind in "iu" and result.kind in "iu":
        return stored.itemsize == result.itemsize
    return stored.newbyteorder("=") == result and result.kind in "biufcmM" and result.itemsize in UNIT_LENGTHS


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name that the kernels have for a dtype, without its byte order, such as ``"f4"``."""
    return f"{dtype.kind}{dtype.itemsize}"


def _cast_defines(stored: np.dtype[Any], result: np.dtype[Any], wide: np.dtype[Any] | None) -> Defines:
    defines = (("STORED", dtype_name(stored)), ("RESULT", dtype_name(result)))
    return defines if wide is None else (*defines, ("WORK", dtype_name(wide)))


def _copy_defines(unit_nbytes: int) -> Defines:
    return (("STORED", f"u{unit_nbytes}"), ("RESULT", f"u{unit_nbytes}"), ("COPY", "1"))
