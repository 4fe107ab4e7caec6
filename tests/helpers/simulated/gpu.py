"""The simulator as the GPU benchmark sees a GPU. What its times are worth is nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from distributed import Client

from benchmarks.runner.readers import AbsentError
from helpers.clusters import local_cluster
from helpers.kernels import on_host as host_kernels
from helpers.simulated.simulator import SimulatedDevice
from helpers.simulated.streams import SimulatedEvent, SimulatedStream, touch_of
from helpers.simulated.worker import SimulatedGpu as SimulatedWorker
from helpers.simulated.worker import here
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.stored.cf import Cast


class SimulatedGpu:
    """Stands in for `benchmarks.gpu.device.Gpu`."""

    device = "cuda"

    def __init__(self, seed: int = 0) -> None:
        self.launched: Counter[str] = Counter()
        """How often each kernel was launched, by name."""
        self.api = SimulatedDevice(seed, run_kernel=self._run_kernel)
        self._decoder = CudaDecoder(lambda: self.api)

    def about(self) -> dict[str, object]:
        return {"name": "a simulator"}

    def cupy(self) -> Any:
        raise AbsentError("the simulator's arrays are not CuPy's")

    def mark(self, stream: SimulatedStream) -> SimulatedEvent:
        event = self.api.event()
        self.api.record(event, stream)
        return event

    def seconds(self, first: SimulatedEvent, last: SimulatedEvent) -> float:
        start = time.perf_counter()
        self.api.synchronize_event(first)
        self.api.synchronize_event(last)
        return time.perf_counter() - start

    def synchronize(self) -> None:
        self.api.synchronize(self.api.consumer_stream())

    def copy_within(self, to: Address, start: Address, nbytes: int, stream: SimulatedStream) -> None:
        name, arena = f"copy of {nbytes} bytes", self.api._arena
        arena.find(start, nbytes, name)
        arena.find(to, nbytes, name)
        source, target = arena.view(start, nbytes), arena.view(to, nbytes)
        touches = touch_of(source, "read"), touch_of(target, "write")
        with self.api._border.call("copy_within", stream):
            self.api._scheduler.give(stream, name, lambda: np.copyto(target, source), *touches)

    def put(self, values: np.ndarray) -> Any:
        return self.api.place(np.ascontiguousarray(values))

    def same(self, found: Any, expected: Any) -> bool:
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            return False
        return np.array_equal(found.get(), expected.get(), equal_nan=found.dtype.kind == "f")

    def upload(self, values: np.ndarray) -> Any:
        return self._decoder.upload(values, Cast(dtype=values.dtype.str))

    def product(self, values: Any) -> Any:
        flat = values.get().reshape(-1)
        return flat @ flat

    def tidy(self) -> None:
        """There is nothing that only the array library holds."""

    def forget(self) -> None:
        """The same device goes on; what it holds is seen at the end."""

    @contextmanager
    def start_worker(self, n_threads: int) -> Iterator[Client]:
        """Start a real worker with a simulated GPU of its own, and see that nothing was done wrong on it."""
        with local_cluster(1, n_threads) as client:
            client.register_plugin(SimulatedWorker(memory_nbytes=1 << 28))
            yield client
            client.run(lambda: here().check())

    def busy(self, first: float, last: float) -> float:
        return 0.5

    def _run_kernel(self, kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int]) -> None:
        self.launched[kernel.name] += 1
        host_kernels.launch(kernel, n_blocks, n_threads, args)
