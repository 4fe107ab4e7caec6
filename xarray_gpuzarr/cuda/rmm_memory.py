"""Device memory from an RMM resource, and the choice of that resource.

RMM's current resource is the application's choice, and is never changed. Only `share_memory` changes CuPy's allocator.
It is called on request, and can be undone.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Any

import cupy
import rmm
from rmm.allocators.cupy import rmm_cupy_allocator

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Undo
from xarray_gpuzarr.cuda.contexts import in_context
from xarray_gpuzarr.cuda.failures import FAILURES, cuda_call, cuda_error, is_out_of_memory
from xarray_gpuzarr.cuda.private_pool import private_pool
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.device_options import MemoryChoice

_ADAPTORS = tuple(
    getattr(rmm.mr, f"{name}ResourceAdaptor")
    for name in ("Limiting", "Logging", "Statistics", "Tracking", "FailureCallback", "Prefetch")
)
"""Adaptors that pass every request on to their upstream resource."""


class NativeMemory:
    """Device memory of an RMM resource; see `DeviceMemory`.

    It is freed in the CUDA context in which it was allocated, whichever thread frees it.
    """

    def __init__(self, resource: Any, address: Address, nbytes: int, stream: Any) -> None:
        self.address = address
        self.nbytes = nbytes
        self._context = cupy.cuda.driver.ctxGetCurrent()
        self._resource = resource
        self._stream = stream
        self._process = os.getpid()

    def free(self) -> None:
        """Free the memory once the work that its stream has been given so far is done."""
        resource, self._resource = self._resource, None  # a second call does nothing
        # A forked process, or one that is ending, cannot call CUDA.
        if resource is None or not self.nbytes or self._process != os.getpid() or sys.is_finalizing():
            return
        with suppress(*FAILURES), in_context(self._context):  # a lost device has no memory to free
            resource.deallocate(self.address, self.nbytes, self._stream.for_rmm)

    def free_behind(self, stream: Any) -> None:
        """Free the memory on another stream, after the work of that one; see `DeviceMemory.free_behind`."""
        self._stream = stream
        self.free()

    def __del__(self) -> None:
        self.free()


class RmmMemory:
    """Allocates memory of one device, from the RMM resource that the option `memory` selects.

    Parameters
    ----------
    index : int
        Number of the device.
    choice : {"auto", "pool", "async", "current"}
        Where the memory comes from; see `ResourceOptions.memory`.
    """

    def __init__(self, index: int, choice: MemoryChoice) -> None:
        self._index = index
        self.choice = choice
        self._lock = threading.Lock()
        self._private: Any = None
        """Pool of reads alone; None until it is needed."""
        self._last_current: object = None
        """The application's resource that was last allocated from. Advice is given whenever this changes."""

    @cuda_call("rmm.mr.DeviceMemoryResource.allocate")
    def allocate(self, nbytes: int, stream: Any) -> NativeMemory:
        """Return uninitialised memory, to be used and freed in the order of `stream`; for 0 bytes, its address is 0.

        Raises
        ------
        DeviceMemoryError
            If the resource or the device has not enough memory.
        """
        resource = self.resource()
        try:
            address = resource.allocate(nbytes, stream.for_rmm) if nbytes else 0
        except MemoryError as error:
            pool = "the pool of reads" if resource is self._private else f"RMM's {type(resource).__name__}"
            call = f"{nbytes} bytes on device {self._index} from {pool}"
            if not is_out_of_memory(error):
                raise cuda_error(call, error) from error
            free, total = cupy.cuda.runtime.memGetInfo()
            raise DeviceMemoryError(
                "not enough device memory",
                tried=call,
                found=f"{free} bytes free of {total}; {error}",
                do="lower XARRAY_GPUZARR_BATCH_NBYTES or XARRAY_GPUZARR_SCRATCH_NBYTES, use fewer threads per "
                "process, or read less at once",
            ) from error
        return NativeMemory(resource, Address(address), nbytes, stream)

    def resource(self) -> Any:
        """Return the RMM resource to allocate from. The application may have changed its own since the last call."""
        if self.choice in {"auto", "current"}:
            current = rmm.mr.get_per_device_resource(self._index)
            # An adaptor around a plain resource is not plain: the application limits or counts memory with it.
            if self.choice == "current" or not is_plain(current):
                if current is not self._last_current:
                    self._last_current = current
                    _advise_on(current)
                return current
        private = self._private
        if private is None:
            with self._lock:
                if self._private is None:
                    self._private = self._new_resource()
                private = self._private
        return private

    def forget_pool(self) -> None:
        """Forget the pool of reads. It ends with the last of its memory; a later allocation makes a new one."""
        with self._lock:
            self._private = None

    def _new_resource(self) -> Any:
        """Return a new pool: one of the driver if `choice` is "async", or "auto" and the device has such pools.

        Otherwise, the pool is one of RMM.
        """
        runtime = cupy.cuda.runtime
        if self.choice == "async" or (
            self.choice == "auto" and runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryPoolsSupported, self._index)
        ):
            _, total = runtime.memGetInfo()
            return private_pool(self._index, total)
        # By default, RMM's pool allocates half of the free memory at once. This one starts empty and grows.
        return rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=0)


def is_plain(resource: object) -> bool:
    """Whether a resource is like RMM's initial one, which keeps no memory and stalls the device at every call."""
    return type(resource) is rmm.mr.CudaMemoryResource


def has_no_pool(resource: object) -> bool:
    """Whether a resource is a plain one, or passes every request on to one."""
    while isinstance(resource, _ADAPTORS):
        resource = resource.upstream_mr
    return is_plain(resource)


def _advise_on(resource: object) -> None:
    """Warn if the application's resource is an adaptor that requests each piece of memory from the driver.

    A plain resource itself is used only if the option `memory` is "current", which is a choice to be respected.
    """
    if has_no_pool(resource) and not is_plain(resource):
        advise(
            "memory without a pool",
            "RMM's current resource has no pool; the GPU stands still at each allocation of a read",
            found=f"{type(resource).__name__} over CudaMemoryResource",
            do="with dask-cuda, add rmm_async=True to the arguments of LocalCUDACluster; elsewhere, build the adaptor "
            "on a rmm.mr.CudaAsyncMemoryResource; configure(memory='async') gives reads a pool of their own",
        )


def share_memory(index: int) -> Undo:
    """Let CuPy allocate from RMM's current pool on a device; return a function that undoes this.

    Nothing is changed if CuPy uses RMM already, or if RMM's resource has no pool, since CuPy's own pool is faster then.
    Existing arrays keep their memory. If another allocator has been set meanwhile, undoing leaves that one in place.
    """
    before = cupy.cuda.get_allocator()
    if before is rmm_cupy_allocator or has_no_pool(rmm.mr.get_per_device_resource(index)):
        return lambda: None
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    to_restore = [before]  # empty after the first call of `undo`

    def undo() -> None:
        if to_restore and cupy.cuda.get_allocator() is rmm_cupy_allocator:
            cupy.cuda.set_allocator(to_restore[0])
        to_restore.clear()

    return undo
