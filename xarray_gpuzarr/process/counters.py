"""`counters`: what this process has read so far, and the seconds that its threads spent in each stage of reads.

Each thread adds to an account of its own, so counting takes no lock. Counting takes about a microsecond, and is done
once for each read or request, never for each chunk of a shard. Nothing is sent anywhere: `cluster.worker_stats` asks
for a snapshot.
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

``index``: reading shard indexes, and planning. ``fetch``: reading chunks from the store, or whole shards with their
indexes. ``transfer``: enqueueing copies to a GPU. ``decode``: decoding and placing on the host; for a GPU, enqueueing
the decoding. ``place``: enqueueing the placing. ``wait``: waiting for the GPU. ``zarr``: reading what only zarr-python
can read.
"""
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Sums over all reads of a process."""

    n_reads: int = 0
    """Number of reads that succeeded: one for each dask task or lazy selection."""
    n_shards: int = 0
    """Number of shards that these reads touched. A chunk that is an object of its own counts as a shard."""
    read_nbytes: int = 0
    """Bytes read from stores, including indexes, gaps between chunks, and reads that failed."""
    copied_nbytes: int = 0
    """Bytes copied to a GPU."""
    decoded_nbytes: int = 0
    """Decoded bytes of all chunks that were decoded, in their stored dtype, before any selection within a chunk. Chunks
    that were found in the cache do not count here, but in `cached_nbytes`."""
    n_cache_hits: int = 0
    """Number of chunks that were found in the cache of decoded chunks; see `FetchOptions.cache_nbytes`."""
    n_cache_misses: int = 0
    """Number of chunks of which a read took a part, and that were not found in that cache."""
    n_cache_unfit: int = 0
    """Number of these chunks that the cache cannot keep, because it is too small for the chunks of one read."""
    cached_nbytes: int = 0
    """Decoded bytes of the chunks that were found in that cache."""
    n_by_host: int = 0
    """Number of chunks of reads to a GPU that the host has decoded, for whatever reason."""
    n_verified: int = 0
    """Number of chunks that both a GPU and the host have decoded; see `ResourceOptions.verify`."""
    n_different: int = 0
    """Number of these chunks that the two have decoded to different bytes."""
    seconds: dict[Stage, float] = field(default_factory=dict)
    """Seconds of each stage, summed over threads. Nested stages do not count twice. Stages that never ran are
    absent."""

    def __add__(self, other: Self) -> Self:
        return self._merge(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._merge(other, -1)

    def _merge(self, other: Self, sign: int) -> Self:
        sums = {name: getattr(self, name) + sign * getattr(other, name) for name in _NUMBERS}
        seconds = {}
        for stage in STAGES:
            if stage in self.seconds or stage in other.seconds:
                seconds[stage] = self.seconds.get(stage, 0.0) + sign * other.seconds.get(stage, 0.0)
        return type(self)(**sums, seconds=seconds)


_NUMBERS = tuple(f.name for f in fields(Counts) if f.name != "seconds")
"""Names of the fields that are plain numbers."""


class Account:
    """Sums of one thread, which no other thread writes to."""

    __slots__ = ("numbers", "seconds", "since", "stage", "thread")

    def __init__(self) -> None:
        self.numbers = dict.fromkeys(_NUMBERS, 0)
        """Sum of each field of `Counts`, by its name."""
        self.seconds = dict.fromkeys(STAGES, 0.0)
        """Seconds in each stage, without those since the thread entered the present one."""
        self.stage: Stage | None = None
        """Stage that the thread is in; None if it is in none."""
        self.since = 0.0
        """`perf_counter` when the stage began or was resumed."""
        self.thread = threading.current_thread()
        """The thread. Once it has ended, its account is closed."""

    def switch(self, stage: Stage | None) -> Stage | None:
        """Enter another stage, or none, and return the stage that the thread was in."""
        previous = self.stage
        now = perf_counter()
        if previous is not None:
            self.seconds[previous] += now - self.since
        self.stage = stage
        self.since = now
        return previous


class Counters:
    """Sums over all threads of a process."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset all sums. Called in a process that was forked off, where the lock may be held forever."""
        self.process = uuid4().hex
        """Identifier of this process, unique among all machines."""
        self._lock = threading.Lock()
        self._accounts: list[Account] = []
        self._closed = Counts()
        """Sums of threads that have ended."""
        self.local = _LocalAccount(self)
        """``local.account`` is the account of the calling thread."""

    def add(self, **numbers: int) -> None:
        """Add to the fields of `Counts` with these names."""
        sums = self.local.account.numbers
        for name, number in numbers.items():
            sums[name] += number

    def stage(self, stage: Stage | None) -> AbstractContextManager[None]:
        """Return a context manager that counts the seconds of its block for a stage, or for none if it is None.

        They do not count for the stage of an enclosing block.
        """
        account = self.local.account
        return _ALREADY_TIMED if account.stage == stage else _Timed(account, stage)

    def snapshot(self) -> Counts:
        """Return the sums so far. The seconds of a stage count once the thread has left it or entered another one."""
        with self._lock:
            return sum(map(_counts, self._accounts), self._closed)

    def open_account(self) -> Account:
        """Return a new account for the calling thread, and close the accounts of threads that have ended."""
        account = Account()
        with self._lock:
            ended = [a for a in self._accounts if not a.thread.is_alive()]
            open_accounts = [a for a in self._accounts if a not in ended]
            closed = sum(map(_counts, ended), self._closed)
            # CPython runs signal handlers only at calls and jumps, and there are none between these two assignments. So
            # an exception from a handler leaves both attributes old, or both new.
            self._closed, self._accounts = closed, [*open_accounts, account]
        return account


class _LocalAccount(threading.local):
    """The account of the calling thread, which is opened when the thread first counts."""

    def __init__(self, counters: Counters) -> None:
        self.account = counters.open_account()


def _counts(account: Account) -> Counts:
    return Counts(**account.numbers, seconds={stage: s for stage, s in account.seconds.items() if s})


_ALREADY_TIMED: AbstractContextManager[None] = nullcontext()
"""The context manager of a stage inside the same stage, whose seconds count already."""


class _Timed:
    """Context manager that counts the seconds of its block for a stage, or for none."""

    __slots__ = ("_account", "_previous", "_stage")

    def __init__(self, account: Account, stage: Stage | None) -> None:
        self._account = account
        self._stage = stage

    def __enter__(self) -> None:
        self._previous = self._account.switch(self._stage)

    def __exit__(self, *_: object) -> None:
        self._account.switch(self._previous)


counters = Counters()

os.register_at_fork(after_in_child=counters.restart)
