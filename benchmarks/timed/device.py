"""`DeviceApi` of a device that decodes nothing and takes as long as one might that does.

What the host is told of every batch is that all went well: the lengths that it expects are read from the tables that it
uploads. Calls keep their thread as long as CUDA's might, busy and holding Python's lock: what the simulation itself
needs is part of that, and what it needs beyond is counted. Checksums of decoded bytes, which gzip and zlib have, cannot
be answered: there are no decoded bytes.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.host_cost.null_device import NullDevice, NullNvcomp
from benchmarks.timed.bounds import call_s
from benchmarks.timed.clock import Clock, WallClock
from benchmarks.timed.memory import DeviceBytes
from benchmarks.timed.rates import RATIO, Rates
from benchmarks.timed.simulation import Group, Operation, Simulation, Stream
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, Kernel
from xarray_gpuzarr.cuda.axes import MAX_TILE, N_THREADS
from xarray_gpuzarr.cuda.nvcomp import Batch

Words = npt.NDArray[np.uint64]

_TILE_ELEMENTS = 16 * N_THREADS
"""Of what a block of threads handles; boxes are placed in tiles of up to `MAX_TILE`, mostly nearly that."""
_N_UPLOADS_KNOWN = 32


class TimedEvent:
    """A point in a stream."""

    __slots__ = ("operation",)

    def __init__(self) -> None:
        self.operation: Operation | None = None


class TimedArray(np.ndarray[Any, Any]):
    """An array without elements of its own: all have the address of one. Frees its memory on its stream."""

    address = Address(0)
    owner: object = None


class _Memory:
    """Memory that nobody follows the address of."""

    __slots__ = ("_device", "_stream", "address", "nbytes")

    def __init__(self, device: TimedDevice, address: Address, nbytes: int, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self.address = address
        self.nbytes = nbytes

    def free(self) -> None:
        with self._device.taking(self._device.rates.host.free_s):
            self._device.memory.free(self.nbytes, self._stream)

    def free_behind(self, consumer: Stream, on: Stream) -> None:
        self._device.simulation.hold(on, consumer.last)
        self._stream = on
        self.free()


class _OfThread(threading.local):
    """What a thread has told the device lately, and what it is to be told."""

    def __init__(self) -> None:
        self.uploads: deque[tuple[int, Bytes]] = deque(maxlen=_N_UPLOADS_KNOWN)
        """Where they went; a slot is not written to again before what its tables are for is enqueued."""
        self.answers: dict[int, Words] = {}
        """Columns that kernels will have written, by address."""


class TimedDevice(NullDevice):
    """`DeviceApi` whose operations take their time.

    Parameters
    ----------
    rates : Rates
    clock : Clock
    """

    def __init__(self, rates: Rates | None = None, clock: Clock | None = None) -> None:
        super().__init__()
        self.rates = rates or Rates()
        self.clock = clock or WallClock()
        self.simulation = Simulation(self.rates.slots, self.clock)
        self.memory = DeviceBytes(self.simulation)
        self.nvcomp = TimedNvcomp(self)
        self.ratio = RATIO
        """Of decoded to encoded bytes, of all that is decoded."""
        self.decoded: list[Group] = []
        """All chunks that calls were given."""
        self.overrun_s = 0.0
        """What calls took longer than they should, all threads together: the simulation is slower than a driver."""
        self._streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self._consumer = self.stream()
        self._addresses = itertools.count(1 << 40, 1 << 36)
        self._of_thread = _OfThread()

    def taking(self, seconds: float) -> _Taking:
        """Return what lets a ``with`` block take at least so long."""
        return _Taking(self, seconds)

    def stream(self) -> Stream:
        """Return a new stream."""
        stream = self.simulation.stream()
        self._streams[stream.handle] = stream
        return stream

    def stream_of(self, handle: int) -> Stream:
        """Return the stream of a handle."""
        return self._streams[handle]

    def consumer_stream(self) -> Stream:
        """Return one stream for all threads, as CUDA's legacy default stream is; nobody works on it."""
        return self._consumer

    def consuming(self, stream: Stream) -> AbstractContextManager[None]:  # noqa: ARG002
        """Change nothing: there is one such stream."""
        return nullcontext()

    def event(self, *, timed: bool = False) -> TimedEvent:  # noqa: ARG002
        """Return a new event."""
        return TimedEvent()

    def elapsed_s(self, first: TimedEvent, last: TimedEvent) -> float:
        """Return the seconds between two events that were reached; 0 if there was nothing before one of them."""
        start, end = first.operation, last.operation
        return (end.end_s or 0.0) - (start.end_s or 0.0) if start is not None and end is not None else 0.0

    def record(self, event: TimedEvent, stream: Stream) -> None:
        """Move an event to the end of a stream."""
        with self.taking(self.rates.host.record_s):
            event.operation = stream.last

    def wait(self, stream: Stream, event: TimedEvent) -> None:
        """Let a stream wait for an event."""
        with self.taking(self.rates.host.record_s):
            self.simulation.hold(stream, event.operation)

    def synchronize(self, of: Stream) -> None:
        """Sleep until a stream is idle."""
        self.simulation.wait_for(of.last)

    def synchronize_event(self, of: TimedEvent) -> None:
        """Sleep until an event is reached."""
        self.simulation.wait_for(of.operation)

    def allocate(self, nbytes: int, stream: Stream) -> _Memory:
        """Return addresses of nothing."""
        with self.taking(self.rates.host.allocate_s):
            self.memory.take(nbytes, stream)
            return _Memory(self, Address(next(self._addresses)), nbytes, stream)

    def allocate_pinned(self, nbytes: int) -> Any:
        """Return ordinary host memory, touched."""
        with self.taking(self.rates.host.pinned_s_per_nbyte * nbytes):
            pinned = super().allocate_pinned(nbytes)
            pinned.array[::4096] = 0
            return pinned

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream) -> TimedArray:
        """Return an array without elements of its own."""
        memory = self.allocate(math.prod(shape) * dtype.itemsize, stream)
        array = self.array_in(memory, shape, dtype, None)
        weakref.finalize(array, memory.free).atexit = False
        return array

    def array_in(self, memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> TimedArray:
        """Return an array without elements of its own, which keeps `owner` alive."""
        one = np.zeros(1, dtype)
        array = np.lib.stride_tricks.as_strided(one, shape, (0,) * len(shape)).view(TimedArray)
        array.address, array.owner = memory.address, owner
        return array

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Let the engine that copies up take its time."""
        with self.taking(self.rates.host.copy_s):
            self._of_thread.uploads.append((to, data))
            self._copy("upload", data.nbytes, stream)

    def download(self, into: Bytes, start: Address, stream: Stream) -> None:
        """Let the engine that copies down take its time; say of every stream that it was decoded."""
        with self.taking(self.rates.host.copy_s):
            into[:] = 0
            answers = self._of_thread.answers
            for address in [a for a in answers if start <= a < start + len(into)]:
                column = answers.pop(address)
                into[address - start :][: column.nbytes].view(np.uint64)[:] = column
            self._copy("download", into.nbytes, stream)

    def _copy(self, engine: str, nbytes: int, stream: Stream) -> None:
        self.simulation.enqueue(stream, engine, [(1, self.rates.copy_s(nbytes))], engine)

    def launch(self, kernel: Kernel, n_blocks: int, _n_threads: int, args: Sequence[int], stream: Stream) -> None:
        """Let a kernel take its time."""
        with self.taking(self.rates.host.launch_s):
            if kernel.name == "blosclz":
                table, n, actual, _ = args
                self.decode("blosclz", self.column(table + 24 * n, n), actual, stream)
                return
            seconds = self._seconds(kernel, n_blocks, args)
            self.simulation.enqueue(stream, "kernel", [(1, seconds)], kernel.name)

    def _seconds(self, kernel: Kernel, n_blocks: int, args: Sequence[int]) -> float:
        """Return how long a kernel takes, by the bytes that it moves, as far as arguments and tables tell."""
        rates = self.rates
        match kernel.name:
            case "move" | "unshuffle":
                table, n = args[:2]
                return rates.kernel_s(2 * int(self.column(table + 16 * n, n).sum()))
            case "zstd_blocks":
                return rates.kernel_latency_s + rates.check_s
            case "scatter" | "points":
                defined = dict(kernel.defines)
                itemsizes = [int(defined[which][1:]) for which in ("STORED", "RESULT")]
                tile = MAX_TILE if kernel.name == "scatter" else _TILE_ELEMENTS
                return rates.kernel_s(n_blocks * tile * sum(itemsizes))
            case "checksum":
                raise NotImplementedError("checksums of bytes that nobody decodes")
            case _:
                return rates.kernel_s(n_blocks * _TILE_ELEMENTS * 8)

    def decode(self, fmt: str, nbytes: Words, actual: int, stream: Stream) -> None:
        """Let streams of one format take slots of the decoder; they will be said to have the length they should."""
        self._of_thread.answers[actual] = nbytes
        groups = [(n, self.rates.decoding_s(fmt, length, self.ratio)) for n, length in runs(nbytes)]
        self.decoded += groups
        if self.rates.in_turn:
            groups = [(1, call_s(groups, self.rates.n_decoding))]
        self.simulation.enqueue(stream, "decode", groups, fmt)

    def column(self, address: int, n: int) -> Words:
        """Return a copy of words of a table that the calling thread has uploaded lately."""
        for first, data in reversed(self._of_thread.uploads):
            if first <= address and address + 8 * n <= first + len(data):
                return data[address - first :][: 8 * n].view(np.uint64).copy()
        raise LookupError(f"nothing was uploaded to {address:#x} by this thread lately")


class _Taking:
    """A call of the driver; written out because ``contextlib`` takes nearly as long as what it measures."""

    __slots__ = ("_device", "_until_s")

    def __init__(self, device: TimedDevice, seconds: float) -> None:
        self._device = device
        self._until_s = device.clock.now() + seconds

    def __enter__(self) -> None:
        """Do nothing: the clock runs already."""

    def __exit__(self, *_: object) -> None:
        device, until_s = self._device, self._until_s
        late_s = device.clock.now() - until_s
        if late_s > 0:
            device.overrun_s += late_s
        else:
            device.clock.spin(until_s)


class TimedNvcomp(NullNvcomp):
    """Decodes nothing, and takes its time."""

    def __init__(self, device: TimedDevice) -> None:
        super().__init__()
        self._device = device

    def decompress(self, fmt: str, batch: Batch, *, n_chunks: int, stream: int, **_scratch: int) -> None:
        """Let every stream of the batch take a slot of the decoder."""
        device = self._device
        with device.taking(device.rates.host.decompress_s):
            device.decode(fmt, device.column(batch.capacity, n_chunks), batch.actual, device.stream_of(stream))


def runs(nbytes: Words) -> list[tuple[int, int]]:
    """Return how many streams of one length follow each other, and that length."""
    ends = [*(np.flatnonzero(nbytes[1:] != nbytes[:-1]) + 1).tolist(), len(nbytes)]
    return [(end - start, int(nbytes[start])) for start, end in zip([0, *ends], ends, strict=False)]
