"""A memory pool of the CUDA driver for reads alone, with settings that RMM's own resource for such a pool lacks.

References
----------
CUDA runtime API, "Stream Ordered Memory Allocator": ``cudaMemPoolCreate``, ``cudaMemPoolSetAttribute``.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any

import cupy
import rmm
from cuda.bindings import driver, runtime

from xarray_gpuzarr.cuda.contexts import in_context
from xarray_gpuzarr.cuda.failures import FAILURES
from xarray_gpuzarr.process.settings import numbers_from_environment

_KEPT_DIVISOR = 4
"""A pool keeps up to a quarter of the device's memory besides what is in use."""
_SETTINGS = ("pool_waits", "pool_kept_nbytes")
"""Environment settings for measurements. With `pool_waits` = 1, streams wait for others, as by CUDA's default.
`pool_kept_nbytes` is the number of bytes that a pool keeps, memory in use included."""


def private_pool(index: int, total_nbytes: int) -> PrivatePool:
    """Return a new pool of the calling thread's device, whose number is `index` and which has `total_nbytes` bytes."""
    properties = runtime.cudaMemPoolProps()
    properties.allocType = runtime.cudaMemAllocationType.cudaMemAllocationTypePinned
    properties.location.type = runtime.cudaMemLocationType.cudaMemLocationTypeDevice
    properties.location.id = index
    pool = PrivatePool(_checked("cudaMemPoolCreate", runtime.cudaMemPoolCreate(properties)))
    pool.set_up(total_nbytes // _KEPT_DIVISOR)
    return pool


class PrivatePool(rmm.mr.CudaAsyncViewMemoryResource):  # type: ignore[misc]  # RMM has no types here
    """A pool of the driver as a resource of RMM. The pool is destroyed with this object.

    By default, CUDA may give one stream memory that another stream has freed, and then makes the first one wait for the
    other's kernels. This pool does so only if there is no other memory left. It gives idle memory back to the device
    only above `kept_nbytes`. CUDA's threshold for that includes memory in use, so the threshold is moved whenever
    memory is allocated or freed.
    """

    _process = 0
    """Id of the process that made the pool; 0 until `__init__` has set what `__del__` needs."""

    def __init__(self, handle: Any) -> None:  # RMM's class takes `handle` in its `__cinit__`, and has no `__init__`
        self._handle = handle
        """The ``cudaMemPool_t``."""
        self._context = cupy.cuda.driver.ctxGetCurrent()
        self._process = os.getpid()
        self._waiting_lock = threading.Lock()
        """Held while one allocation may wait, so that no other thread ends this permission too early."""
        self._kept_nbytes = 0
        settings = numbers_from_environment(_SETTINGS, os.environ)
        self._waits = bool(settings.get("pool_waits"))
        """Whether every allocation may wait for other streams."""
        self._fixed_threshold = settings.get("pool_kept_nbytes")
        """CUDA's threshold in bytes if the environment sets it, otherwise None."""

    def set_up(self, kept_nbytes: int) -> None:
        """Set the attributes of the pool, so that it keeps `kept_nbytes` bytes besides those in use.

        If this fails, `__del__` destroys the pool.
        """
        self._kept_nbytes = kept_nbytes
        self._set_waiting(allowed=self._waits)
        self._update_threshold()

    def allocate(self, nbytes: int, stream: Any) -> int:
        """Return the address of new memory. `stream` waits for other streams only if no other memory is left."""
        try:
            address = super().allocate(nbytes, stream)
        except MemoryError:
            if self._waits:  # then the failed allocation was allowed to wait already
                raise
            with self._waiting_lock:
                self._set_waiting(allowed=True)
                try:
                    address = super().allocate(nbytes, stream)
                finally:
                    self._set_waiting(allowed=False)
        self._update_threshold()
        return int(address)

    def deallocate(self, address: int, nbytes: int, stream: Any) -> None:
        """Free memory once the work that `stream` has been given so far is done."""
        super().deallocate(address, nbytes, stream)
        self._update_threshold()

    def __del__(self) -> None:
        """Destroy the pool. CUDA keeps it until its last memory is freed."""
        if self._process == os.getpid() and not sys.is_finalizing():
            with suppress(*FAILURES), in_context(self._context):
                _checked("cudaMemPoolDestroy", runtime.cudaMemPoolDestroy(self._handle))

    def _set_waiting(self, *, allowed: bool) -> None:
        """Set whether an allocation may make its stream wait for another one that has freed the memory."""
        self._set("cudaMemPoolReuseAllowInternalDependencies", int(allowed))

    def _update_threshold(self) -> None:
        """Set CUDA's threshold so that the pool keeps `kept_nbytes` bytes besides those that are in use now.

        The setting `pool_kept_nbytes`, if it is given, is the threshold itself.
        """
        threshold = self._fixed_threshold
        if threshold is None:
            attribute = runtime.cudaMemPoolAttr.cudaMemPoolAttrUsedMemCurrent
            in_use = _checked("cudaMemPoolGetAttribute", runtime.cudaMemPoolGetAttribute(self._handle, attribute))
            threshold = int(in_use) + self._kept_nbytes
        self._set("cudaMemPoolAttrReleaseThreshold", driver.cuuint64_t(threshold))

    def _set(self, name: str, value: Any) -> None:
        attribute = getattr(runtime.cudaMemPoolAttr, name)
        _checked(f"cudaMemPoolSetAttribute of {name}", runtime.cudaMemPoolSetAttribute(self._handle, attribute, value))


def _checked(call: str, answer: tuple[Any, ...]) -> Any:
    """Return the value in the answer of a CUDA runtime call, None if there is none.

    Raises `RuntimeError`, as CuPy does, if the call failed.
    """
    error, *values = answer
    if error != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(f"{error.name}, by {call}")
    return values[0] if values else None
