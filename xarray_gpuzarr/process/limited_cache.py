"""`LimitedCache`: a least-recently-used cache whose entries take a limited amount of memory.

It adds to an `OrderedDict` three things that no cache library offers together: a lock, a limit that may differ from
call to call, and a consistent state after Ctrl-C has interrupted a change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Protocol


class Sized(Protocol):
    """An entry of a cache."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes, in bytes."""


class LimitedCache[Key: Hashable, Entry: Sized]:
    """A least-recently-used cache that threads may share. After an interrupted change, it is empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self.nbytes = 0
        """Memory that all entries take, in bytes."""
        self._is_changing = False
        """Whether a change has begun and not ended. If this is set while the lock is free, a signal has interrupted the
        change."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """Return the entry of a key, which counts as used now; None if there is none."""
        with self._lock:
            if self._is_changing:
                self._drop_all()
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def get_all(self, keys: Sequence[Key]) -> list[Entry | None]:
        """Return the entry of each key, as `get` does; None for each key that has none."""
        with self._lock:
            if self._is_changing:
                self._drop_all()
            entries = [*map(self._entries.get, keys)]
            for key, entry in zip(keys, entries, strict=True):
                if entry is not None:
                    self._entries.move_to_end(key)
            return entries

    def put(self, key: Key, entry: Entry, most_nbytes: int) -> None:
        """Add an entry, or replace the one of this key, and drop the least recently used until all fit `most_nbytes`.

        An entry that alone takes more is not added, but the one of this key is dropped nevertheless.
        """
        with self._lock:
            self._begin()
            self._drop(key)
            if entry.nbytes <= most_nbytes:
                self._entries[key] = entry
                self.nbytes += entry.nbytes
            self._shrink(most_nbytes)
            self._is_changing = False

    def shrink(self, most_nbytes: int) -> None:
        """Drop the least recently used entries until all take at most `most_nbytes`."""
        with self._lock:
            self._begin()
            self._shrink(most_nbytes)
            self._is_changing = False

    def drop(self, key: Key) -> None:
        """Drop an entry, if there is one."""
        with self._lock:
            if key in self._entries:
                self._begin()
                self._drop(key)
                self._is_changing = False

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._drop_all()

    def _drop_all(self) -> None:
        self._is_changing = True
        self._entries = OrderedDict()
        self.nbytes = 0
        self._is_changing = False

    def _begin(self) -> None:
        """Begin a change. If an earlier one was interrupted, drop all entries, whose sizes may not add up."""
        if self._is_changing:
            self._drop_all()
        self._is_changing = True

    def _shrink(self, most_nbytes: int) -> None:
        while self.nbytes > most_nbytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.nbytes
