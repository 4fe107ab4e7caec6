"""Which RMM resource device memory comes from, and memory from it.

RMM's current resource is the application's own choice, and stays in force. `share_memory` alone sets CuPy's allocator,
where a process has asked for that, and can undo it.
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
"""Adaptors that pass every request on to the resource below them."""


class NativeMemory:
    """Device memory of an RMM resource; goes back to it in the order of a stream, at the latest when it is dropped."""

    def __init__(self, resource: Any, address: Address, nbytes: int, stream: Any) -> None:
        self.address = address
        self.nbytes = nbytes
        self._context = cupy.cuda.driver.ctxGetCurrent()
        self._resource = resource
        self._stream = stream
        self._process = os.getpid()

    def free(self) -> None:
        """Give the memory back once the work that its stream has been given so far is done."""
        resource, self._resource = self._resource, None
        # A process that was forked off, or is ending, has no CUDA to give anything back to.
        if resource is None or not self.nbytes or self._process != os.getpid() or sys.is_finalizing():
            return
        with suppress(*FAILURES), in_context(self._context):  # of a lost device there is nothing to give back
            resource.deallocate(self.address, self.nbytes, self._stream.for_rmm)

    def free_behind(self, stream: Any) -> None:
        """Give the memory back on another stream, behind what that has been given; see `DeviceMemory`."""
        self._stream = stream
        self.free()

    def __del__(self) -> None:
        self.free()


class RmmMemory:
    """Device memory of one device; `choice` is `ResourceOptions.memory`."""

    def __init__(self, index: int, choice: MemoryChoice) -> None:
        self._index = index
        self.choice = choice
        self._lock = threading.Lock()
        self._private: Any = None
        self._seen: object = None
        """The caller's resource that was looked at last."""

    @cuda_call("rmm.mr.DeviceMemoryResource.allocate")
    def allocate(self, nbytes: int, stream: Any) -> NativeMemory:
        """Return uninitialised memory, which goes back in the order of `stream` when it is dropped."""
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
        """Return the RMM resource to allocate from now; the caller may have changed theirs since the last call."""
        if self.choice in {"auto", "current"}:
            current = rmm.mr.get_per_device_resource(self._index)
            # Anything around a plain resource was put there by the caller, to limit or count, and holds for us too.
            if self.choice == "current" or not is_plain(current):
                if current is not self._seen:
                    self._seen = current
                    _advise_on(current)
                return current
        if self._private is None:
            with self._lock:
                if self._private is None:
                    self._private = self._new_resource()
        return self._private

    def _new_resource(self) -> Any:
        runtime = cupy.cuda.runtime
        if self.choice == "async" or (
            self.choice == "auto" and runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryPoolsSupported, self._index)
        ):
            _, total = runtime.memGetInfo()
            return private_pool(self._index, total)
        # RMM would take half of the free memory at once; this one starts empty and grows.
        return rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=0)


def is_plain(resource: object) -> bool:
    """Whether a resource is RMM's first one, which keeps nothing and stalls the device at every call."""
    return type(resource) is rmm.mr.CudaMemoryResource


def has_no_pool(resource: object) -> bool:
    """Whether a resource is a plain one, or hands everything on to one."""
    while isinstance(resource, _ADAPTORS):
        resource = resource.upstream_mr
    return is_plain(resource)


def _advise_on(resource: object) -> None:
    """Say so if a caller's resource, which is not RMM's first one, asks the driver for each piece of memory."""
    if has_no_pool(resource) and not is_plain(resource):
        advise(
            "memory without a pool",
            "RMM's current resource has no pool; the GPU stands still at each allocation of a read",
            found=f"{type(resource).__name__} over CudaMemoryResource",
            do="LocalCUDACluster(rmm_async=True, ...) beside enable_cudf_spill or rmm_track_allocations, or put it "
            "around a rmm.mr.CudaAsyncMemoryResource; configure(memory='async') gives reads a pool of their own",
        )


def share_memory(index: int) -> Undo:
    """Let CuPy allocate from the pool of a device that is RMM's current one; return what takes that back.

    Without a pool nothing is changed: CuPy's own is quicker. Arrays that live keep their memory. Nothing is taken back
    that somebody else has set since.
    """
    before = cupy.cuda.get_allocator()
    if before is rmm_cupy_allocator or has_no_pool(rmm.mr.get_per_device_resource(index)):
        return lambda: None
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    kept = [before]

    def undo() -> None:
        if kept and cupy.cuda.get_allocator() is rmm_cupy_allocator:
            cupy.cuda.set_allocator(kept[0])
        kept.clear()

    return undo
