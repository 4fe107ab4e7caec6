"""The interface between the CUDA decoder and the GPU: everything the decoder may ask for, and nothing else.

`device.NativeDevice` implements it with CuPy, RMM and nvCOMP. The tests implement it once more as a simulator on host
memory, whose streams run late and in any order that the events allow, so that a forgotten wait is a failing test.

Addresses are plain integers that only this package's `cuda` and `decoders.cuda` rooms pass on. Nothing here blocks the
host but `synchronize`, `synchronize_event`, the allocation of pinned memory, and reads of files.
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
"""Take back what was changed; the second call does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, by where its source is and how it is compiled."""

    file: str
    """File below ``xarray_gpuzarr/cuda/kernels``."""
    name: str
    """Its ``extern "C"`` name."""
    defines: tuple[tuple[str, str], ...] = ()
    """Preprocessor macros and their values, such as ``(("STORED", "i2"),)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """Everything that decides what a GPU computes: the device, its driver, and the libraries."""

    name: str
    """Such as ``"NVIDIA H200"``."""
    uuid: str
    """Place of the device, and its UUID as far as CuPy gives it, up to a byte of 0."""
    compute_capability: str
    """Such as ``"9.0"``."""
    driver: str
    """Version of the driver."""
    versions: Mapping[str, str]
    """Version of each library, by its name."""


class Stream(Protocol):
    """Work that runs in the order in which it was given."""

    @property
    def handle(self) -> int:
        """The ``cudaStream_t`` as an integer; 0 is the legacy default stream."""


class Event(Protocol):
    """A point in a stream that others can wait for. Reusable: recording it again moves it."""


class DeviceMemory(Protocol):
    """Device memory that belongs to the stream it was allocated on; goes back as by `free` when it is dropped."""

    @property
    def address(self) -> Address:
        """First byte; aligned to 256 bytes."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def free(self) -> None:
        """Give it back once the work that its stream has been given so far is done. Does not block."""

    def free_behind(self, stream: Stream) -> None:
        """Give it back on another stream, once the work that this one has been given so far is done.

        Does not block, and may be called by the garbage collector: on any thread, at any point, on any device.
        """


class PinnedMemory(Protocol):
    """Page-locked host memory, until it is garbage."""

    @property
    def array(self) -> Bytes:
        """The memory, writable."""


class FileRead(Protocol):
    """A read into device memory that was started."""

    def finish(self) -> int:
        """Block until the bytes are there, for every stream; return their number. May be called again."""


class DeviceFile(Protocol):
    """A local file, open for reads into device memory."""

    def read(self, to: Address, nbytes: int, offset: int, stream: Stream) -> FileRead:
        """Start reading a range, after all that `stream` has been given so far; it may be less at the end of the file.

        No stream may use the bytes before `FileRead.finish` has returned.

        Raises
        ------
        StoreReadError
            Here or on finishing: the file cannot be read so.
        """

    def close(self) -> None:
        """Close the file; only once all its reads are finished."""


class DeviceApi(Protocol):
    """One GPU. Safe to use from several threads, each with streams of its own."""

    @property
    def index(self) -> int:
        """Number of the device in this process."""

    @property
    def identity(self) -> DeviceIdentity | None:
        """Identity of the device; None for one that need not be checked."""

    def activate(self) -> AbstractContextManager[object]:
        """Make this the device of the calling thread inside a ``with`` block.

        A thread that has used no GPU before keeps this one: going back to the one that it began with would start that.
        """

    def memory_nbytes(self) -> tuple[int, int]:
        """Return (free, total) device memory in bytes."""

    def stream(self) -> Stream:
        """Return a new stream that does not wait for the legacy default stream."""

    def current_stream(self) -> Stream:
        """Return the stream that the calling thread's array library works on now."""

    def consumer_stream(self) -> Stream:
        """Return the current stream, on which a result will be used."""

    def external_stream(self, handle: int) -> Stream:
        """Return the stream of that handle, which somebody else has made on this device and keeps."""

    def use_stream(self, stream: Stream) -> None:
        """Make `stream` the one that the calling thread's array library works on from now on."""

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
            There is not so much left.
        """

    def allocate_pinned(self, nbytes: int) -> PinnedMemory:
        """Return page-locked host memory. Slow: for warm-up only.

        Raises
        ------
        DeviceMemoryError
            The system refuses to lock so much.
        """

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Stream) -> Any:
        """Return an uninitialised C-ordered device array whose memory belongs to `stream`."""

    def array(self, values: npt.NDArray[Any]) -> Any:
        """Return a device array with these values, made on the caller's stream; for a few of them."""

    def array_in(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        """Return a C-ordered device array over `memory`; it and its views keep `owner` alive."""

    def address(self, array: Any) -> Address:
        """Return the address of the first element of a device array."""

    def upload(self, to: Address, data: Bytes, stream: Stream) -> None:
        """Copy pinned host memory to the device; `data` must not change until that is done."""

    def download(self, into: Bytes, start: Address, stream: Stream) -> None:
        """Copy device memory to pinned host memory."""

    def launch(self, kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int], stream: Stream) -> None:
        """Run a kernel on a one-dimensional grid; each argument is one ``unsigned long long``."""

    def build(self, kernels: Iterable[Kernel]) -> None:
        """Compile kernels that have not been launched yet, so that no read has to wait for that."""

    def share_pool(self) -> Undo:
        """Let the array library allocate from the caller's pool, process-wide; see `rmm_memory.share_memory`."""

    def trim(self) -> None:
        """Give back device memory that pools of the array library keep unused."""

    def why_no_files(self) -> str | None:
        """Say why files cannot be read straight into device memory; None if they can."""

    def open_file(self, path: str) -> DeviceFile:
        """Open a local file; only if `why_no_files` has nothing to say.

        Raises
        ------
        StoreReadError
            It cannot be opened.
        """

    @property
    def nvcomp(self) -> Nvcomp:
        """The binding to nvCOMP."""

    def range(self, name: str) -> AbstractContextManager[object]:
        """Mark a range on a profiler's timeline."""
