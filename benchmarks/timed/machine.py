"""A modelled machine: the real CUDA decoder reads to the modelled device by a clock that stands still while it runs.

Reading a file takes as long as rates say, on threads that are lent by the rules of `crew`. The host decodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.timed.device import ModelledDevice
from benchmarks.timed.headers import HeaderStore, header_array
from benchmarks.timed.rates import Rates
from benchmarks.timed.virtual_clock import VirtualClock, VirtualCrew
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.fetch import Allocate, Pending, Request
from xarray_gpuzarr.native import library
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.device_options import in_force
from xarray_gpuzarr.process.waiting import Bell
from xarray_gpuzarr.read import StoredArray, read

N_CORES = 16
_LOOK_S = 50e-6
"""Who waits for other threads looks so often whether they have come; rung for, in truth."""


class Machine:
    """A host and a device whose times are modelled; only inside `running`."""

    def __init__(self, rates: Rates | None = None) -> None:
        self.clock = VirtualClock()
        self.crew = VirtualCrew(self.clock)
        self.rates = rates or Rates()
        self.device = ModelledDevice(self.rates, self.clock)
        self.decoder = CudaDecoder(lambda: self.device.as_api)
        self.fetches: list[tuple[float, float]] = []
        """When reads of files began and ended, those of indexes not among them."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the engine's threads take modelled time inside a ``with`` block."""
        with ExitStack() as stack:
            stack.enter_context(patch.multiple(crew, run=self.crew.run, taking=self.crew.taking))
            stack.enter_context(patch("xarray_gpuzarr.process.threads.n_cores", lambda: N_CORES))
            stack.enter_context(patch.object(library, "find", lambda: "frames are only headers"))
            stack.enter_context(patch.object(Bell, "wait_until", lambda _, is_so, __=0: self._wait_until(is_so)))
            stack.callback(setattr, in_force, "options", in_force.options)
            in_force.choose({"little": "device"})
            stack.callback(self.decoder.close)
            yield

    def by_shards(self, stored: StoredArray, n_shards: int, n_threads: int) -> float:
        """Return how long threads of dask take that read shard after shard to the device; none of them: one read."""
        length = stored.shape[0] // n_shards
        wanted = iter([slice(n * length, (n + 1) * length) for n in range(n_shards)] if n_threads else [...])

        def job() -> None:
            for each in wanted:
                read(stored, each, self.decoder)

        return self.clock.run([job] * max(1, n_threads))

    def stored(self, codec: str, chunk_nbytes: int, n_chunks: int, n_shards: int = 1) -> StoredArray:
        """Return an array of shards of so many chunks."""
        machine, rates = self, self.rates

        class Store(HeaderStore):
            def start_edge(self, key: str, location: str, nbytes: int) -> Any:
                finish = super().start_edge(key, location, nbytes)

                def timed() -> Any:
                    machine.crew.spend(rates.lane_s(nbytes))
                    return finish()

                return timed

            def start(self, requests: Sequence[Request], version: object = None) -> Pending:
                finish = super().start(requests, version)

                def timed(allocate: Allocate) -> list[memoryview | None]:
                    for _, wanted in requests:
                        machine.fetches.append(machine.crew.spend(rates.lane_s(wanted.nbytes)))
                    return finish(allocate)

                return timed

        return header_array(n_shards, (n_chunks,), (chunk_nbytes // 4,), codec, Store)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.clock.sleep(_LOOK_S)
