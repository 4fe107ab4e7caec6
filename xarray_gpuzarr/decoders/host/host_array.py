"""Properties that all reads of one array by the host decoder share, worked out once."""

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
    """One array, and the cast of its elements; `loops` are the compiled ones, where there are any."""

    def __init__(self, spec: ArraySpec, cast: Cast, loops: Loops | None) -> None:
        self.spec, self.cast, self.loops = spec, cast, loops
        self.stored_dtype, self.dtype = spec.numpy_dtype, np.dtype(cast.dtype)
        self.chunk_nbytes, self.chunk_shape = spec.chunk_nbytes, spec.grid.chunk_shape
        self.strides = spec.chunk_strides
        """Strides of the elements of a decoded chunk along the axes of the array, in bytes."""
        self.codec = None if spec.codecs.other else chunk_codec(spec.codecs, self.chunk_nbytes)
        self.is_raw = self.codec is not None and self.codec.raw
        """Whether chunks are stored as they are."""
        self.is_same = cast.is_copy and self.stored_dtype == self.dtype
        """Whether the elements of the result are those that are stored."""
        in_order = spec.axes == tuple(range(spec.grid.ndim))
        self.may_be_direct = self.is_same and in_order and self.codec is not None
        """Whether Python may decode chunks straight into the output."""
        self.program = None if loops is None else native_program(spec.codecs, spec.chunk_nbytes, spec.numpy_dtype, cast)
        """Program of the compiled loops; None where there are none, or they do not know a codec."""
        self.placed_strides = () if self.program is None else self.program.strides(spec)
        """As `strides`, of the elements that the loops place."""
        self.kept_nbytes = spec.chunk_nbytes if self.program is None else self.program.struct.chunk_nbytes
        """Bytes of a chunk as `chunk_cache` keeps it: as the loops place it, without them as it is decoded."""
        self.kept_form = None if self.program is None else self.program.placed.str
        """Tells chunks that are kept for the loops from others."""
        self.decodes = "all" if self.program is None else self.program.decodes
        """Part of a chunk that is decoded if a part is wanted, see `NativeProgram`."""
        self.rate = decoded_rate(spec.codecs)
        """Bytes that a thread decodes in a second."""
        is_view = self.codec is not None and self.codec.is_view
        self.is_copied = is_view and (self.program is None or self.program.is_copied)
        """Whether chunks are neither compressed nor changed."""

    @cached_property
    def fill(self) -> Array:
        """The fill value as it appears in the output, shape (1,)."""
        with np.errstate(all="ignore"):  # there may be no missing chunk
            return cast_array(self.cast, np.asarray([self.spec.fill_value]))

    def elements(self, decoded: memoryview | Array) -> Array:
        """View the decoded bytes of a chunk as an array of the chunk's shape."""
        return np.ndarray(self.chunk_shape, self.stored_dtype, decoded, strides=self.strides)


host_array = lru_cache(maxsize=128)(HostArray)
