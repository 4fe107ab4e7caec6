"""Codecs that change elements rather than bytes, as frozen data: a class for each codec.

References
----------
numcodecs; the registered Zarr extensions ``scale_offset`` and ``cast_value``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

Rounding = Literal["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]
OutOfRange = Literal["clamp", "wrap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementSpec:
    """Base class of codecs that encode the elements of a chunk to elements, perhaps of another dtype."""

    decoded: str
    """Dtype of decoded elements as NumPy writes it, with byte order, such as ``">f4"``."""
    encoded: str
    """Dtype of encoded elements."""

    def _named(self, name: str) -> str:
        """Return the name of the codec with its dtypes, for messages."""
        decoded, encoded = np.dtype(self.decoded).name, np.dtype(self.encoded).name
        return f"{name}({decoded})" if decoded == encoded else f"{name}({decoded} as {encoded})"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsTypeSpec(ElementSpec):
    """Elements converted by NumPy's ``astype`` (numcodecs)."""

    name: Literal["astype", "quantize"] = "astype"

    def __str__(self) -> str:
        return self._named(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSpec(ElementSpec):
    """The first element, then the differences between neighbours (numcodecs)."""

    def __str__(self) -> str:
        return self._named("delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledSpec(ElementSpec):
    """Base class of codecs that decode to ``encoded / scale + offset``."""

    scale: float
    """Divisor of encoded elements. It may be an int."""
    offset: float
    """Number that is added. It may be an int."""
    _written: str = field(init=False, repr=False)
    """Scale and offset as text, so that codecs with 0.0 and -0.0 are unequal: their results differ."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_written", f"{self.scale!r} {self.offset!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedScaleOffsetSpec(ScaledSpec):
    """NumPy divides and adds, with scale and offset as Python numbers, in the dtype that it chooses (numcodecs)."""

    def __str__(self) -> str:
        return self._named("fixedscaleoffset")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackBitsSpec(ElementSpec):
    """A byte with the number of unused bits, then eight booleans a byte, from the highest bit down (numcodecs)."""

    def __str__(self) -> str:
        return "packbits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOffsetSpec(ScaledSpec):
    """The arithmetic stays in one dtype, which holds scale and offset exactly (Zarr extension).

    Encoded integers must be divisible by `scale`.
    """

    def __str__(self) -> str:
        return f"scale_offset(scale={self.scale}, offset={self.offset})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CastValueSpec(ElementSpec):
    """Elements converted by value, with rules for rounding and overflow (Zarr extension)."""

    rounding: Rounding
    out_of_range: OutOfRange | None
    """Rule for numbers that do not fit the dtype; None if such a number is an error."""
    scalar_map: tuple[tuple[str, str], ...]
    """Pairs of an encoded number and the number that it decodes to, before other rules. As text, since NaN is unequal
    to itself."""

    def __str__(self) -> str:
        return self._named("cast_value")

    @property
    def numbers(self) -> dict[float, float]:
        """The scalar map with numbers instead of text: of type int or float, according to the dtypes."""
        key_type = float if np.dtype(self.encoded).kind == "f" else int
        value_type = float if np.dtype(self.decoded).kind == "f" else int
        return {key_type(key): value_type(value) for key, value in self.scalar_map}


AnyElementSpec = AsTypeSpec | CastValueSpec | DeltaSpec | FixedScaleOffsetSpec | PackBitsSpec | ScaleOffsetSpec
"""The classes of codecs of elements, for `complete_table`; `ElementSpec` is their base class."""
