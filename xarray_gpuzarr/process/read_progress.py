"""`ReadProgress`: reports how far a read has come to the bars that are shown, if any.

`progress_bar` draws the bars. It is a separate module because it imports rich.
"""

from __future__ import annotations

from typing import Protocol


class ShownBars(Protocol):
    """The part of `progress_bar.Bars` that reads and forks need."""

    def add_bytes(self, *, done: int = 0, expected: int = 0) -> None:
        """Add to the number of bytes read, and to the number of bytes that all reads so far have to read."""

    def pause(self) -> bool:
        """Stop drawing before a fork. Return whether drawing has stopped; `go_on` must follow only if so."""

    def go_on(self) -> None:
        """Continue drawing after a fork, in the parent process."""

    def after_fork(self) -> None:
        """Release the terminal, in a process that was forked off and draws nothing."""


shown_bars: list[ShownBars] = []
"""The bars that this process shows: none, or one `progress_bar.Bars`."""


class ReadProgress:
    """Reports how much of one read is done.

    A chunk table counts as done when the decoder takes the next one, and the last one when `end` is called.

    Parameters
    ----------
    bars : ShownBars
        Bars to report to.
    n_chunks : int
        Number of chunks in all tables of the read.
    nbytes : int
        Size of its result in bytes.
    """

    def __init__(self, bars: ShownBars, n_chunks: int, nbytes: int) -> None:
        self._bars = bars
        self._n_chunks = n_chunks
        self._nbytes = nbytes
        self._reported_nbytes = 0
        """Bytes of the result that were reported as done."""
        self._table_nbytes = 0
        """Bytes of the result that the latest table stands for, in proportion to its chunks."""
        bars.add_bytes(expected=nbytes)

    def begin_table(self, n_chunks: int) -> None:
        """Report the previous table as done, if there is one, and begin the next one, which has `n_chunks` chunks."""
        self._bars.add_bytes(done=self._table_nbytes)
        self._reported_nbytes += self._table_nbytes
        self._table_nbytes = self._nbytes * n_chunks // max(1, self._n_chunks)

    def end(self) -> None:
        """Report the whole read as done."""
        self._bars.add_bytes(done=self._nbytes - self._reported_nbytes)

    def withdraw(self) -> None:
        """Withdraw all that was reported of the read, because it has failed. It may be tried again."""
        self._bars.add_bytes(done=-self._reported_nbytes, expected=-self._nbytes)
