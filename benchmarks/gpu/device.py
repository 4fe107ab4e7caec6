"""What the benchmark asks of a GPU beside `DeviceApi`: times, whole arrays, a copy within it, and what it is called.

The tests put the simulator in its place, so that the benchmark's own code runs where there is no GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from distributed import Client

from benchmarks.runner.readers import AbsentError
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Stream
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.stored.cf import Cast

Values = npt.NDArray[Any]

_DRIVER = Path("/proc/driver/nvidia/version")


class Gpu:
    """The first GPU, through CuPy."""

    device = "cuda"

    def __init__(self) -> None:
        try:
            self._cupy = importlib.import_module("cupy")
            module = importlib.import_module("xarray_gpuzarr.cuda.device")
            self.api = cast("DeviceApi", module.native_device(0))
        except (ImportError, RuntimeError, DeviceMemoryError) as error:  # CuPy's own errors are RuntimeErrors
            raise AbsentError(f"no GPU to measure on: {type(error).__name__}: {error}") from error

    def about(self) -> dict[str, object]:
        """Return name, driver and the like, for the report."""
        runtime = self._cupy.cuda.runtime
        properties = runtime.getDeviceProperties(0)
        return {
            "name": properties["name"].decode(),
            "compute_capability": f"{properties['major']}.{properties['minor']}",
            "n_multiprocessors": properties["multiProcessorCount"],
            "memory_nbytes": properties["totalGlobalMem"],
            "l2_nbytes": properties["l2CacheSize"],
            "driver": _DRIVER.read_text().splitlines()[0] if _DRIVER.exists() else "unknown",
            "driver_cuda": runtime.driverGetVersion(),
            "runtime_cuda": runtime.runtimeGetVersion(),
        }

    def cupy(self) -> Any:
        """Return the module."""
        return self._cupy

    def mark(self, stream: Stream) -> Any:
        """Note the time at which a stream has done what it has been given so far."""
        event = self._cupy.cuda.Event()
        event.record(cast("Any", stream).for_cupy)
        return event

    def seconds(self, first: Any, last: Any) -> float:
        """Return the time between two marks, once both have been reached."""
        last.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(first, last)) * 1e-3

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._cupy.cuda.runtime.deviceSynchronize()

    def copy_within(self, to: Address, start: Address, nbytes: int, stream: Stream) -> None:
        """Copy device memory."""
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(to, start, nbytes, runtime.memcpyDeviceToDevice, stream.handle)

    def put(self, values: Values) -> Any:
        """Return a device array of values that lie in ordinary host memory."""
        return self._cupy.asarray(np.ascontiguousarray(values))

    def same(self, found: Any, expected: Any) -> bool:
        """Say whether two device arrays hold the same values; NaN equals NaN."""
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            return False
        return bool(self._cupy.array_equal(found, expected, equal_nan=found.dtype.kind == "f"))

    def upload(self, values: Values) -> Any:
        """Return a device array of values in ordinary host memory, brought up as the decoder does it."""
        return decoder_for(self.device).upload(values, Cast(dtype=values.dtype.str))

    def product(self, values: Any) -> Any:
        """Enqueue the product of a device array with itself."""
        flat = values.reshape(-1)
        return flat @ flat

    def tidy(self) -> None:
        """Give back what CuPy's pools hold unused."""
        self._cupy.get_default_memory_pool().free_all_blocks()
        self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    def forget(self) -> None:
        """Let go of what reads keep, their private pool among it, which keeps what it once had."""
        decoder: Any = decoder_for("cuda")
        decoder.close()
        importlib.import_module("xarray_gpuzarr.cuda.device").forget_devices()

    @contextmanager
    def start_worker(self, n_threads: int) -> Iterator[Client]:
        """Start a `LocalCUDACluster` as docs/dask.md recommends it, for the first GPU."""
        try:
            dask_cuda = importlib.import_module("dask_cuda")
        except ImportError as error:
            raise AbsentError(f"not installed: {error}") from error
        pool = {"rmm_async": True, "rmm_allocator_external_lib_list": "cupy"}
        options = {"n_workers": 1, "threads_per_worker": n_threads, "dashboard_address": None}
        with dask_cuda.LocalCUDACluster(**options, **pool) as cluster, Client(cluster, set_as_default=False) as client:
            yield client

    def busy(self, first: float, last: float) -> float:
        """Return the share of the time, between two seconds since the epoch, in which the GPU ran a kernel, by NVML.

        Raises
        ------
        AbsentError
            The driver does not say.
        """
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError as error:
            raise AbsentError(f"not installed: {error}") from error
        try:
            nvml.nvmlInit()
            handle = nvml.nvmlDeviceGetHandleByPciBusId(self._cupy.cuda.runtime.deviceGetPCIBusId(0))
            _, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, int(first * 1e6))
        except nvml.NVMLError as error:
            raise AbsentError(f"the driver does not say: {type(error).__name__}: {error}") from error
        shares = [s.sampleValue.uiVal / 100 for s in samples if first * 1e6 <= s.timeStamp <= last * 1e6]
        if not shares:
            raise AbsentError("the driver has taken no sample")
        return sum(shares) / len(shares)
