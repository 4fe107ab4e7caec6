"""`DeviceApi` with CuPy, RMM and nvCOMP: a real GPU for the CUDA decoder.

This module decides nothing about reads: callers choose streams, events and sizes. The only process-wide state that it
changes is CuPy's allocator, by `rmm_memory.share_memory`. Importing it needs CuPy and RMM, but no GPU.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast

import cupy
import numpy as np
import numpy.typing as npt
import rmm

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import (
    Bytes,
    DeviceApi,
    DeviceFile,
    DeviceIdentity,
    DeviceMemory,
    Event,
    Kernel,
    PinnedMemory,
    Stream,
    Undo,
)
from xarray_gpuzarr.cuda.compiled_kernels import CompiledKernels
from xarray_gpuzarr.cuda.contexts import enter_device, restore_context
from xarray_gpuzarr.cuda.driver import cuda_version_text, driver_version
from xarray_gpuzarr.cuda.failures import FAILURES, cuda_call, cuda_error
from xarray_gpuzarr.cuda.native_stream import NativeStream, StreamOwner
from xarray_gpuzarr.cuda.nvcomp import Nvcomp
from xarray_gpuzarr.cuda.nvcomp_library import load_nvcomp
from xarray_gpuzarr.cuda.pinned_memory import allocate_pinned
from xarray_gpuzarr.cuda.rmm_memory import RmmMemory, share_memory
from xarray_gpuzarr.errors import CudaError, DeviceMemoryError, DeviceUnavailableError
from xarray_gpuzarr.process.device_options import ResourceOptions, resource_options

try:
    import nvtx
except ImportError:
    nvtx = None

_NO_RANGE = nullcontext()
_PER_THREAD_DEFAULT = 2
"""``cudaStreamPerThread`` as an integer."""


class NativeDevice:
    """One GPU through CuPy and RMM; see `DeviceApi`. `native_device` keeps one object for each GPU."""

    def __init__(self, index: int, options: ResourceOptions) -> None:
        self.index = index
        """Number of the device in this process."""
        self.memory = RmmMemory(index, options.memory)
        self._kernels = CompiledKernels()

    @cached_property
    @cuda_call("cudaGetDeviceProperties")
    def identity(self) -> DeviceIdentity:
        """Identity of the device, with its driver and libraries."""
        runtime = cupy.cuda.runtime
        properties = runtime.getDeviceProperties(self.index)
        # CuPy reads the 16 bytes of the UUID as a C string. So it may end early, or go on with the bytes behind them.
        uuid = bytes(properties["uuid"])[:16]
        return DeviceIdentity(
            name=properties["name"].decode(),
            uuid=f"{uuid.hex()} at {runtime.deviceGetPCIBusId(self.index)}",
            compute_capability=f"{properties['major']}.{properties['minor']}",
            driver=driver_version() or f"of CUDA {cuda_version_text(runtime.driverGetVersion())}",
            versions={
                "CuPy": cupy.__version__,
                "RMM": rmm.__version__,
                "nvCOMP": self.nvcomp.version,
                "CUDA": cuda_version_text(runtime.runtimeGetVersion()),
            },
        )

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this the device of the calling thread inside a ``with`` block; see `DeviceApi.activate`."""
        context = enter_device(self.index)
        try:
            yield
        except BaseException:
            # On a lost device, restoring the context fails, too, but the error of the block is the one to report.
            with suppress(CudaError, DeviceMemoryError):
                restore_context(context)
            raise
        restore_context(context)

    @cuda_call("cudaMemGetInfo")
    def memory_nbytes(self) -> tuple[int, int]:
        """Return (free, total) device memory in bytes. Unused memory in pools does not count as free."""
        free, total = cupy.cuda.runtime.memGetInfo()
        return int(free), int(total)

    @cuda_call("cudaStreamCreateWithFlags")
    def stream(self) -> NativeStream:
        """Return a new stream that does not wait for the legacy default stream."""
        stream = cupy.cuda.Stream(non_blocking=True)
        return NativeStream(stream, StreamOwner(stream))

    @cuda_call("cupy.cuda.get_current_stream")
    def current_stream(self) -> NativeStream:
        """Return CuPy's current stream of the calling thread."""
        return NativeStream(cupy.cuda.get_current_stream())

    def consumer_stream(self) -> NativeStream:
        """Return CuPy's current stream of the calling thread.

        Raises
        ------
        DeviceUnavailableError
            If that is the per-thread default stream. Its handle stands for a different stream on each thread, so memory
            that is freed on another thread would be reused too early.
        """
        stream = self.current_stream()
        if stream.handle == _PER_THREAD_DEFAULT:
            raise DeviceUnavailableError(
                "cannot read to CuPy's per-thread default stream",
                tried="a read while cupy.cuda.get_current_stream() is Stream.ptds",
                found="arrays freed on other threads, whose streams do not wait for this one, could be overwritten",
                do="unset CUPY_CUDA_PER_THREAD_DEFAULT_STREAM, or read inside `with cupy.cuda.Stream():`",
            )
        return stream

    def external_stream(self, handle: int) -> NativeStream:
        """Return the stream of a ``cudaStream_t`` that another library has made and keeps."""
        # CuPy takes any object with `__cuda_stream__`, which returns the version of that protocol, 0, and the handle.
        return NativeStream(cupy.cuda.Stream.from_external(SimpleNamespace(__cuda_stream__=lambda: (0, handle))))

    @cuda_call("cupy.cuda.Stream.use")
    def use_stream(self, stream: Stream) -> None:
        """Make `stream` CuPy's current one on the calling thread."""
        _native(stream).for_cupy.use()

    @cuda_call("cudaEventCreateWithFlags")
    def event(self) -> Event:
        """Return a new event. A thread that waits for it sleeps, rather than spin on its core."""
        return cast("Event", cupy.cuda.Event(block=True, disable_timing=True))

    @cuda_call("cudaEventRecord")
    def record(self, event: Event, stream: Stream) -> None:
        """Move `event` to the end of what `stream` has been given so far."""
        cast("Any", event).record(_native(stream).for_cupy)

    @cuda_call("cudaStreamWaitEvent")
    def wait(self, stream: Stream, event: Event) -> None:
        """Let all later work of `stream` wait for `event` as it was last recorded."""
        _native(stream).for_cupy.wait_event(event)

    @cuda_call("cudaStreamSynchronize")
    def synchronize(self, stream: Stream) -> None:
        """Block until `stream` has done all its work."""
        _native(stream).for_cupy.synchronize()

    @cuda_call("cudaEventSynchronize")
    def synchronize_event(self, event: Event) -> None:
        """Block until `event`, as it was last recorded, has been reached."""
        cast("Any", event).synchronize()

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Return uninitialised device memory, to be used on `stream` or on streams ordered after it."""
        return self.memory.allocate(nbytes, _native(stream))

    def allocate_pinned(self, nbytes: int) -> PinnedMemory:
        """Return page-locked host memory."""
        return allocate_pinned(nbytes)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream) -> Any:
        """Return an uninitialised C-ordered `cupy.ndarray`; its memory is used and freed in the order of `stream`."""
        memory = self.memory.allocate(math.prod(shape) * dtype.itemsize, _native(stream))
        return self.array_in(memory, shape, dtype, owner=memory)

    def array_in(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        """Return a C-ordered `cupy.ndarray` in `memory`; the array and its views keep `owner` alive."""
        unowned = cupy.cuda.UnownedMemory(memory.address, memory.nbytes, owner, self.index)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(unowned, 0))

    @cuda_call("cupy.asarray")
    def array(self, values: npt.NDArray[Any]) -> Any:
        """Return a `cupy.ndarray` with these values, made on CuPy's current stream of the calling thread."""
        return cupy.asarray(values)

    def address(self, array: Any) -> Address:
        """Return the address of the first element of a `cupy.ndarray`."""
        return Address(array.data.ptr)

    @cuda_call("cudaMemcpyAsync, host to device")
    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Enqueue a copy of pinned host memory to the device; `data` must not change until it is done."""
        kind = cupy.cuda.runtime.memcpyHostToDevice
        cupy.cuda.runtime.memcpyAsync(to, data.ctypes.data, data.nbytes, kind, stream.handle)

    @cuda_call("cudaMemcpyAsync, device to host")
    def download(self, into: Bytes, start: Address, stream: Stream) -> None:
        """Enqueue a copy of device memory to pinned host memory; `into` holds it once `stream` has passed here."""
        kind = cupy.cuda.runtime.memcpyDeviceToHost
        cupy.cuda.runtime.memcpyAsync(into.ctypes.data, start, into.nbytes, kind, stream.handle)

    def launch(self, kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int], stream: Stream) -> None:
        """Enqueue a kernel on a one-dimensional grid; each argument is one ``unsigned long long``."""
        function = self._kernels.functions.get(kernel) or self._kernels.compile(kernel)
        words = list(np.array(args, np.uint64))  # CuPy passes NumPy scalars as they are, so each has 64 bits
        try:
            function((n_blocks,), (n_threads,), words, stream=_native(stream).for_cupy)
        except FAILURES as error:
            call = f"cuLaunchKernel of {kernel.name}, {n_blocks} blocks of {n_threads} threads"
            raise cuda_error(call, error) from error

    def why_no_gds(self) -> str | None:
        """Return why GPUDirect Storage cannot read files straight into device memory; None if it can."""
        from xarray_gpuzarr.cuda.gds_files import why_no_gds  # noqa: PLC0415  # only if storage="gds"

        return why_no_gds()

    def open_file(self, path: str) -> DeviceFile:
        """Open a local file for reads into device memory."""
        from xarray_gpuzarr.cuda.gds_files import NativeFile  # noqa: PLC0415  # only if storage="gds"

        return NativeFile(path, self.synchronize)

    def build(self, kernels: Iterable[Kernel]) -> None:
        """Compile the kernels that have not been compiled yet."""
        for kernel in kernels:
            self._kernels.compile(kernel)

    @cuda_call("cupy.cuda.set_allocator")
    def share_pool(self) -> Undo:
        """Let CuPy allocate from RMM's current pool, process-wide; see `share_memory`."""
        return share_memory(self.index)

    @cuda_call("cupy.cuda.MemoryPool.free_all_blocks")
    def trim(self) -> None:
        """Wait until the device is idle, then free unused memory in the pools of CuPy and PyTorch."""
        cupy.cuda.runtime.deviceSynchronize()
        cupy.get_default_memory_pool().free_all_blocks()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @cached_property
    def nvcomp(self) -> Nvcomp:
        """The functions of the installed nvCOMP."""
        return Nvcomp(load_nvcomp())

    def range(self, name: str) -> AbstractContextManager[object]:
        """Mark a ``with`` block as a range on a profiler's timeline, if nvtx is installed."""
        if nvtx is None:
            return _NO_RANGE
        return cast("AbstractContextManager[object]", nvtx.annotate(name, domain="xarray_gpuzarr"))


def _native(stream: Stream) -> NativeStream:
    assert isinstance(stream, NativeStream)
    return stream


_devices: dict[int, NativeDevice] = {}
_devices_lock = threading.Lock()


def forget_devices() -> None:
    """Forget all devices and their pools of reads, so that the next calls make new ones.

    A pool ends with the last of its memory, so results that are alive keep theirs.
    """
    with _devices_lock:
        for device in _devices.values():
            device.memory.forget_pool()  # others may still hold the device, which needs no memory by itself
        _devices.clear()


@cuda_call("cudaGetDevice, cudaSetDevice")
def native_device(index: int | None = None) -> DeviceApi:
    """Return the GPU number `index`, or the calling thread's current GPU if it is None.

    A device is kept for later calls, and made anew if the option `memory` has changed.

    Raises
    ------
    CudaError
        If there is no usable GPU, or if this process was forked from one that had used a GPU.
    """
    if index is None:
        index = int(cupy.cuda.runtime.getDevice())
    options = resource_options()
    with _devices_lock:
        device = _devices.get(index)
        if device is None or device.memory.choice != options.memory:
            device = NativeDevice(index, options)
            with device.activate():  # a missing device raises its error here rather than in the middle of a read
                _devices[index] = device
        return device
