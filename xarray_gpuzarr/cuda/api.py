"""The interface between the CUDA decoder and the GPU: everything that the decoder calls, and nothing else.

`device.NativeDevice` implements it with CuPy, RMM and nvCOMP. The tests implement it a second time as a simulator on
host memory, whose streams run late and in any order that the events allow, so that a missing wait fails a test.

Addresses are plain integers, which only `cuda` and `decoders.cuda` pass on. Work is enqueued on streams. Only
`synchronize`, `synchronize_event`, `trim` and reads of files wait for the device. Other calls return soon, except that
pinning memory and compiling kernels take milliseconds or more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.nvcomp import Nvcomp

Bytes = npt.NDArray[np.uint8]
"""Host memory as a flat array of bytes."""

Undo = Callable[[], None]
"""Function that undoes a change; a second call does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, identified by its source and by how it is compiled."""

    file: str
    """File below ``xarray_gpuzarr/cuda/kernels``."""
    name: str
    """Name of the ``extern "C"`` function."""
    defines: tuple[tuple[str, str], ...] = ()
    """Preprocessor macros and their values, such as ``(("STORED", "i2"),)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Everything that a GPU's results depend on: the device, its driver, and the libraries."""

    name: str
    """Name of the device, such as ``"NVIDIA H200"``."""
    uuid: str
    """UUID of the device, followed by its PCI bus id. CuPy cuts UUIDs off at a byte of 0, so they may not be unique."""
    compute_capability: str
    """Compute capability, such as ``"9.0"``."""
    driver: str
    """Version of the driver."""
    versions: Mapping[str, str]
    """Version of each library, by its name."""


class Stream(Protocol):
    """A queue of work on the device. The work runs in the order in which it was enqueued."""

    @property
    def handle(self) -> int:
        """The ``cudaStream_t`` as an integer; 0 is the legacy default stream."""


class Event(Protocol):
    """A point in a stream, for which other streams and the host can wait. Recording it again moves it."""


class DeviceMemory(Protocol):
    """Device memory. It belongs to the stream that it was allocated on. Garbage collection frees it as `free` does."""

    @property
    def address(self) -> Address:
        """Address of the first byte, a multiple of 256."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def free(self) -> None:
        """Free the memory once its stream has done all work that it has been given so far. Does not block."""

    def free_behind(self, stream: Stream) -> None:
        """Free the memory once `stream` has done all work that it has been given so far.

        The memory's own stream is not waited for. Does not block. The finaliser of a result calls this, so it may be
        called on any thread, at any point, and with any current device.
        """


class PinnedMemory(Protocol):
    """Page-locked host memory, freed by garbage collection."""

    @property
    def array(self) -> Bytes:
        """The memory, writable."""


class FileRead(Protocol):
    """A read of a file into device memory that has been started."""

    def finish(self) -> int:
        """Block until every stream can see the bytes; return their number. May be called again."""


class DeviceFile(Protocol):
    """A local file, open for reads into device memory."""

    def read(self, to: Address, nbytes: int, offset: int, stream: Stream) -> FileRead:
        """Start reading a range of the file, after all work that `stream` has been given so far.

        The range is cut off at the end of the file. No stream may use the bytes before `FileRead.finish` has returned.

        Parameters
        ----------
        to : Address
            Destination in device memory.
        nbytes, offset : int
            Length and first byte of the range.
        stream : Stream
            Stream that may still use the destination.

        Raises
        ------
        StoreReadError
            If the file cannot be read. `FileRead.finish` may raise it, too.
        """

    def close(self) -> None:
        """Close the file. All its reads must be finished."""


class DeviceApi(Protocol):
    """One GPU. Safe to use from several threads, each with streams of its own.

    `activate`, `index`, `identity`, `nvcomp`, `why_no_gds` and `range` may be used at any time, all other members only
    inside `activate`.
    """

    @property
    def index(self) -> int:
        """Number of the device in this process."""

    @property
    def identity(self) -> DeviceIdentity | None:
        """Identity of the device; None for a simulated or modelled device, which needs no self-checks."""

    def activate(self) -> AbstractContextManager[object]:
        """Make this the device of the calling thread inside a ``with`` block.

        A thread that has used no GPU before keeps this device afterwards: restoring its initial device would create a
        CUDA context on that one.
        """

    def memory_nbytes(self) -> tuple[int, int]:
        """Return (free, total) device memory in bytes."""

    def stream(self) -> Stream:
        """Return a new stream that does not wait for the legacy default stream."""

    def current_stream(self) -> Stream:
        """Return the stream that the calling thread's array library works on now."""

    def consumer_stream(self) -> Stream:
        """Return `current_stream`, after checking that a result can be handed over on it.

        Raises
        ------
        DeviceUnavailableError
            If the memory of a result that is freed on another thread would not wait for the work on that stream.
        """

    def external_stream(self, handle: int) -> Stream:
        """Return the stream of a ``cudaStream_t`` that another library has made on this device, and keeps alive."""

    def use_stream(self, stream: Stream) -> None:
        """Make `stream` the current stream of the calling thread's array library."""

    def event(self) -> Event:
        """Return a new event; waiting for one that was never recorded returns at once."""

    def record(self, event: Event, stream: Stream) -> None:
        """Move `event` to the end of what `stream` has been given so far."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Let all later work of `stream` wait for `event` as it was last recorded."""

    def synchronize(self, stream: Stream) -> None:
        """Block until `stream` has done all its work."""

    def synchronize_event(self, event: Event) -> None:
        """Block until `event`, as it was last recorded, has been reached."""

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Return uninitialised device memory, to be used on `stream` or on streams ordered after it.

        Raises
        ------
        DeviceMemoryError
            If there is not enough memory left.
        """

    def allocate_pinned(self, nbytes: int) -> PinnedMemory:
        """Return page-locked host memory. This takes milliseconds, so callers keep the memory for later reads.

        Raises
        ------
        DeviceMemoryError
            If the system refuses to lock so much memory.
        """

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream) -> Any:
        """Return an uninitialised C-ordered device array; its memory is used and freed in the order of `stream`."""

    def array(self, values: npt.NDArray[Any]) -> Any:
        """Return a device array with a few values, made on the current stream of the calling thread's array library."""

    def array_in(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        """Return a C-ordered device array in `memory`; the array and its views keep `owner` alive."""

    def address(self, array: Any) -> Address:
        """Return the address of the first element of a device array."""

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Enqueue a copy of pinned host memory to the device; `data` must not change until it is done."""

    def download(self, into: Bytes, start: Address, stream: Stream) -> None:
        """Enqueue a copy of device memory to pinned host memory; `into` holds it once `stream` has passed here."""

    def launch(self, kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int], stream: Stream) -> None:
        """Enqueue a kernel on a grid of `n_blocks` blocks of `n_threads` threads.

        Each argument of the kernel is one ``unsigned long long``. The kernel is compiled first unless it was before.
        """

    def build(self, kernels: Iterable[Kernel]) -> None:
        """Compile kernels, so that no read has to wait for that."""

    def share_pool(self) -> Undo:
        """Let the array library allocate from RMM's current pool, process-wide; see `rmm_memory.share_memory`."""

    def trim(self) -> None:
        """Wait until the device is idle, and free unused device memory in the pools of array libraries."""

    def why_no_gds(self) -> str | None:
        """Return why GPUDirect Storage cannot read files straight into device memory; None if it can."""

    def open_file(self, path: str) -> DeviceFile:
        """Open a local file; only if `why_no_gds` returns None.

        Raises
        ------
        StoreReadError
            If the file cannot be opened.
        """

    @property
    def nvcomp(self) -> Nvcomp:
        """The functions of nvCOMP. Raises `DeviceUnavailableError` if it is missing or its version is unsuitable."""

    def range(self, name: str) -> AbstractContextManager[object]:
        """Mark a ``with`` block as a range on a profiler's timeline, if there is a profiler."""
