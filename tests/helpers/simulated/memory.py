"""Memory of the simulated device: an arena that hands out poisoned blocks, and pinned arrays.

Everything in the arena that belongs to nobody holds `POISON`: what was never handed out, what was freed, and the red
zones between blocks. So one rule finds writes that go astray. Nothing here knows when work runs; `simulator` says so.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes

if TYPE_CHECKING:
    from helpers.simulated.streams import Point, SimulatedStream

POISON = 0xA5
"""Every byte of memory that holds nothing."""
ALIGNMENT = 256
"""Of a block, and the least width of the red zones around it."""
PAGE = 4096
"""Alignment of pinned memory."""


@dataclass(slots=True, eq=False, kw_only=True)
class Block:
    """One allocation with its red zones."""

    start: int
    """Address of the red zone before it."""
    stop: int
    """End of the red zone behind it."""
    address: int
    nbytes: int
    stream: SimulatedStream
    gone: bool = False
    """The stream has come to the point where it was freed."""
    freed_behind: Point | None = None
    """What its stream waits for before it is freed."""

    @property
    def end(self) -> int:
        return self.address + self.nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Part of the arena that may be handed out."""

    start: int
    stop: int
    was: Block | None = None
    """Until `was` is gone, only its own stream may have this memory."""

    def open_to(self, stream: SimulatedStream | None) -> bool:
        return self.was is None or self.was.gone or self.was.stream is stream


class Arena:
    """Hands out host memory as if it were the device's, what was freed last first."""

    def __init__(self, nbytes: int) -> None:
        # Twice as much address space as may be handed out, so that fragments and red zones do not count.
        self._memory = np.empty(2 * nbytes + (1 << 20), np.uint8)
        self._base = self._memory.ctypes.data
        first = _round_up(self._base)
        self._holes = [Hole(start=first, stop=self._base + len(self._memory))]
        self._merged_at = 64
        """Holes from which on they are joined, so that looking for one takes its time no longer."""
        self._first = self._poisoned_to = first
        self.given: dict[int, Block] = {}
        self.nbytes = 0
        self.peak_nbytes = 0

    def view(self, address: int, nbytes: int) -> Bytes:
        start = address - self._base
        return self._memory[start : start + nbytes]

    def holds(self, address: int) -> bool:
        return self._base <= address < self._base + len(self._memory)

    def find(self, address: int, nbytes: int, what: str) -> Block:
        for block in self.given.values():
            if block.address <= address and address + nbytes <= block.end:
                return block
        near = [b for b in self.given.values() if b.start <= address < b.stop]
        where = (
            f"out of bounds of {near[0].nbytes} bytes at {near[0].address:#x}" if near else "freed or never allocated"
        )
        raise AssertionError(f"{what}: {nbytes} bytes at {address:#x} are {where}")

    def take(self, nbytes: int, stream: SimulatedStream) -> Block | None:
        need = 2 * ALIGNMENT + _round_up(nbytes)
        for at in range(len(self._holes) - 1, -1, -1):
            hole = self._holes[at]
            if hole.stop - hole.start >= need and hole.open_to(stream):
                return self._take(at, need, nbytes, stream)
        return None

    def steal(self, nbytes: int, stream: SimulatedStream) -> tuple[Block, SimulatedStream] | None:
        """Return a block that another stream has yet to free, and that stream, as RMM's pool does before it grows."""
        need = 2 * ALIGNMENT + _round_up(nbytes)
        mine = any(h.was is not None and h.was.stream is stream and h.stop - h.start >= need for h in self._holes)
        fits = (i for i, h in enumerate(self._holes) if h.stop - h.start >= need and not h.open_to(stream))
        at = None if mine else max(fits, default=None)
        if at is None:
            return None
        was = self._holes[at].was
        assert was is not None
        owner = was.stream
        return self._take(at, need, nbytes, stream), owner

    def _take(self, at: int, need: int, nbytes: int, stream: SimulatedStream) -> Block:
        hole = self._holes[at]
        stop = hole.start + need
        self._holes[at : at + 1] = [Hole(start=stop, stop=hole.stop, was=hole.was)] if stop < hole.stop else []
        if stop > self._poisoned_to:
            self.view(self._poisoned_to, stop - self._poisoned_to).fill(POISON)
            self._poisoned_to = stop
        address = hole.start + ALIGNMENT
        block = Block(start=hole.start, stop=stop, address=address, nbytes=nbytes, stream=stream)
        self.given[address] = block
        self.nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
        return block

    def give_back(self, block: Block) -> None:
        """Let the block's stream have its memory again, and others once it is gone."""
        del self.given[block.address]
        self.nbytes -= block.nbytes
        self._holes.append(Hole(start=block.start, stop=block.stop, was=block))
        if len(self._holes) > self._merged_at:
            self.merge()
            self._merged_at = 2 * len(self._holes) + 64

    def begin(self, block: Block) -> None:
        self._expect_poison(block.start, block.stop, "memory that was free")

    def end(self, block: Block) -> None:
        self.check_red_zones(block)
        self.view(block.address, block.nbytes).fill(POISON)
        block.gone = True

    def merge(self) -> None:
        """Join adjacent holes that are open to all."""
        mine = [h for h in self._holes if not h.open_to(None)]
        free = sorted((h for h in self._holes if h.open_to(None)), key=lambda h: -h.start)
        merged: list[Hole] = []
        for hole in free:
            after = merged.pop() if merged and merged[-1].start == hole.stop else hole
            merged.append(Hole(start=hole.start, stop=after.stop))
        self._holes = merged + mine

    def check_red_zones(self, block: Block) -> None:
        what = f"the red zones of {block.nbytes} bytes at {block.address:#x}"
        self._expect_poison(block.start, block.address, what)
        self._expect_poison(block.end, block.stop, what)

    def check(self) -> None:
        """Fail on writes to memory that belongs to nobody; all work must be done."""
        at = self._first
        for block in sorted(self.given.values(), key=lambda b: b.start):
            self._expect_poison(at, block.start, "memory that was free")
            self.check_red_zones(block)
            at = block.stop
        self._expect_poison(at, self._poisoned_to, "memory that was free")

    def _expect_poison(self, start: int, stop: int, what: str) -> None:
        wrong = np.flatnonzero(self.view(start, stop - start) != POISON)
        if len(wrong):
            raise AssertionError(f"{what} was written: {len(wrong)} bytes, first at {start + int(wrong[0]):#x}")


def _round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class SimulatedMemory:
    """Device memory, until it is freed or dropped."""

    def __init__(self, block: Block, give_up: Callable[[Block], object], enter: Callable[[], object]) -> None:
        self.block = block
        self._give_up: Callable[[Block], object] | None = give_up
        self._enter = enter

    @property
    def address(self) -> Address:
        return Address(self.block.address)

    @property
    def nbytes(self) -> int:
        return self.block.nbytes

    def free(self) -> None:
        assert self._give_up is not None, f"{self.nbytes} bytes at {self.address:#x} are freed twice"
        self._end()
        self._enter()

    def free_behind(self, stream: SimulatedStream) -> None:
        self.block.freed_behind, self.block.stream = stream.scheduler.end_of(stream), stream
        self._end()

    def _end(self) -> None:
        give_up, self._give_up = self._give_up, None
        if give_up is not None:
            give_up(self.block)

    def __del__(self) -> None:
        self._end()


class SimulatedPinned:
    """Pinned host memory; lives as long as its array or any part of that."""

    def __init__(self, array: Bytes) -> None:
        self.array = array


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRange:
    """Part of a pinned array that a copy works on; does not keep it alive."""

    base: weakref.ref[Bytes]
    offset: int
    """First byte, counted from the start of `base`."""
    nbytes: int

    def view(self) -> Bytes:
        base = self.base()
        if base is None:
            raise AssertionError("pinned memory was given back before its copy ran")
        return base[self.offset : self.offset + self.nbytes]

    def read(self, expected: Bytes) -> Bytes:
        """Return the bytes, which must be those of the time when the copy was asked for."""
        if not np.array_equal(self.view(), expected):
            raise AssertionError("pinned memory was overwritten before its copy ran")
        return expected

    def write(self, data: Bytes) -> None:
        """Replace the poison of the time when the copy was asked for."""
        target = self.view()
        if (target != POISON).any():
            raise AssertionError("pinned memory was written before its copy ran")
        target[:] = data


@dataclass(slots=True)
class PinnedPool:
    """All the pinned memory of one device."""

    nbytes: int = 0
    peak_nbytes: int = 0
    _bases: dict[int, weakref.ref[Bytes]] = field(default_factory=dict)

    def allocate(self, nbytes: int) -> SimulatedPinned:
        base = np.full(nbytes + PAGE, POISON, np.uint8)
        start = base.ctypes.data
        self.nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

        def drop(_: object) -> None:
            del self._bases[start]
            self.nbytes -= nbytes

        self._bases[start] = weakref.ref(base, drop)
        skip = -start % PAGE
        return SimulatedPinned(base[skip : skip + nbytes])

    def find(self, data: Bytes, what: str) -> PinnedRange:
        """Return where `data` lies, or fail if it is not pinned."""
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise AssertionError(f"{what}: the host side is {data.dtype} of shape {data.shape}, not contiguous bytes")
        start = data.ctypes.data
        for reference in list(self._bases.values()):
            base = reference()
            if base is not None and base.ctypes.data <= start and start + data.nbytes <= base.ctypes.data + base.nbytes:
                return PinnedRange(base=reference, offset=start - base.ctypes.data, nbytes=data.nbytes)
        raise AssertionError(f"{what}: {data.nbytes} bytes of host memory at {start:#x} are not pinned")
