"""Which RMM resource device memory comes from, and buffers from it.

RMM's current resource is looked at and never set, so an application's own choice stays in force.
"""

from __future__ import annotations

import threading
from typing import Any

import cupy
import rmm

from xarray_gpuzarr.cuda.failures import cuda_call, cuda_error, is_out_of_memory
from xarray_gpuzarr.cuda.options import MemoryChoice
from xarray_gpuzarr.errors import DeviceMemoryError


class RmmMemory:
    """Device memory of one device.

    Parameters
    ----------
    index : int
        Number of the device in this process.
    choice : str
        See `ResourceOptions.memory`.
    """

    def __init__(self, index: int, choice: MemoryChoice) -> None:
        self._index = index
        self.choice = choice
        self._lock = threading.Lock()
        self._private: Any = None

    @cuda_call("rmm.DeviceBuffer")
    def buffer(self, nbytes: int, stream: Any) -> Any:
        """Return an uninitialised `rmm.DeviceBuffer`, which goes back in the order of `stream` when it is dropped.

        Parameters
        ----------
        nbytes : int
        stream : rmm.pylibrmm.stream.Stream

        Raises
        ------
        DeviceMemoryError
            There is not so much left.
        """
        resource = self.resource()
        try:
            return rmm.DeviceBuffer(size=nbytes, stream=stream, mr=resource)
        except MemoryError as error:
            call = f"{nbytes} bytes on device {self._index} from RMM's {type(resource).__name__}"
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

    def resource(self) -> Any:
        """Return the RMM resource to allocate from now; the caller may have changed theirs since the last call."""
        if self.choice in {"auto", "current"}:
            current = rmm.mr.get_per_device_resource(self._index)
            # Anything around a plain resource was put there by the caller, to limit or count, and holds for us too.
            if self.choice == "current" or not is_plain(current):
                return current
        if self._private is None:
            with self._lock, cupy.cuda.Device(self._index):
                if self._private is None:
                    self._private = self._new_resource()
        return self._private

    def _new_resource(self) -> Any:
        if self.choice == "async" or (self.choice == "auto" and self._has_async()):
            return rmm.mr.CudaAsyncMemoryResource()
        # RMM would take half of the free memory at once; this one starts empty and grows.
        return rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=0)

    def _has_async(self) -> bool:
        runtime = cupy.cuda.runtime
        return bool(runtime.deviceGetAttribute(runtime.cudaDevAttrMemoryPoolsSupported, self._index))


def is_plain(resource: object) -> bool:
    """Whether a resource is RMM's first one, which keeps nothing and stalls the device at every call."""
    return type(resource) is rmm.mr.CudaMemoryResource
