"""Properties of an array that all reads by the host decoder share.

`host_array` computes them once for each array and cast.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.chunk_codec import chunk_codec
from xarray_gpuzarr.decoders.host.compressors import decoded_rate
from xarray_gpuzarr.decoders.host.native_program import native_program
from xarray_gpuzarr.native.library import Loops
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast, cast_array

Array = npt.NDArray[Any]


class HostArray:
    """An array, the cast of its elements, and how the host decodes its chunks.

    Parameters
    ----------
    spec : ArraySpec
        Metadata of the array.
    cast : Cast
        Conversion of stored elements to those of the result.
    loops : Loops or None
        The compiled loops; None to decode in Python alone.
    """

    def __init__(self, spec: ArraySpec, cast: Cast, loops: Loops | None) -> None:
        self.spec = spec
        self.cast = cast
        self.loops = loops
        self.stored_dtype = spec.numpy_dtype
        self.dtype = np.dtype(cast.dtype)
        """Dtype of the result."""
        self.chunk_nbytes = spec.chunk_nbytes
        self.chunk_shape = spec.grid.chunk_shape
        self.strides = spec.chunk_strides
        """Strides of the elements of a decoded chunk along the axes of the array, in bytes."""
        self.codec = None if spec.codecs.other else chunk_codec(spec.codecs, self.chunk_nbytes)
        """Decoder of chunks in Python; None if only zarr-python knows a codec."""
        self.is_raw = self.codec is not None and self.codec.is_raw
        """Whether chunks are stored without any codec."""
        is_cast = not cast.only_converts or self.stored_dtype != self.dtype
        is_transposed = spec.axes != tuple(range(spec.grid.ndim))
        self.may_be_direct = not is_cast and not is_transposed and self.codec is not None
        """Whether Python may decode chunks straight into the output."""
        self.program = None if loops is None else native_program(spec.codecs, spec.chunk_nbytes, spec.numpy_dtype, cast)
        """Program of the compiled loops; None without loops, or if they do not know a codec."""
        self.placed_strides = () if self.program is None else self.program.strides(spec)
        """Strides in bytes of the elements that the loops place, which may have another dtype than decoded ones. Empty
        without a program."""
        self.kept_nbytes = spec.chunk_nbytes if self.program is None else self.program.struct.chunk_nbytes
        """Bytes of a chunk in `chunk_cache`: of the elements that the loops place; without a program, of the decoded
        chunk."""
        self.kept_form = None if self.program is None else self.program.placed_dtype.str
        """Dtype of the elements that the loops place; None without a program. It is a part of the keys in
        `chunk_cache`, so that chunks in different forms have different keys."""
        self.partial_decoding = "all" if self.program is None else self.program.decodes
        """How much of a chunk is decoded if only some of its elements are requested: "all" of it, all "up to" the last
        requested element, or the "blocks" that hold requested elements."""
        self.rate = decoded_rate(spec.codecs)
        """Approximate number of bytes that a thread decodes in a second."""
        is_view = self.codec is not None and self.codec.is_view
        self.is_copied = is_view and (self.program is None or self.program.is_copied)
        """Whether placing a chunk is a mere copy: it has neither a compressor nor a filter. With a program, it must
        have no checksum or conversion of elements either, since the loops check and convert a chunk while they place
        it."""

    @cached_property
    def fill(self) -> Array:
        """Fill value in the output, shape (1,), dtype `dtype`."""
        with np.errstate(all="ignore"):  # a fill value that does not fit gives no warning
            return cast_array(self.cast, np.asarray([self.spec.fill_value]))

    def elements(self, decoded: memoryview | Array) -> Array:
        """View the decoded bytes of a chunk as an array of the chunk's shape."""
        return np.ndarray(self.chunk_shape, self.stored_dtype, decoded, strides=self.strides)


host_array = lru_cache(maxsize=128)(HostArray)
"""`HostArray` of the latest arrays."""
