"""Calls that decode streams of several reads together, for devices whose calls take turns, whatever their streams.

Such a call takes as long for a few streams as for as many as the device decodes at once. So reads that have only a few,
such as tasks of dask, put them into one queue. Whoever comes by gives the device what is due: as many streams as it
decodes at once, as soon as there are so many; all that there are once nothing is being decoded and nobody else is about
to add any. No thread runs for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, DeviceMemory, Event, Stream
from xarray_gpuzarr.cuda.checksum import Kind
from xarray_gpuzarr.cuda.decompress import answer_nbytes, decompress
from xarray_gpuzarr.cuda.nvcomp import Format
from xarray_gpuzarr.cuda.pinned import PinnedRing, Slot
from xarray_gpuzarr.cuda.shared_lock import SharedLock
from xarray_gpuzarr.cuda.workspace_memory import WorkspaceMemory
from xarray_gpuzarr.cuda.zstd import SPARE_FRAME
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.waiting import Bell

N_ASKING = 64
"""Streams of each of two calls that show whether calls overlap."""
_MOST_UNDER_WAY = 4
_TABLE_NBYTES = 64 * 1024
"""Room for a call of 1200 streams."""
_KEPT_TABLE_NBYTES = 4 * _TABLE_NBYTES
"""Longer ones are given back when there is nothing to do. Taking pinned memory anew, and giving it back, takes long."""
_FULL = 0.75
"""A call with more of what the device decodes at once is not filled up with a share of what one read wants."""
_PATIENCE = 0.5
"""Share of the last call's time for which few streams wait for others."""
_LATELY = 2.5
"""Owners that have added streams within so many times the last call's time are expected to do so again,"""
_NEXT_S = 0.002
"""if they begin to within this time."""
_FIRST_PATIENCE_S = 0.01
"""The same, as long as no call has shown what it takes."""
_LOOK_S = 0.002
"""Who waits for others looks so often whether it was long enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """When a call had all that it needs, and when it ended, by a clock of its own."""

    n: int
    begin_s: float
    end_s: float


class Knowledge(Protocol):
    """What is known of a device, and learns from its calls."""

    wave: int
    is_wave_full: bool
    overlaps: bool | None

    def compare(self, first: Timed, second: Timed) -> None:
        """Learn from two calls of as many streams that were given at once whether calls overlap."""

    def see_waves(self, seconds: Mapping[int, float]) -> None:
        """Learn how many streams are decoded at once, from the least seconds of calls by their numbers of streams."""


@dataclass(slots=True, eq=False, kw_only=True)
class Part:
    """Streams of one format that a read wants decoded."""

    owner: object
    """Whose memory they are in; see `JointCalls.withdraw`."""
    format: Format
    kind: Kind | None
    """Checksum of what comes out."""
    columns: Sequence[npt.NDArray[Any]]
    """Four, 8 bytes an element, shape (n,): addresses and lengths of streams, addresses and lengths of what they
    give."""
    ready: Event
    """Behind which the streams are on the device."""
    known: Knowledge
    is_plain: bool
    """Whether there is one stream for each chunk: only those tell how many are decoded at once."""
    given: tuple[tuple[Call, int, int], ...] = ()
    """Calls that have streams of it, in order; each with the first of the call's, and how many."""

    @property
    def n_given(self) -> int:
        """Streams that calls have."""
        return sum(n for *_, n in self.given)

    @property
    def n_left(self) -> int:
        """Streams that no call has."""
        return len(self.columns[0]) - self.n_given

    @property
    def last_calls(self) -> dict[int, Call]:
        """The last call on each of the streams for calls."""
        return {call.number: call for call, *_ in self.given}


@dataclass(slots=True, eq=False, kw_only=True)
class Call:
    """A call that the device has been given."""

    key: tuple[Format, int]
    """Format, and length of the longest that comes out."""
    number: int
    """Of its stream among those for calls."""
    n: int
    known: Knowledge
    is_plain: bool
    """Whether its time tells how many are decoded at once: there is one stream for each chunk, and all are as long."""
    begun: Event
    done: Event
    memories: Sequence[DeviceMemory]
    slot: Slot
    answer: npt.NDArray[np.uint8] | None = None
    """As `decompress` writes it, once the call has ended."""
    seconds: float = 0.0
    before: Call | None = None
    """The first of two that show whether calls overlap, on the second."""


class JointCalls:
    """The calls that reads of one device share.

    Parameters
    ----------
    api : DeviceApi
    """

    def __init__(self, api: DeviceApi) -> None:
        self._api = api
        self._streams: tuple[Stream, ...] = ()
        """For all calls; for one of two that show whether calls overlap. Made when needed."""
        self._memory: WorkspaceMemory
        self._tables = PinnedRing(api, _MOST_UNDER_WAY + 1, _TABLE_NBYTES, kept_nbytes=_KEPT_TABLE_NBYTES)
        self._answers = PinnedRing(api, _MOST_UNDER_WAY + 1, _TABLE_NBYTES, kept_nbytes=_KEPT_TABLE_NBYTES)
        self._turn = SharedLock()
        """Whoever has it alone gives calls and takes answers."""
        self._changed = Bell()
        self._queue: list[Part] = []
        """In the order in which they came. Removed from by whoever has the turn."""
        self._under_way: list[Call] = []
        """In the order in which they were given. Changed by whoever has the turn."""
        self._is_clean = True
        """Whether every call that was begun is under way, or has ended."""
        self.staging: dict[object, None] = {}
        """Owners that may add streams, although nobody waits for them."""
        self._added_s: dict[object, float] = {}
        """When each owner has last added streams."""
        self.apart: dict[object, None] = {}
        """Owners that make calls of their own."""
        self._rested_s = 0.0
        """When the last call ended, or the first stream came since."""
        self._last_s: float | None = None
        """Seconds of the last call."""
        self._least_s: dict[tuple[Format, int], dict[int, float]] = {}
        """Least seconds of calls by their number of streams, for each `Call.key`."""

    def add(self, part: Part) -> None:
        """Let streams be decoded, and give the device what is due."""
        if not self._queue and not self._under_way:
            self._rested_s = perf_counter()
        self._queue.append(part)
        self._added_s[part.owner] = perf_counter()
        self._turn.exclusive(self._step)

    def look(self) -> None:
        """Give the device what is due; to be called now and then by whoever waits and does something else meanwhile.

        That there is no memory for it, those find out who want it.
        """
        with suppress(DeviceMemoryError):
            self._turn.exclusive(self._step)

    def give(self, part: Part) -> None:
        """Return once calls have all streams of a part."""
        was_staging = part.owner in self.staging
        try:
            self.staging.pop(part.owner, None)
            while part.n_left:
                self._turn.exclusive(self._step)
                if part.n_left and not self._wait_for_oldest():
                    with counters.stage("wait"):
                        self._changed.wait_until(
                            lambda: bool(self._under_way or not part.n_left or self._due()), _LOOK_S
                        )
        finally:
            if was_staging:
                self.staging[part.owner] = None

    def finish(self, part: Part) -> None:
        """Return once the calls of a part have ended and have their answers."""
        while any(call.answer is None for call, *_ in part.given):
            self._wait_for_oldest()
            self.look()

    def withdraw(self, owner: object) -> None:
        """Forget the streams of an owner that the device has not been given, and wait until it has done all others."""

        def forget() -> None:
            for part in [part for part in self._queue if part.owner is owner or not part.n_left]:
                self._queue.remove(part)
            self._mend()

        self._turn.exclusive(forget)

    def leave(self, owner: object) -> None:
        """Note that the read of an owner has ended."""
        for owners in (self.staging, self.apart):
            owners.pop(owner, None)

    def trim(self) -> None:
        """Give device memory back that is kept for the next call."""
        if self._streams:
            self._turn.exclusive(self._memory.free_idle)

    def close(self) -> None:
        """Give all memory back; only while nobody reads."""

        def close() -> None:
            self._mend()
            for ring in (self._tables, self._answers):
                ring.drop()

        self._turn.exclusive(close)
        self.trim()

    def _wait_for_oldest(self) -> bool:
        """Wait until the oldest call has ended; return whether there is one."""
        oldest = list(self._under_way)[:1]
        for call in oldest:
            with counters.stage("wait"):
                self._api.synchronize_event(call.done)
        return bool(oldest)

    def _step(self) -> None:
        """Take the answers of calls that have ended, and give the device what is due."""
        if not self._is_clean:
            self._mend()
        while self._under_way and self._api.is_reached(self._under_way[0].done):
            self._take_answer(self._under_way[0])
        while n := self._due():
            try:
                self._give(n)
            except DeviceMemoryError:
                if not self._under_way:
                    raise
                return  # until these have given theirs back

    def _mend(self) -> None:
        """Bring everything to where a call may begin, also if the last one was interrupted."""
        if not self._streams:
            return
        for stream in self._streams:
            self._api.synchronize(stream)
        while self._under_way:
            self._take_answer(self._under_way[0])
        self._memory.take_back_all()
        self._is_clean = True
        self._rest()

    def _rest(self) -> None:
        """Keep no long memory, if there is nothing to do."""
        if not self._under_way and not self._queue:
            self._memory.end_read()
            for ring in (self._tables, self._answers):
                ring.rewind()

    def _next(self) -> list[Part]:
        """Return what waits that one call can decode."""
        waiting = [part for part in list(self._queue) if part.n_left]
        return [part for part in waiting if (part.format, part.kind) == (waiting[0].format, waiting[0].kind)]

    def _due(self) -> int:
        """Return how many streams the device should be given now."""
        parts, n_under_way = self._next(), len(self._under_way)
        if not parts or n_under_way == _MOST_UNDER_WAY:
            return 0
        n, wave = sum(part.n_left for part in parts), parts[0].known.wave
        room = wave if parts[0].known.is_wave_full else 2 * wave  # which shows whether that takes longer
        if n >= 2 * wave:
            return room
        if n_under_way:
            return 0
        if n >= room:  # who waits for the rest of a part that is cut waits for two calls
            whole = max(end for end in accumulate((part.n_left for part in parts), initial=0) if end <= wave)
            return whole if whole >= _FULL * wave else wave
        is_full = n + len(parts[-1].columns[0]) > room  # another one would not fit
        return n if is_full or not self._are_expected() else 0

    def _are_expected(self) -> bool:
        """Say whether it pays to wait for more: of reads that are being staged, or that follow those that were."""
        now_s, last_s = perf_counter(), self._last_s or 0.0
        waited_s = now_s - self._rested_s
        if not waited_s < (_PATIENCE * last_s or _FIRST_PATIENCE_S):  # nor if the device does not know what it takes
            return False
        waiting = {part.owner for part in list(self._queue) if part.n_left}
        lately = {owner for owner in list(self._added_s) if now_s - self._added_s[owner] < _LATELY * last_s}
        return bool(self.staging or (waited_s < _NEXT_S and lately - waiting))

    def _give(self, n: int) -> None:
        """Give the device a call of so many streams; two short ones as long as nobody knows whether calls overlap."""
        parts = self._next()
        is_asked = parts[0].known.overlaps is None and n >= 2 * N_ASKING and not self._under_way and not self.apart
        if is_asked and all(part.is_plain for part in parts):
            first = self._call(parts, N_ASKING, 0)
            second = self._call(parts, N_ASKING, 1)
            second.before = first
            self._api.wait(self._streams[0], second.done)  # later calls take their time alone
            return
        self._call(parts, n, 0)

    def _call(self, parts: Sequence[Part], n: int, number: int) -> Call:
        """Give the device a call of the first `n` streams that wait, on one of the streams for calls.

        If this is interrupted, each part has what the call has of it, or that is given to another call once more.
        """
        taken: list[tuple[Part, int]] = []
        for part in parts:
            if n_mine := min(part.n_left, n - sum(m for _, m in taken)):
                taken.append((part, n_mine))
        try:
            self._is_clean = False
            call, at = self._enqueued(taken, number), 0
            self._under_way.append(call)
            for part, n_mine in taken:
                part.given = (*part.given, (call, at, n_mine))
                at += n_mine
            self._is_clean = True
        finally:
            for part in [part for part in self._queue if not part.n_left]:
                self._queue.remove(part)
            self._changed.ring_for_all()
        return call

    def _enqueued(self, taken: Sequence[tuple[Part, int]], number: int) -> Call:
        """Enqueue a call of so many more streams of each part."""
        api, part = self._api, taken[0][0]
        if not self._streams:
            self._memory = WorkspaceMemory(api, api.stream())
            self._streams = api.stream(), api.stream()
        stream = self._streams[number]
        columns = [np.concatenate([p.columns[k][p.n_given :][:m].view(np.uint64) for p, m in taken]) for k in range(4)]
        n, nbytes = len(columns[0]), columns[3]
        longest = int(nbytes.max())
        packed = np.concatenate([*columns, SPARE_FRAME, np.zeros(answer_nbytes(n) // 8, np.uint64)]).view(np.uint8)
        temp_nbytes = api.nvcomp.temp_nbytes(
            part.format, n_chunks=n, max_nbytes=longest, total_nbytes=int(nbytes.sum())
        )
        slot, answer = self._tables.lend(packed.nbytes), self._answers.lend(answer_nbytes(n))
        table, temp = (self._memory.lend(nbytes, stream) for nbytes in (packed.nbytes, temp_nbytes))
        slot.array[: packed.nbytes] = packed
        api.upload(table.address, slot.array[: packed.nbytes], stream)
        slot.give_back(stream)
        counters.add(copied_nbytes=packed.nbytes)
        for each, _ in taken:
            if number not in each.last_calls:
                api.wait(stream, each.ready)
        begun, done = api.event(timed=True), api.event(timed=True)
        api.record(begun, stream)
        spare = Address(table.address + 32 * n)
        start = Address(spare + SPARE_FRAME.nbytes)
        decompress(
            api,
            stream,
            part.format,
            part.kind,
            table=table.address,
            n=n,
            answer=(start, Address(start + 8 * n), Address(start + 16 * n)),
            spare=spare,
            temp=temp.address,
            temp_nbytes=temp_nbytes,
            max_nbytes=longest,
        )
        api.download(answer.array[: answer_nbytes(n)], start, stream)
        answer.give_back(stream)
        api.record(done, stream)
        return Call(
            key=(part.format, longest),
            number=number,
            n=n,
            known=part.known,
            is_plain=all(p.is_plain for p, _ in taken) and longest == int(nbytes.min()) and not self.apart,
            begun=begun,
            done=done,
            memories=(table, temp),
            slot=answer,
        )

    def _take_answer(self, call: Call) -> None:
        """Take what a call that has ended says, and what it teaches."""
        call.seconds = self._last_s = self._api.elapsed_s(call.begun, call.done)
        call.answer = call.slot.array[: answer_nbytes(call.n)].copy()
        self._under_way.remove(call)
        for memory in call.memories:
            self._memory.give_back(memory)
        self._rest()
        self._rested_s = perf_counter()
        self._learn(call)
        self._changed.ring_for_all()

    def _learn(self, call: Call) -> None:
        """Let a call teach what it can."""
        if call.before is not None:
            start, elapsed_s = call.before.begun, self._api.elapsed_s
            call.known.compare(
                *(
                    Timed(n=c.n, begin_s=elapsed_s(start, c.begun), end_s=elapsed_s(start, c.done))
                    for c in (call.before, call)
                )
            )
        elif call.is_plain and not self.apart:
            least = self._least_s.setdefault(call.key, {})
            least[call.n] = min(call.seconds, least.get(call.n, call.seconds))
            call.known.see_waves(least)
