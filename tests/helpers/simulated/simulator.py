"""A GPU on host memory: `DeviceApi` as unkind as the contract allows, to prove the CUDA decoder without a GPU.

Streams run late and in any order that the events allow (`streams`); memory is poisoned before and after use (`memory`);
arrays are as strict as CuPy's (`array`). What goes wrong while work runs is raised as AssertionError by the next call.
Kernels run as `kernels.on_host` builds them, nvCOMP is `fake_nvcomp`.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from helpers.kernels import on_host as host_kernels
from helpers.simulated import alignment
from helpers.simulated.array import SimulatedArray
from helpers.simulated.calls import Border
from helpers.simulated.fake_nvcomp import FakeNvcomp
from helpers.simulated.files import SimulatedFile
from helpers.simulated.memory import POISON, Arena, Block, PinnedPool, SimulatedMemory, SimulatedPinned
from helpers.simulated.streams import Scheduler, SimulatedEvent, SimulatedStream, Touch, touch_all, touch_of
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceIdentity, Kernel, Undo
from xarray_gpuzarr.cuda.nvcomp import Nvcomp
from xarray_gpuzarr.errors import DeviceMemoryError

RunKernel = Callable[[Kernel, int, int, Sequence[int]], object]


class SimulatedDevice:
    """One GPU that is none.

    The seed draws the order of all work; its remainder by four decides how late it runs, see `streams.MODES`. Calls of
    a device whose index is not 0 must be made inside `activate`. `fail_allocations` is told the bytes of each
    allocation of device memory; True lets it fail. Calls among `mutations` are ignored (see `calls.MUTATIONS`), as
    proofs that a test can fail. A device that steals has a pool that takes what another stream has just freed, and
    waits for that stream. A device without an identity is taken at its word and checks nothing of itself.
    """

    def __init__(
        self,
        seed: int = 0,
        memory_nbytes: int = 1 << 30,
        index: int = 0,
        *,
        pinned_nbytes: int | None = None,
        fail_allocations: Callable[[int], bool] | None = None,
        run_kernel: RunKernel | None = None,
        mutations: Collection[str] = (),
        reads_files: bool = False,
        steals: bool = False,
        identity: DeviceIdentity | None = None,
    ) -> None:
        self.index = index
        self.identity = identity
        self._reads_files = reads_files
        self._steals = steals
        self.stolen: list[tuple[SimulatedStream, SimulatedStream]] = []
        """Who took memory, and from whom, where that one had more to do than to free it."""
        self.nbytes_uploaded = self.nbytes_downloaded = 0
        self.n_shared = 0
        self.built: list[Kernel] = []
        self._total_nbytes = memory_nbytes
        self._pinned_limit = pinned_nbytes
        self._fail_allocations = fail_allocations
        self._run_kernel = run_kernel or alignment.launch
        self._dead: deque[Block] = deque()
        self._arena = Arena(memory_nbytes)
        self._pinned = PinnedPool()
        self._scheduler = Scheduler(seed)
        me = weakref.proxy(self)  # a cycle would keep the memory until the garbage collector comes
        self._border = Border(index, self._scheduler, mutations, tidy=lambda: me._bury())  # noqa: PLW0108
        self._fake_nvcomp = FakeNvcomp(lambda handle, work: me._give_nvcomp(handle, work))  # noqa: PLW0108
        self.nvcomp = Nvcomp(self._fake_nvcomp)

    @property
    def calls(self) -> Counter[str]:
        """How often each member was called; also ``free``, ``nvcomp``, and ``get``, ``set``, ``place`` of arrays."""
        return self._border.calls

    @property
    def n_synchronizations(self) -> int:
        return self.calls["synchronize"] + self.calls["synchronize_event"]

    @property
    def peak_nbytes(self) -> int:
        return self._arena.peak_nbytes

    @property
    def pinned_nbytes(self) -> int:
        return self._pinned.nbytes

    @property
    def peak_pinned_nbytes(self) -> int:
        return self._pinned.peak_nbytes

    def activate(self) -> AbstractContextManager[None]:
        return self._border.activate()

    def external_stream(self, handle: int) -> SimulatedStream:
        with self._border.call("external_stream"):
            return self._scheduler.streams[handle]

    def use_stream(self, stream: SimulatedStream) -> None:
        with self._border.call("use_stream", stream):
            stream.use()

    def memory_nbytes(self) -> tuple[int, int]:
        with self._border.call("memory_nbytes"):
            return self._total_nbytes - self._arena.nbytes, self._total_nbytes

    def stream(self) -> SimulatedStream:
        with self._border.call("stream"):
            return self._scheduler.stream(0x1000 * (self.index + 1) + 0x10 * len(self._scheduler.streams))

    def current_stream(self) -> SimulatedStream:
        with self._border.call("current_stream"):
            return self._scheduler.current.stream

    def consumer_stream(self) -> SimulatedStream:
        return self.current_stream()

    def event(self) -> SimulatedEvent:
        with self._border.call("event"):
            return SimulatedEvent(self._scheduler)

    def record(self, event: SimulatedEvent, stream: SimulatedStream) -> None:
        with self._border.call("record", event, stream) as ignored:
            if not ignored:
                event.point = self._scheduler.end_of(stream)

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        with self._border.call("wait", event, stream) as ignored:
            if event.point is not None and not ignored:
                self._scheduler.hold(stream, event.point)

    def synchronize(self, stream: SimulatedStream) -> None:
        with self._border.call("synchronize", stream) as ignored:
            if not ignored:
                self._scheduler.reach(self._scheduler.end_of(stream))

    def synchronize_event(self, event: SimulatedEvent) -> None:
        with self._border.call("synchronize_event", event) as ignored:
            if event.point is not None and not ignored:
                self._scheduler.reach(event.point)

    def allocate(self, nbytes: int, stream: SimulatedStream) -> SimulatedMemory:
        with self._border.call("allocate", stream):
            return self._memory(nbytes, stream)

    def allocate_pinned(self, nbytes: int) -> SimulatedPinned:
        with self._border.call("allocate_pinned"):
            left = math.inf if self._pinned_limit is None else self._pinned_limit - self._pinned.nbytes
            if nbytes > left:
                raise _out_of_memory("pinned host", nbytes, left)
            return self._pinned.allocate(nbytes)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: SimulatedStream) -> SimulatedArray:
        with self._border.call("empty", stream):
            assert dtype.kind in "biufc", f"CuPy has no arrays of {dtype}"
            return self._array(shape, dtype, stream)

    def array_in(
        self, memory: SimulatedMemory, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object
    ) -> SimulatedArray:
        with self._border.call("array_in"):
            assert dtype.kind in "biufc", f"CuPy has no arrays of {dtype}"
            nbytes = math.prod(shape) * dtype.itemsize
            assert nbytes <= memory.nbytes
            return SimulatedArray(self, owner, self._arena.view(memory.address, nbytes).view(dtype).reshape(shape))

    def address(self, array: SimulatedArray) -> Address:
        with self._border.call("address"):
            return Address(array.elements.ctypes.data)

    def upload(self, to: Address, data: Bytes, stream: SimulatedStream) -> None:
        with self._border.call("upload", stream):
            name = f"upload of {data.nbytes} bytes to {to:#x}"
            source = self._pinned.find(data, name)
            self._arena.find(to, data.nbytes, name)
            target = self._arena.view(to, data.nbytes)
            asked = data.copy()
            touches = touch_of(data, "read"), touch_of(target, "write")
            self._scheduler.give(stream, name, lambda: np.copyto(target, source.read(asked)), *touches)
            self.nbytes_uploaded += data.nbytes

    def download(self, into: Bytes, start: Address, stream: SimulatedStream) -> None:
        with self._border.call("download", stream):
            name = f"download of {into.nbytes} bytes from {start:#x}"
            target = self._pinned.find(into, name)
            self._arena.find(start, into.nbytes, name)
            source = self._arena.view(start, into.nbytes)
            into.fill(POISON)
            touches = touch_of(source, "read"), touch_of(into, "write")
            self._scheduler.give(stream, name, lambda: target.write(source), *touches)
            self.nbytes_downloaded += into.nbytes

    def launch(
        self, kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int], stream: SimulatedStream
    ) -> None:
        with self._border.call("launch", stream):
            name = f"kernel {kernel.name}"
            assert 1 <= n_blocks < 2**31, f"{name}: {n_blocks} blocks"
            assert 1 <= n_threads <= 1024, f"{name}: {n_threads} threads"
            words = np.array(args, np.uint64).tolist()
            pointers = [word for word in words if self._arena.holds(word)]
            ends = [self._arena.find(pointer, 0, name).end for pointer in pointers]
            touches = [Touch(p, min(p + 1, end), "pointer") for p, end in zip(pointers, ends, strict=True)]
            self._scheduler.give(stream, name, partial(self._run_kernel, kernel, n_blocks, n_threads, words), *touches)

    def why_no_gds(self) -> str | None:
        return None if self._reads_files else "the simulated device reads no files"

    def open_file(self, path: str) -> SimulatedFile:
        with self._border.call("open_file"):
            assert self._reads_files
            return SimulatedFile(self, path)

    def build(self, kernels: Iterable[Kernel]) -> None:
        with self._border.call("build"):
            self.built += list(map(host_kernels.build, kernels))

    def share_pool(self) -> Undo:
        """Only count: what sharing does is no matter of this device."""

        def undo() -> None:
            self.n_shared = 0

        with self._border.call("share_pool"):
            self.n_shared += 1
        return undo

    def trim(self) -> None:
        with self._border.call("trim"):
            """There is no pool."""

    def range(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self) -> None:
        """Finish all work; fail on faults, and on writes to memory that belongs to nobody."""
        with self._border.enter("check"):
            self._scheduler.reach_all()
            self._scheduler.raise_fault()
            assert not self._fake_nvcomp.faults, self._fake_nvcomp.faults
            self._arena.check()

    def read(self, elements: np.ndarray) -> np.ndarray:
        """Return a copy of an array's elements, made by the consumer's stream."""
        with self._border.enter("get"):
            values = np.empty(elements.shape, elements.dtype)
            stream = self._scheduler.current.stream
            touch = touch_of(elements, "read")
            self._scheduler.give(stream, "get", lambda: np.copyto(values, elements), touch)
            self._scheduler.reach(self._scheduler.end_of(stream))
        return values

    def write(self, elements: np.ndarray, key: Any, value: Any) -> None:
        """Assign to an array's elements in the order of the consumer's stream."""
        with self._border.enter("set"):
            run = partial(elements.__setitem__, key, np.copy(value))
            self._scheduler.give(self._scheduler.current.stream, "set", run, touch_of(elements, "write"))

    def array(self, values: np.ndarray) -> SimulatedArray:
        return self.place(values)

    def place(self, values: np.ndarray) -> SimulatedArray:
        """Return a new array that the consumer's stream fills."""
        with self._border.enter("place"):
            array = self._array(values.shape, values.dtype, self._scheduler.current.stream)
            self.write(array.elements, ..., values)
            return array

    def _free(self) -> None:
        with self._border.enter("free"):
            """Entering frees what is dead."""

    def _bury(self) -> None:
        """Free on their streams the blocks that were given up."""
        while self._dead:
            block = self._dead.popleft()
            self._arena.give_back(block)
            if block.freed_behind is not None:
                self._scheduler.hold(block.stream, block.freed_behind)
            name = f"free of {block.nbytes} bytes at {block.address:#x}"
            self._scheduler.give(block.stream, name, partial(self._arena.end, block), touch_all(block))

    def _allocate(self, nbytes: int, stream: SimulatedStream) -> Block:
        left = self._total_nbytes - self._arena.nbytes
        if nbytes > left or (self._fail_allocations is not None and self._fail_allocations(nbytes)):
            raise _out_of_memory("device", nbytes, left)
        taken = self._arena.steal(nbytes, stream) if self._steals else None
        if taken is not None:
            block, owner = taken
            if any(not operation.name.startswith("free of") for _, operation in owner.queue):
                self.stolen.append((stream, owner))
            self._scheduler.hold(stream, self._scheduler.end_of(owner))
        else:
            block = self._arena.take(nbytes, stream)
        if block is None:  # memory is there, but belongs to other streams or is cut up
            self._scheduler.reach_all()
            self._arena.merge()
            block = self._arena.take(nbytes, stream)
        if block is None:
            raise _out_of_memory("device", nbytes, left)
        name = f"allocation of {nbytes} bytes at {block.address:#x}"
        self._scheduler.give(stream, name, partial(self._arena.begin, block), touch_all(block))
        return block

    def _memory(self, nbytes: int, stream: SimulatedStream) -> SimulatedMemory:
        return SimulatedMemory(self._allocate(nbytes, stream), self._dead.append, self._free)

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: SimulatedStream) -> SimulatedArray:
        nbytes = int(math.prod(shape)) * dtype.itemsize  # zarr-python gives integers of NumPy, too
        memory = self._memory(nbytes, stream)
        elements = self._arena.view(memory.address, nbytes).view(dtype).reshape(shape)
        return SimulatedArray(self, memory, elements)

    def _give_nvcomp(self, handle: int, work: Callable[[], None]) -> None:
        def run() -> None:
            work()
            assert not self._fake_nvcomp.faults, self._fake_nvcomp.faults

        try:
            with self._border.call("nvcomp"):
                assert handle in self._scheduler.streams, f"nvCOMP: there is no stream {handle:#x}"
                self._scheduler.give(self._scheduler.streams[handle], "nvCOMP", run)
        except AssertionError as error:  # the C frame would lose it
            self._scheduler.fault = self._scheduler.fault or error


def _out_of_memory(kind: str, nbytes: int, left: float) -> DeviceMemoryError:
    return DeviceMemoryError(
        f"not enough {kind} memory", tried=f"{nbytes} bytes", found=f"{left} bytes left", do="allocate less"
    )
