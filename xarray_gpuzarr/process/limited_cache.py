"""`LimitedCache`: entries in memory of bounded size; the one that was used longest ago makes room.

An `OrderedDict` keeps the order. What is added to it, no library of caches has all of: a lock, a limit that may change
from entry to entry, and a cache that is sound after Ctrl-C has interrupted a change halfway.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Protocol


class Sized(Protocol):
    """Something that is kept."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""


class LimitedCache[Key: Hashable, Entry: Sized]:
    """Entries by key. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self.nbytes = 0
        """Memory that all entries take."""
        self._is_torn = False
        """Whether a change has begun and not ended: a signal interrupted it, unless it is under way."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Entry | None:
        """Return an entry, None if it is not there."""
        with self._lock:
            if self._is_torn:
                self._forget_all()
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def get_all(self, keys: Sequence[Key]) -> list[Entry | None]:
        """Return entries, None for each that is not there."""
        with self._lock:
            if self._is_torn:
                self._forget_all()
            entries = [*map(self._entries.get, keys)]
            for key, entry in zip(keys, entries, strict=True):
                if entry is not None:
                    self._entries.move_to_end(key)
            return entries

    def put(self, key: Key, entry: Entry, most_nbytes: int) -> None:
        """Keep an entry, unless it alone is too large; drop others until all take `most_nbytes` at most."""
        with self._lock:
            self._begin()
            self._drop(key)
            if entry.nbytes <= most_nbytes:
                self._entries[key] = entry
                self.nbytes += entry.nbytes
            self._shrink(most_nbytes)
            self._is_torn = False

    def shrink(self, most_nbytes: int) -> None:
        """Drop entries until all take `most_nbytes` at most."""
        with self._lock:
            self._begin()
            self._shrink(most_nbytes)
            self._is_torn = False

    def drop(self, key: Key) -> None:
        """Forget an entry."""
        with self._lock:
            self._begin()
            self._drop(key)
            self._is_torn = False

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._forget_all()

    def _forget_all(self) -> None:
        """Forget everything; a change that was interrupted halfway has left no order."""
        self._is_torn = True
        self._begin()
        self._is_torn = False

    def _begin(self) -> None:
        """Begin a change; forget everything if an earlier one was interrupted halfway."""
        if self._is_torn:
            self._entries, self.nbytes = OrderedDict(), 0
        self._is_torn = True

    def _shrink(self, most_nbytes: int) -> None:
        while self.nbytes > most_nbytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.nbytes
