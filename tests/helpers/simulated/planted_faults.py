"""A simulated device that does one thing wrong: a format of nvCOMP, a kernel, or copies; once, or from then on.

A thing that hangs never ends, nor does what its stream is given behind it; whoever waits for that waits until the test
lets go.
"""

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from helpers.simulated.simulator import SimulatedDevice
from helpers.simulated.streams import Point, SimulatedEvent, SimulatedStream
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceIdentity, Kernel
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.errors import CudaError, DeviceMemoryError

IDENTITY = DeviceIdentity(
    name="NVIDIA Simulator",
    uuid="00112233",
    compute_capability="9.0",
    driver="580.1",
    versions={"CuPy": "14.2.0", "nvCOMP": "6.0.0"},
)
Kind = Literal["bytes", "length", "status", "raise", "memory", "hang"]


@dataclass(frozen=True)
class Fault:
    """What goes wrong."""

    where: str
    """A format as `fake_nvcomp.TRAITS` names it, a kernel by its name and macros, ``upload``, ``download``, ``stream``,
    ``event`` or ``allocate``."""
    kind: Kind
    """``bytes`` of a kernel: it does nothing at all, or refuses what is sound."""
    first: int = 0
    """Calls that go well before."""
    times: int = 1 << 30
    chunk: int = 0
    """Of nvCOMP: the chunk of a batch, counted from its start; batches that have none are left alone."""


class FaultyDevice(SimulatedDevice):
    """Does one thing wrong; the seed must be none that runs work eagerly, if something hangs."""

    def __init__(self, fault: Fault | None, seed: int = 0, **keywords: Any) -> None:
        super().__init__(seed, identity=IDENTITY, **keywords)
        self.hangs = threading.Event()
        """Set when somebody begins to wait for what never ends."""
        self.released = threading.Event()
        self.n_met = 0
        """Calls of the thing that goes wrong."""
        self._fault = fault
        self._never = Point(SimulatedStream(self._scheduler, 0, 1.0), 1)
        fake = self._fake_nvcomp
        self._start, self._run_nvcomp = fake._start, fake._run
        fake._start, fake._run = self._start_nvcomp, self._run_wrongly
        self._wrong: dict[int, bool] = {}
        decompress, nvcomp = self.nvcomp.decompress, self.nvcomp

        def checked(fmt: Any, /, batch: Any, **options: Any) -> None:
            if fmt == self._name.lower() and self._kind == "memory" and self._meets():
                raise _no_memory()
            decompress(fmt, batch, **options)

        nvcomp.decompress = checked

    def plant(self, fault: Fault | None) -> None:
        """Let something go wrong from now on."""
        self._fault, self.n_met = fault, 0

    @property
    def _name(self) -> str:
        return "" if self._fault is None else self._fault.where

    @property
    def _kind(self) -> str:
        return "" if self._fault is None else self._fault.kind

    def _meets(self) -> bool:
        """Count a call; say whether it goes wrong."""
        number, fault = self.n_met, self._fault
        self.n_met += 1
        return fault.first <= number < fault.first + fault.times

    def _start_nvcomp(self, launch: Any) -> int:
        if launch.fmt != self._name or self._kind == "memory" or launch.n_chunks <= self._fault.chunk:
            return self._start(launch)
        if self._meets():
            if self._kind == "raise":
                return 10000
            if self._kind == "hang":
                self._scheduler.hold(self._scheduler.streams[launch.stream], self._never)
            self._wrong[launch.statuses] = True
        return self._start(launch)

    def _run_wrongly(self, launch: Any) -> None:
        self._run_nvcomp(launch)
        if not self._wrong.pop(launch.statuses, False):
            return
        at = self._fault.chunk
        words = {"length": launch.actual, "bytes": launch.outputs}
        if self._kind == "status":
            (ctypes.c_int32 * launch.n_chunks).from_address(launch.statuses)[at] = 12
        elif self._kind == "length":
            (ctypes.c_uint64 * launch.n_chunks).from_address(words["length"])[at] -= 1
        else:
            output = (ctypes.c_uint64 * launch.n_chunks).from_address(words["bytes"])[at]
            ctypes.c_uint8.from_address(output).value ^= 0x40

    def launch(
        self, kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int], stream: SimulatedStream
    ) -> None:
        name = " ".join([kernel.name, *(value for _, value in kernel.defines)])
        if self._name not in (name, kernel.name) or not self._meets():
            super().launch(kernel, n_blocks, n_threads, args, stream)
            return
        if self._kind == "raise":
            raise CudaError("a CUDA call failed", tried="cuLaunchKernel", found="cudaErrorUnknown", do="nothing")
        if self._kind == "memory":
            raise _no_memory()
        if self._kind == "hang":
            self._scheduler.hold(stream, self._never)
        if kernel.name == "zstd_blocks":
            super().launch(kernel, n_blocks, n_threads, args, stream)
            with self._border.enter("fault"):
                self._scheduler.give(stream, "fault", lambda: ctypes.memset(int(args[3]), 1, 1))

    def stream(self) -> SimulatedStream:
        self._lack("stream")
        return super().stream()

    def event(self) -> SimulatedEvent:
        self._lack("event")
        return super().event()

    def allocate(self, nbytes: int, stream: SimulatedStream) -> Any:
        self._lack("allocate")
        return super().allocate(nbytes, stream)

    def _lack(self, name: str) -> None:
        if name == self._name and self._meets():
            raise _no_memory()

    def upload(self, to: Address, data: Bytes, stream: SimulatedStream) -> None:
        wrong = self._name == "upload" and self._meets()
        self._before_copy(stream, wrong=wrong)
        super().upload(to, data, stream)
        if wrong and self._kind == "bytes":
            self._spoil(int(to) + data.nbytes - 1, stream)

    def download(self, into: Bytes, start: Address, stream: SimulatedStream) -> None:
        wrong = self._name == "download" and self._meets()
        self._before_copy(stream, wrong=wrong)
        if wrong and self._kind == "bytes":
            self._spoil(int(start), stream)
        super().download(into, start, stream)

    def synchronize(self, stream: SimulatedStream) -> None:
        self._wait(lambda: super(FaultyDevice, self).synchronize(stream))

    def synchronize_event(self, event: SimulatedEvent) -> None:
        self._wait(lambda: super(FaultyDevice, self).synchronize_event(event))

    def _before_copy(self, stream: SimulatedStream, *, wrong: bool) -> None:
        if wrong and self._kind == "raise":
            raise CudaError("a CUDA call failed", tried="cudaMemcpyAsync", found="cudaErrorUnknown", do="nothing")
        if wrong and self._kind == "memory":
            raise _no_memory()
        if wrong and self._kind == "hang":
            self._scheduler.hold(stream, self._never)

    def _spoil(self, address: int, stream: SimulatedStream) -> None:
        def flip() -> None:
            ctypes.c_uint8.from_address(address).value ^= 0x40

        with self._border.enter("fault"):
            self._scheduler.give(stream, "fault", flip)

    def _wait(self, wait: Any) -> None:
        """Wait for the device; for what hangs, until the test lets go."""
        try:
            wait()
        except AssertionError as error:
            if self._kind != "hang" or not str(error).startswith("deadlock"):
                raise
            self.hangs.set()
            self.released.wait(20)  # whoever waits for longer has not been given up
            raise CudaError("a CUDA call failed", tried="synchronize", found="let go", do="nothing") from error


def engine(fault: Fault | None = None, seed: int = 0, **keywords: Any) -> tuple[CudaDecoder, FaultyDevice]:
    """Return a decoder that has been told of nothing, and its device."""
    device = FaultyDevice(fault, seed, **keywords)
    return CudaDecoder(lambda: device), device


def _no_memory() -> DeviceMemoryError:
    return DeviceMemoryError("not enough device memory", tried="1 byte", found="0 bytes left", do="allocate less")
