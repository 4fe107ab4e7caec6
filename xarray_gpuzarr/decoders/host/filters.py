"""Filters on the host: `unshuffle` for bytes, `decode_elements` for codecs of elements.

The NumPy operations are those of numcodecs and zarr-python, in the same order, so results are equal to the bit. They
are written straight to memory of the caller, to which numcodecs would copy them.

References
----------
numcodecs, ``decode`` of each codec; zarr-python, ``codecs/scale_offset.py`` and ``codecs/cast_value.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.process.host_memory import buffer
from xarray_gpuzarr.stored.codecs import ShuffleSpec, StageSpec, complete_table, encoded_nbytes
from xarray_gpuzarr.stored.element_codecs import (
    AnyElementSpec,
    AsTypeSpec,
    CastValueSpec,
    DeltaSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    PackBitsSpec,
    ScaleOffsetSpec,
)

Array = npt.NDArray[Any]


def unshuffle(spec: ShuffleSpec, src: memoryview, dst: memoryview) -> None:
    """Write shuffled bytes to `dst` in their original order.

    Raises `FrameError` if `src` is not a whole number of elements, or `dst` has another length.
    """
    nbytes = len(src)
    if nbytes % spec.elementsize:
        raise FrameError(f"{nbytes} bytes are no whole number of elements of {spec.elementsize} bytes")
    if nbytes != len(dst):
        raise FrameError(f"{nbytes} bytes")
    numcodecs.Shuffle(spec.elementsize).decode(src, out=np.frombuffer(dst, np.uint8))


def decoded_nbytes(spec: StageSpec, nbytes: int) -> int:
    """Return the length that `nbytes` encoded bytes are decoded to.

    This is for a stage between two compressors, where lengths differ from chunk to chunk. Raises `FrameError` if the
    bytes are not a whole number of elements.
    """
    if not isinstance(spec, ElementSpec):
        return nbytes
    itemsize = np.dtype(spec.encoded).itemsize
    n_elements, remainder = divmod(nbytes, itemsize)
    if remainder:
        raise FrameError(f"{nbytes} bytes are no whole number of elements of {itemsize} bytes")
    return n_elements * np.dtype(spec.decoded).itemsize


def decode_elements(spec: ElementSpec, src: memoryview, dst: memoryview) -> None:
    """Decode the elements of one chunk.

    Parameters
    ----------
    spec : ElementSpec
        The codec.
    src : memoryview of uint8, host memory
        Encoded elements, of dtype `spec.encoded`. They are not modified.
    dst : memoryview of uint8, host memory
        Receives the decoded elements, of dtype `spec.decoded`.

    Raises
    ------
    FrameError
        If `src` and `dst` have different numbers of elements, or an element has no decoded value.
    """
    if len(src) != encoded_nbytes(spec, len(dst)):
        raise FrameError(f"{len(src)} encoded bytes")
    with np.errstate(all="ignore"):
        _ELEMENTS[type(spec)](spec, np.frombuffer(src, spec.encoded), np.frombuffer(dst, spec.decoded))


def _delta(_spec: DeltaSpec, encoded: Array, decoded: Array) -> None:
    np.cumsum(encoded, out=decoded)


def _fixed_scale_offset(spec: FixedScaleOffsetSpec, encoded: Array, decoded: Array) -> None:
    quotient_dtype = np.true_divide(encoded[:0], spec.scale).dtype
    if decoded.dtype == quotient_dtype:
        quotient = decoded
    else:
        quotient = buffer("quotient", encoded.size * quotient_dtype.itemsize).view(quotient_dtype)
    np.true_divide(encoded, spec.scale, out=quotient)
    np.add(quotient, spec.offset, out=decoded, casting="unsafe")


def _packbits(_spec: PackBitsSpec, encoded: Array, decoded: Array) -> None:
    if encoded[0] != -len(decoded) % 8:  # the first byte is the number of unused bits in the last one
        raise FrameError(f"{encoded[0]} unused bits")
    decoded[:] = np.unpackbits(encoded[1:], count=len(decoded))


def _scale_offset(spec: ScaleOffsetSpec, encoded: Array, decoded: Array) -> None:
    dtype = decoded.dtype
    scale, offset = dtype.type(spec.scale), dtype.type(spec.offset)
    if dtype.kind == "f":
        np.true_divide(encoded, scale, out=decoded)
        np.add(decoded, offset, out=decoded)
        return
    if (encoded % scale).any():
        raise FrameError(f"an element is no multiple of {spec.scale}")
    # The lowest number of an integer dtype, divided by -1, exceeds the highest one, so this is computed in int64.
    quotient = encoded.astype(np.int64) // -1 if spec.scale == -1 else encoded // scale
    lowest = int(quotient.min()) + int(spec.offset)
    highest = int(quotient.max()) + int(spec.offset)
    info = np.iinfo(dtype)
    # Results of dtype int64 are not checked: as in zarr-python, they wrap.
    if dtype != np.int64 and not info.min <= lowest <= highest <= info.max:
        raise FrameError(f"an element is outside of {dtype}")
    np.add(quotient, quotient.dtype.type(spec.offset), out=decoded, casting="unsafe")


def _cast_value(spec: CastValueSpec, encoded: Array, decoded: Array) -> None:
    from cast_value_rs import cast_array_into  # noqa: PLC0415  # zarr-python requires it for such arrays

    cast_array_into(
        encoded.astype(encoded.dtype.newbyteorder("="), copy=False),
        decoded,
        rounding_mode=spec.rounding,
        out_of_range_mode=spec.out_of_range,
        scalar_map_entries=spec.numbers or None,
    )


_ELEMENTS: dict[type, Callable[[Any, Array, Array], None]] = complete_table(
    AnyElementSpec,
    {
        AsTypeSpec: lambda _, encoded, decoded: np.copyto(decoded, encoded, casting="unsafe"),
        CastValueSpec: _cast_value,
        DeltaSpec: _delta,
        FixedScaleOffsetSpec: _fixed_scale_offset,
        PackBitsSpec: _packbits,
        ScaleOffsetSpec: _scale_offset,
    },
)
"""For each codec of elements, the function that decodes them."""
