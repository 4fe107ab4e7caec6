"""`NativeStream`, a CUDA stream for CuPy and for RMM, and `StreamOwner`, which destroys it in its own context."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import cupy
from rmm.pylibrmm.stream import Stream as RmmStream

from xarray_gpuzarr.cuda.contexts import in_context
from xarray_gpuzarr.cuda.failures import FAILURES


class NativeStream:
    """One CUDA stream, as an object of CuPy and as one of RMM. Both objects keep the stream alive.

    Parameters
    ----------
    stream : cupy.cuda.Stream
        The stream.
    owner : StreamOwner, optional
        Destroys the stream after its last use. None if the library that made the stream does so.
    """

    def __init__(self, stream: Any, owner: StreamOwner | None = None) -> None:
        self.for_cupy = stream
        self.for_rmm = RmmStream(stream)
        self._owner = owner

    @property
    def handle(self) -> int:
        """The ``cudaStream_t`` as an integer."""
        return int(self.for_cupy.ptr)


class StreamOwner:
    """Holds the last reference to a CuPy stream, and drops it in the context that the stream was made in.

    It may be garbage collected on any thread.
    """

    def __init__(self, stream: Any) -> None:
        self._streams = [stream]  # a list, so that the reference can be dropped inside the context
        self._context = cupy.cuda.driver.ctxGetCurrent()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with suppress(*FAILURES), in_context(self._context):
                self._streams.clear()
