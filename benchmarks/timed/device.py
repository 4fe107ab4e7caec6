"""`DeviceApi` of a device that decodes nothing: calls take as long as on one that does, or no time at all.

What the host is told of every batch is that all went well: the lengths that it expects are read from the tables that it
uploads. With rates, calls keep their thread as long as CUDA's might, and streams and engines are simulated. Without,
what is left of a read is the host's own work. Checksums of decoded bytes are said to be 0: there are no decoded bytes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from benchmarks.timed.rates import Rates
from benchmarks.timed.simulation import Simulation, Stream
from benchmarks.timed.virtual_clock import VirtualClock
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, Kernel
from xarray_gpuzarr.cuda.axes import MAX_TILE
from xarray_gpuzarr.cuda.nvcomp import Alignment, Batch
from xarray_gpuzarr.cuda.nvcomp_formats import zstd_temp_nbytes

Words = npt.NDArray[np.uint64]

_TOTAL_NBYTES = 80 * 10**9
_N_UPLOADS_KNOWN = 256
_NOTHING: AbstractContextManager[Any] = nullcontext()


class ModelledDevice:
    """A device that decodes nothing; without rates, nothing takes any time or is noted down. Rates need a clock."""

    index = 0
    identity = None

    def __init__(self, rates: Rates | None = None, clock: VirtualClock | None = None) -> None:
        self.rates = rates
        self._clock = clock
        self.simulation = None if rates is None or clock is None else Simulation(rates.slots, clock)
        self.nvcomp = ModelledNvcomp(self)
        self.n_decoded = 0
        """Chunks that calls were given."""
        self.enter_range: Callable[[str], AbstractContextManager[object]] = lambda _name: _NOTHING
        """What profilers would be told; nobody listens, until this is replaced."""
        self._handles = itertools.count(1)
        self._addresses = itertools.count(1 << 40, 1 << 36)
        self.streams: dict[int, Stream] = {}
        self._consumer = self.stream()
        self._uploads: deque[tuple[int, Bytes]] = deque(maxlen=_N_UPLOADS_KNOWN)
        """Where they went; a slot is not written to again before what its tables are for is enqueued."""
        self._answers: dict[int, Words] = {}
        """Columns that kernels will have written, by address."""

    @property
    def as_api(self) -> DeviceApi:
        """Itself: the members that reads of chunks use."""
        return cast("DeviceApi", self)

    def take(self, call: str) -> None:
        """Keep the calling thread busy for as long as a call of CUDA's does: a field of `Rates`."""
        if self.rates is not None and self._clock is not None:
            self._clock.spin(self._clock.now() + getattr(self.rates, call))

    def activate(self) -> AbstractContextManager[object]:
        """There is nothing to activate."""
        return _NOTHING

    def range(self, name: str) -> AbstractContextManager[object]:
        """Tell `enter_range`."""
        return self.enter_range(name)

    def memory_nbytes(self) -> tuple[int, int]:
        """Return the memory of a large GPU."""
        return _TOTAL_NBYTES, _TOTAL_NBYTES

    # ---- streams and events

    def stream(self) -> Stream:
        """Return a new stream."""
        stream = Stream(next(self._handles))
        self.streams[stream.handle] = stream
        return stream

    def consumer_stream(self) -> Stream:
        """Return one stream for all threads, as CUDA's legacy default stream is; nobody works on it."""
        return self._consumer

    def event(self) -> Any:
        """Return a new event, a point in a stream."""
        return SimpleNamespace(operation=None)

    def record(self, event: Any, stream: Stream) -> None:
        """Move an event to the end of a stream."""
        event.operation = stream.last
        self.take("record_s")

    def wait(self, stream: Stream, event: Any) -> None:
        """Let a stream wait for an event."""
        if self.simulation is not None:
            self.simulation.hold(stream, event.operation)
        self.take("record_s")

    def synchronize(self, of: Stream) -> None:
        """Sleep until a stream is idle."""
        if self.simulation is not None:
            self.simulation.wait_for(of.last)

    def synchronize_event(self, of: Any) -> None:
        """Sleep until an event is reached."""
        if self.simulation is not None:
            self.simulation.wait_for(of.operation)

    # ---- memory

    def allocate(self, nbytes: int, _stream: Any) -> Any:
        """Return addresses of nothing."""

        def free(_stream: object = None) -> None:
            self.take("free_s")

        self.take("allocate_s")
        address = Address(next(self._addresses))
        return SimpleNamespace(address=address, nbytes=nbytes, free=free, free_behind=free)

    def allocate_pinned(self, nbytes: int) -> Any:
        """Return ordinary host memory that the system has not given yet."""
        return SimpleNamespace(array=np.zeros(nbytes, np.uint8))

    def array_in(self, memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        """Return an array without elements, which keeps `owner` alive."""
        return SimpleNamespace(shape=shape, dtype=dtype, address=memory.address, owner=owner)

    def address(self, array: Any) -> Address:
        """Return the address of nothing."""
        return Address(array.address)

    # ---- work

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Let the engine that copies up take its time."""
        self._uploads.append((to, data))
        self._copy("upload", data.nbytes, stream)

    def download(self, into: Bytes, start: Address, stream: Stream) -> None:
        """Let the engine that copies down take its time; say of every stream that it was decoded."""
        into[:] = 0
        answers = self._answers
        for address in [a for a in answers if start <= a < start + len(into)]:
            column = answers.pop(address)
            into[address - start :][: column.nbytes].view(np.uint64)[:] = column
        self._copy("download", into.nbytes, stream)

    def _copy(self, engine: str, nbytes: int, stream: Stream) -> None:
        if self.simulation is not None and self.rates is not None:
            self.simulation.enqueue(stream, engine, 1, self.rates.copy_latency_s + nbytes / self.rates.copy_rate)
            self.take("copy_call_s")

    def launch(self, kernel: Kernel, n_blocks: int, _n_threads: int, _args: object, stream: Stream) -> None:
        """Let a kernel take its time."""
        if self.simulation is not None and self.rates is not None:
            seconds = self.rates.kernel_latency_s + self.rates.check_s * (kernel.name == "zstd_blocks")
            if kernel.name == "scatter":  # in tiles that are mostly nearly full
                itemsizes = [int(dtype[1:]) for name, dtype in kernel.defines if name in ("STORED", "RESULT")]
                seconds += n_blocks * MAX_TILE * sum(itemsizes) / self.rates.kernel_rate
            self.simulation.enqueue(stream, "kernel", 1, seconds)
        self.take("launch_s")

    def decode(self, fmt: str, nbytes: Words, actual: int, stream: Stream) -> None:
        """Let frames take slots of their format; they will be said to have the length they should."""
        self._answers[actual] = nbytes
        if self.simulation is None or self.rates is None:
            return
        rates, n, longest = self.rates.formats[fmt], len(nbytes), int(nbytes.max())  # all as long, but for a last one
        self.n_decoded += n
        n_frames, n_parts = (n, 1) if self.rates.in_turn else (1, n)
        self.simulation.enqueue(stream, fmt, n_parts, rates.call_s(n_frames, longest))

    def column(self, address: int, n: int) -> Words:
        """Return a copy of words of a table that was uploaded lately."""
        for first, data in reversed(self._uploads):
            if first <= address and address + 8 * n <= first + len(data):
                return data[address - first :][: 8 * n].view(np.uint64).copy()
        raise LookupError(f"nothing was uploaded to {address:#x} lately")


class ModelledNvcomp:
    """Answers what decoding asks before a batch, and decodes nothing."""

    def __init__(self, device: ModelledDevice) -> None:
        self._device = device

    def temp_nbytes(self, fmt: str, *, n_chunks: int, max_nbytes: int, total_nbytes: int) -> int:  # noqa: ARG002
        """Return what nvCOMP would answer."""
        return zstd_temp_nbytes(n_chunks, total_nbytes) if fmt == "zstd" else 0

    def alignment(self, _fmt: str) -> Alignment:
        """Return that no address matters."""
        return Alignment(source=1, output=1, temp=1)

    def decompress(self, fmt: str, batch: Batch, *, n_chunks: int, stream: int, **_scratch: int) -> None:
        """Let every stream of the batch take a slot of the decoder."""
        device = self._device
        lengths = device.column(batch.capacity, n_chunks)
        device.decode(fmt.partition(",")[0], lengths, batch.actual, device.streams[stream])
        device.take("decompress_s")
