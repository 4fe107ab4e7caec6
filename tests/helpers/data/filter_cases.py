"""Encoded elements for the tests of filters, and what numcodecs and zarr-python make of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from hypothesis import example, given
from hypothesis import strategies as st

from helpers.data.registered_filters import decode_scale_offset
from helpers.profiles import many

INTEGERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")
FLOATS = ("f2", "f4", "f8")


def noise(dtype: Any, n: int, seed: int = 0) -> npt.NDArray[Any]:
    """Random bits, every NaN among them; booleans are 0 or 1."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, n).astype(dtype)
    return np.frombuffer(rng.bytes(n * dtype.itemsize), dtype)


def by_numcodecs(codec: Any, encoded: npt.NDArray[Any]) -> bytes:
    """Decode with numcodecs."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return np.asarray(codec.decode(encoded)).tobytes()


@dataclass(frozen=True, kw_only=True)
class ScaledIntegers:
    """A chunk that the codec `scale_offset` has encoded."""

    encoded: npt.NDArray[Any]
    scale: Any
    offset: Any
    """Scalars of the same dtype."""

    @classmethod
    def of(cls, dtype: str, scale: int, offset: int, values: Sequence[int], are_multiples: bool) -> Self:
        """Take numbers modulo the range of a dtype; only multiples of the scale can be decoded."""
        scale, offset, *encoded = np.array([n % 2**64 for n in (scale, offset, *values)], "u8").astype(dtype)
        scale, encoded = scale or np.dtype(dtype).type(1), np.array(encoded, dtype)
        with np.errstate(over="ignore"):
            encoded = encoded // scale * scale if are_multiples else encoded
        return cls(encoded=encoded, scale=scale, offset=offset)

    def by_zarr(self) -> bytes | None:
        """Decode with zarr-python; None if it refuses."""
        try:
            with np.errstate(all="ignore"):
                return decode_scale_offset(self.encoded, self.offset, self.scale, scale_repr=self.scale).tobytes()
        except ValueError:
            return None


_NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([1, -1, 2, 3, -3, 10, 127, -128, 255])
_LISTS = st.lists(_NUMBERS, min_size=1, max_size=20)
_OVERFLOWS = [
    ("i1", -1, -5, [-128]),
    ("i1", -1, 0, [-128]),
    ("i8", -1, 0, [-(2**63)]),
    ("i8", 1, -1, [-(2**63)]),
    ("u8", 1, 1, [2**64 - 1]),
]


def any_scaled_integers(test: Callable[[ScaledIntegers], None]) -> Callable[[], None]:
    """Give a test many `ScaledIntegers`, those among them that overflow."""
    for overflow in _OVERFLOWS:
        test = example(ScaledIntegers.of(*overflow, True))(test)
    drawn = st.builds(ScaledIntegers.of, st.sampled_from(INTEGERS), _NUMBERS, _NUMBERS, _LISTS, st.booleans())
    return many(given(drawn)(test))
