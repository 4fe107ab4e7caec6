"""Counts of this process: shards and bytes that it has read, and the seconds that its threads spent in each stage.

Counting is done once a read or a request, never once a chunk of a shard, and takes about a microsecond. Nothing is
sent anywhere: `cluster.worker_stats` asks for a snapshot.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Literal, Self, get_args
from uuid import uuid4

Stage = Literal["index", "fetch", "transfer", "decode", "place", "wait", "zarr"]
"""Stage of a read that a thread is in.

``index``: reading shard indexes, and planning. ``fetch``: reading chunks from the store. ``transfer``: handing them to
the GPU. ``decode``: decoding and placing on the host; for a GPU, handing over the work. ``place``: handing over the
placing. ``wait``: waiting for the GPU. ``zarr``: reading what zarr-python alone can read.
"""
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums over all reads of a process."""

    n_reads: int = 0
    """Reads that have ended well: one for each dask task or lazy selection."""
    n_shards: int = 0
    """Shards that they touched; chunks, where these are objects of their own."""
    read_nbytes: int = 0
    """Bytes that came from stores, with indexes and the gaps that are read through; also of reads that failed."""
    copied_nbytes: int = 0
    """Bytes that were copied to a GPU."""
    decoded_nbytes: int = 0
    """Bytes of the chunks that were decoded, or found decoded (`cached_nbytes` of them), in their stored dtype, before
    any selection within a chunk."""
    n_cache_hits: int = 0
    """Chunks that were found decoded, of those of which a read took a part; see `FetchOptions.cache_nbytes`."""
    n_cache_misses: int = 0
    """Chunks that were looked for and not found."""
    cached_nbytes: int = 0
    """Bytes of the chunks that were found."""
    n_by_host: int = 0
    """Number of chunks of reads to a GPU that the host has decoded, for whatever reason."""
    n_verified: int = 0
    """Chunks that both a GPU and the host have decoded, see `ResourceOptions.verify`."""
    n_different: int = 0
    """Number of these chunks that the two have decoded to different bytes."""
    seconds: dict[Stage, float] = field(default_factory=dict)
    """Summed over threads; no second counts twice. Stages that never ran are absent."""

    def __add__(self, other: Self) -> Self:
        return self._merge(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._merge(other, -1)

    def _merge(self, other: Self, sign: int) -> Self:
        sums = {name: getattr(self, name) + sign * getattr(other, name) for name in _NUMBERS}
        stages = [stage for stage in STAGES if stage in self.seconds or stage in other.seconds]
        seconds = {s: self.seconds.get(s, 0.0) + sign * other.seconds.get(s, 0.0) for s in stages}
        return type(self)(**sums, seconds=seconds)


_NUMBERS = tuple(f.name for f in fields(Counts) if f.name != "seconds")


class Account:
    """Sums of one thread; no other thread writes to them."""

    __slots__ = ("numbers", "seconds", "since", "stage", "thread")

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(_NUMBERS, 0)
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.stage: Stage | None = None
        self.since = 0.0
        self.thread = threading.current_thread()

    def switch(self, stage: Stage | None) -> Stage | None:
        """Start the clock for another stage, None for no stage; return the stage before."""
        before, now = self.stage, perf_counter()
        if before is not None:
            self.seconds[before] += now - self.since
        self.stage, self.since = stage, now
        return before


class Counters:
    """Sums that many threads add to, each to its own account."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin at nothing, as another process; for a process that was forked off, where a lock may be held forever."""
        self.process = uuid4().hex
        """Tells this process from any other, on any machine."""
        self._lock = threading.Lock()
        self._accounts: list[Account] = []
        self._closed = Counts()
        self.of_thread = _OfThread(self)

    def add(self, **numbers: int) -> None:
        """Add to fields of `Counts`."""
        mine = self.of_thread.account.numbers
        for name, number in numbers.items():
            mine[name] += number

    def stage(self, stage: Stage | None) -> AbstractContextManager[None]:
        """Count the seconds of a ``with`` block; a stage inside another one stops the outer one's clock."""
        mine = self.of_thread.account
        return _UNTIMED if mine.stage == stage else _Timed(mine, stage)

    def snapshot(self) -> Counts:
        """Return the sums so far; stages that are under way count once they have ended."""
        with self._lock:
            return sum(map(_counts, self._accounts), self._closed)

    def open_account(self) -> Account:
        """Return a new account of the calling thread, and close those of threads that have ended."""
        account = Account()
        with self._lock:
            ended = [a for a in self._accounts if not a.thread.is_alive()]
            open_accounts = [a for a in self._accounts if a not in ended]
            closed = sum(map(_counts, ended), self._closed)
            self._closed, self._accounts = closed, [*open_accounts, account]  # both or, if a signal interrupts, neither
        return account


class _OfThread(threading.local):
    """Has the calling thread's account."""

    def __init__(self, counters: Counters) -> None:
        self.account = counters.open_account()


def _counts(account: Account) -> Counts:
    return Counts(**account.numbers, seconds={stage: s for stage, s in account.seconds.items() if s})


_UNTIMED: AbstractContextManager[None] = nullcontext()
"""A stage inside the same stage: its clock runs already."""


class _Timed:
    __slots__ = ("_before", "_mine", "_stage")

    def __init__(self, mine: Account, stage: Stage | None) -> None:
        self._mine = mine
        self._stage = stage

    def __enter__(self) -> None:
        self._before = self._mine.switch(self._stage)

    def __exit__(self, *_: object) -> None:
        self._mine.switch(self._before)


counters = Counters()

os.register_at_fork(after_in_child=counters.restart)
