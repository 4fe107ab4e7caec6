"""How far reads have come, told to the bars that are shown, if any. `progress_bar`, which imports rich, draws them."""

from __future__ import annotations

from typing import Protocol


class ShownBars(Protocol):
    """Bar that shows the progress of reads, and outlives a fork."""

    def add_bytes(self, *, done: int = 0, expected: int = 0) -> None:
        """Add to the bytes that are read, and to those that begun reads will give."""

    def pause(self) -> bool:
        """Draw nothing while a process is forked off; return whether that could be had."""

    def go_on(self) -> None:
        """Draw again."""

    def after_fork(self) -> None:
        """Let go of the terminal, in a process that was forked off."""


shown_bars: list[ShownBars] = []
"""The bars of this process, one pair at most."""


class ReadProgress:
    """How much of one read is done, told to a bar.

    The read has `n_chunks` chunks in all its tables, and a result of `nbytes`. A table counts as done when the next one
    is drawn, the last one at `end`.
    """

    def __init__(self, bars: ShownBars, n_chunks: int, nbytes: int) -> None:
        self._bars, self._n_chunks, self._nbytes = bars, n_chunks, nbytes
        self._told = self._drawn = 0
        bars.add_bytes(expected=nbytes)

    def draw(self, n_chunks: int) -> None:
        """Note that the next table, of so many chunks, is drawn."""
        self._bars.add_bytes(done=self._drawn)
        self._told += self._drawn
        self._drawn = self._nbytes * n_chunks // max(1, self._n_chunks)

    def end(self) -> None:
        """Note that the read has ended well."""
        self._bars.add_bytes(done=self._nbytes - self._told)

    def take_back(self) -> None:
        """Count the read for nothing: it has failed, and perhaps is tried once more."""
        self._bars.add_bytes(done=-self._told, expected=-self._nbytes)
