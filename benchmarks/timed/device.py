"""`DeviceApi` of a device that decodes nothing: calls take as long as on one that does, or no time at all.

What the host is told of every batch is that all went well: the lengths that it expects are read from the tables that it
uploads. With rates, calls keep their thread as long as CUDA's might, and streams and engines are simulated. Without,
what is left of a read is the host's own work. Checksums of decoded bytes, which gzip and zlib have, cannot be answered:
there are no decoded bytes.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from benchmarks.timed.bounds import call_s
from benchmarks.timed.rates import RATIO, Rates
from benchmarks.timed.simulation import Group, Operation, Simulation, Stream
from benchmarks.timed.virtual_clock import Clock
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, Kernel
from xarray_gpuzarr.cuda.axes import MAX_TILE, N_THREADS
from xarray_gpuzarr.cuda.nvcomp import Alignment, Batch, zstd_temp_nbytes

Words = npt.NDArray[np.uint64]

_TOTAL_NBYTES = 80 * 10**9
_TILE_ELEMENTS = 16 * N_THREADS
"""Of what a block of threads handles; boxes are placed in tiles of up to `MAX_TILE`, mostly nearly that."""
_N_UPLOADS_KNOWN = 32
_NOTHING: AbstractContextManager[Any] = nullcontext()


class ModelledEvent:
    """A point in a stream."""

    __slots__ = ("operation",)

    def __init__(self) -> None:
        self.operation: Operation | None = None


class _Memory:
    """Memory that nobody follows the address of."""

    __slots__ = ("_device", "address", "nbytes")

    def __init__(self, device: ModelledDevice, address: Address, nbytes: int) -> None:
        self._device = device
        self.address = address
        self.nbytes = nbytes

    def free(self) -> None:
        self._device.take("free_s")

    def free_behind(self, stream: object) -> None:  # noqa: ARG002  # nobody else gets it
        self.free()


class _OfThread(threading.local):
    """What a thread has told the device lately, and what it is to be told."""

    def __init__(self) -> None:
        self.uploads: deque[tuple[int, Bytes]] = deque(maxlen=_N_UPLOADS_KNOWN)
        """Where they went; a slot is not written to again before what its tables are for is enqueued."""
        self.answers: dict[int, Words] = {}
        """Columns that kernels will have written, by address."""


class ModelledDevice:
    """A device that decodes nothing.

    Parameters
    ----------
    rates : Rates or None
        How long operations and calls take; None: no time at all, and nothing of them is noted down.
    clock : Clock or None
        Needed with rates.
    """

    index = 0
    identity = None

    def __init__(self, rates: Rates | None = None, clock: Clock | None = None) -> None:
        self.rates = rates
        self._clock = clock
        self.simulation = None if rates is None or clock is None else Simulation(rates.slots, clock)
        self.nvcomp = ModelledNvcomp(self)
        self.ratio = RATIO
        """Of decoded to encoded bytes, of all that is decoded."""
        self.decoded: list[Group] = []
        """All chunks that calls were given, by their times."""
        self.enter_range: Callable[[str], AbstractContextManager[object]] = lambda _name: _NOTHING
        """What profilers would be told; nobody listens, until this is replaced."""
        self._handles = itertools.count(1)
        self._addresses = itertools.count(1 << 40, 1 << 36)
        self._streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        self._consumer = self.stream()
        self._of_thread = _OfThread()

    @property
    def as_api(self) -> DeviceApi:
        """Itself: the members that reads of chunks use."""
        return cast("DeviceApi", self)

    def take(self, call: str) -> None:
        """Keep the calling thread busy for as long as a call of CUDA's does: a field of `HostCosts`."""
        if self.rates is not None and self._clock is not None:
            self._clock.spin(self._clock.now() + getattr(self.rates.host, call))

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
        self._streams[stream.handle] = stream
        return stream

    def stream_of(self, handle: int) -> Stream:
        """Return the stream of a handle."""
        return self._streams[handle]

    def current_stream(self) -> Stream:
        """Return one stream for all threads, as CUDA's legacy default stream is; nobody works on it."""
        return self._consumer

    consumer_stream = current_stream

    def use(self, _stream: Stream) -> None:
        """Change nothing: there is one such stream."""

    def event(self) -> ModelledEvent:
        """Return a new event."""
        return ModelledEvent()

    def record(self, event: ModelledEvent, stream: Stream) -> None:
        """Move an event to the end of a stream."""
        event.operation = stream.last
        self.take("record_s")

    def wait(self, stream: Stream, event: ModelledEvent) -> None:
        """Let a stream wait for an event."""
        if self.simulation is not None:
            self.simulation.hold(stream, event.operation)
        self.take("record_s")

    def synchronize(self, of: Stream) -> None:
        """Sleep until a stream is idle."""
        if self.simulation is not None:
            self.simulation.wait_for(of.last)

    def synchronize_event(self, of: ModelledEvent) -> None:
        """Sleep until an event is reached."""
        if self.simulation is not None:
            self.simulation.wait_for(of.operation)

    # ---- memory

    def allocate(self, nbytes: int, _stream: Any) -> _Memory:
        """Return addresses of nothing."""
        self.take("allocate_s")
        return _Memory(self, Address(next(self._addresses)), nbytes)

    def allocate_pinned(self, nbytes: int) -> Any:
        """Return ordinary host memory that the system has not given yet."""
        return SimpleNamespace(array=np.zeros(nbytes, np.uint8))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any) -> Any:
        """Return an array without elements."""
        return self.array_in(self.allocate(math.prod(shape) * dtype.itemsize, stream), shape, dtype, None)

    def array_in(self, memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        """Return an array without elements, which keeps `owner` alive."""
        return SimpleNamespace(shape=shape, dtype=dtype, address=memory.address, owner=owner)

    def address(self, array: Any) -> Address:
        """Return the address of nothing."""
        return Address(array.address)

    def trim(self) -> None:
        """Nothing was kept."""

    def why_no_files(self) -> str:
        """Say why no file is read straight into device memory."""
        return "this is no device"

    # ---- work

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Let the engine that copies up take its time."""
        self._of_thread.uploads.append((to, data))
        self._copy("upload", data.nbytes, stream)

    def download(self, into: Bytes, start: Address, stream: Stream) -> None:
        """Let the engine that copies down take its time; say of every stream that it was decoded."""
        into[:] = 0
        answers = self._of_thread.answers
        for address in [a for a in answers if start <= a < start + len(into)]:
            column = answers.pop(address)
            into[address - start :][: column.nbytes].view(np.uint64)[:] = column
        self._copy("download", into.nbytes, stream)

    def _copy(self, engine: str, nbytes: int, stream: Stream) -> None:
        if self.simulation is not None and self.rates is not None:
            self.simulation.enqueue(stream, engine, [(1, self.rates.copy_s(nbytes))], engine)
            self.take("copy_s")

    def build(self, _kernels: object) -> None:
        """Nothing is built."""

    def launch(self, kernel: Kernel, n_blocks: int, _n_threads: int, args: Sequence[int], stream: Stream) -> None:
        """Let a kernel take its time."""
        if kernel.name == "blosclz":
            table, n, actual, _ = args
            self.decode("blosclz", self.column(table + 24 * n, n), actual, stream)
        elif self.simulation is not None:
            self.simulation.enqueue(stream, "kernel", [(1, self._seconds(kernel, n_blocks, args))], kernel.name)
        self.take("launch_s")

    def _seconds(self, kernel: Kernel, n_blocks: int, args: Sequence[int]) -> float:
        """Return how long a kernel takes, by the bytes that it moves, as far as arguments and tables tell."""
        rates = self.rates
        assert rates is not None
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
        if self.simulation is None or self.rates is None:
            return
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


class ModelledNvcomp:
    """Answers what decoding asks before a batch, and decodes nothing."""

    def __init__(self, device: ModelledDevice) -> None:
        self._device = device
        self._alignment = Alignment(source=1, output=1, temp=1)

    def temp_nbytes(self, fmt: str, *, n_chunks: int, max_nbytes: int, total_nbytes: int) -> int:  # noqa: ARG002
        """Return what nvCOMP would answer."""
        return zstd_temp_nbytes(n_chunks, total_nbytes) if fmt == "zstd" else 0

    def alignment(self, _fmt: str) -> Alignment:
        """Return that no address matters."""
        return self._alignment

    def decompress(self, fmt: str, batch: Batch, *, n_chunks: int, stream: int, **_scratch: int) -> None:
        """Let every stream of the batch take a slot of the decoder."""
        device = self._device
        device.decode(fmt, device.column(batch.capacity, n_chunks), batch.actual, device.stream_of(stream))
        device.take("decompress_s")


def runs(nbytes: Words) -> list[tuple[int, int]]:
    """Return how many streams of one length follow each other, and that length."""
    ends = [*(np.flatnonzero(nbytes[1:] != nbytes[:-1]) + 1).tolist(), len(nbytes)]
    return [(end - start, int(nbytes[start])) for start, end in zip([0, *ends], ends, strict=False)]
