"""Progress bars of long reads in a terminal or a notebook: ``with xarray_gpuzarr.progress(): ...``.

Reads report their progress through `read_progress.ReadProgress` after each chunk table. A table has the chunks of one
shard or, if indexes are cached or the array is unsharded, up to 1024 chunks of several objects. The bars show the reads
of this process only. For the workers of a cluster, dask has bars of its own.

A separate thread draws, so no signal interrupts the drawing, and no read waits for the terminal: reads and dask tasks
only add to numbers. A fork waits until nothing is being drawn, for at most a second. Without bars, a process imports
neither this module nor rich.
"""

from __future__ import annotations

import _thread
import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Lock, RLock
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.dask_client import client_of_dask
from xarray_gpuzarr.process.read_progress import ShownBars, shown_bars


def can_draw(console: Console) -> bool:
    """Whether a console can redraw a bar in place. A log file cannot.

    A notebook without ipywidgets cannot either. A warning then says so.
    """
    if not console.is_jupyter:
        return console.is_terminal
    has_widgets = importlib.util.find_spec("ipywidgets") is not None
    if not has_widgets:
        advise(
            "progress",
            "progress() draws nothing in this notebook",
            found="ipywidgets is not installed where the notebook's kernel runs",
            do="pip install ipywidgets there, and restart the kernel",
        )
    return has_widgets


def advise_of_workers() -> None:
    """Warn if dask computes with workers in other processes, whose reads the bars do not show."""
    client = client_of_dask()
    with suppress(RuntimeError):  # raised by an asynchronous client, with which this process does not compute
        if client is not None and not client.scheduler_info()["address"].startswith("inproc:"):
            advise(
                "progress of workers",
                "progress() does not show what the workers of a cluster read",
                found="a distributed.Client, with which dask computes in other processes",
                do="import distributed; ds = ds.persist(); distributed.progress(ds)",
            )


DELAY_S = 0.5
"""Nothing is drawn before this time has passed."""
PERIOD_S = 0.1
"""Time between two updates of the bars."""


@contextmanager
def progress(*, console: Console | None = None) -> Iterator[None]:
    """Show the progress of the reads inside a ``with`` block.

    Nothing is shown during the first half second, nor if standard error is neither a terminal nor a notebook. A
    notebook needs ipywidgets; if they are missing, a warning says so. While one of dask's local schedulers computes, a
    second bar counts its tasks. Reads of the workers of a cluster are not shown; a warning names the bar of dask that
    shows them. A block inside another one has no effect.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to draw. Standard error by default.

    Examples
    --------
    >>> import xarray as xr, xarray_gpuzarr
    >>> dataset = xr.open_dataset("era5.zarr", engine="gpuzarr")
    >>> with xarray_gpuzarr.progress():
    ...     temperature = dataset.t2m.load()
    """
    from dask.callbacks import Callback  # noqa: PLC0415  # not all programs need dask

    console = console or Console(stderr=True)
    if shown_bars or not can_draw(console):
        yield
        return
    advise_of_workers()
    bars = Bars(console)

    def start_state(_graph: Any, state: Mapping[str, Any]) -> None:
        bars.add_tasks(expected=sum(len(state[kind]) for kind in ("ready", "waiting")))

    def posttask(*_: object) -> None:
        bars.add_tasks(done=1)

    # The functions that dask's local schedulers call: start, start_state, pretask, posttask and finish.
    callbacks = (None, start_state, None, posttask, None)
    try:
        shown_bars.append(bars)
        Callback.active.add(callbacks)
        bars.begin()
        yield
    finally:
        try:
            if bars in shown_bars:  # a process that was forked off has no bars
                shown_bars.remove(bars)
        finally:  # even if a signal interrupts the line above
            Callback.active.discard(callbacks)
            bars.close()


class Bars:
    """A bar for the bytes that are read and one for the tasks of dask. Each appears once it has counted something."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, auto_refresh=False)
        self._start = time.monotonic()
        self._bytes = self._progress.add_task("read", amount="", visible=False)
        self._tasks = self._progress.add_task("dask tasks", amount="", visible=False)
        self._counts: dict[TaskID, tuple[int, int]] = {self._bytes: (0, 0), self._tasks: (0, 0)}
        """Number of bytes or tasks that are done, and number that is expected, of each bar."""
        self._counted: set[TaskID] = set()
        """Bars that have counted something."""
        self._lock = Lock()
        """Held while the numbers in `_counts` change."""
        self._drawing = Lock()
        """Held by the thread that draws, and while a process is forked off."""
        self._end = Lock()
        """Held while the thread that draws should go on; released to end it."""
        self._ended = Lock()
        """Held by that thread; released when it ends."""
        self._has_thread = False
        """Whether the thread that draws was started."""

    def add_bytes(self, *, done: int = 0, expected: int = 0) -> None:
        """Add to the number of bytes read, and to the number of bytes that all reads so far have to read."""
        self._add(self._bytes, done, expected)

    def add_tasks(self, *, done: int = 0, expected: int = 0) -> None:
        """Add to the number of tasks that dask has finished, and to the number that it was given."""
        self._add(self._tasks, done, expected)

    def begin(self) -> None:
        """Start the thread that draws. Nothing is drawn if the system starts no more threads."""
        self._end.acquire()
        self._ended.acquire()
        with suppress(RuntimeError):
            # In a notebook, the context tells in which cell to draw.
            _thread.start_new_thread(copy_context().run, (self._draw_on,))
            self._has_thread = True

    def close(self) -> None:
        """End the thread that draws and wait for it. The bars stay visible, and reads no longer change them."""
        if self._end.locked():  # not if a signal has interrupted `begin`, nor in a forked process
            self._end.release()
        if self._has_thread:
            with self._ended:
                pass

    def pause(self) -> bool:
        """Stop drawing before a fork. Return whether drawing has stopped; `go_on` must follow only if so."""
        return self._drawing.acquire(timeout=1)

    def go_on(self) -> None:
        """Continue drawing after a fork, in the parent process."""
        self._drawing.release()

    def after_fork(self) -> None:
        """Release the terminal, in a process that was forked off. The thread that drew does not exist there.

        That thread may hold locks forever, also those of rich, which have private names only. So they are replaced.
        What rich did to the console and to the standard streams when drawing began is undone.
        """
        self._lock = Lock()
        self._end = Lock()
        self._has_thread = False
        live, console = self._progress.live, self._progress.console
        vars(live).update(_lock=RLock())
        vars(console).update(_lock=RLock(), _record_buffer_lock=RLock())
        for name in ("stdout", "stderr"):  # rich replaces them while it draws
            original = getattr(live, f"_restore_{name}", None)
            if original is not None:
                setattr(sys, name, original)
        if live.is_started:
            with suppress(IndexError):  # raised if rich had not done all of this yet
                console.clear_live()
                console.pop_render_hook()

    def _add(self, bar: TaskID, done: int, expected: int) -> None:
        with self._lock:
            previous_done, previous_expected = self._counts[bar]
            self._counts[bar] = previous_done + done, previous_expected + expected
            self._counted.add(bar)

    def _draw_on(self) -> None:
        """Draw until `close` ends this thread or, if a signal prevents that, until `shown_bars` lacks these bars.

        `progress` takes them out of it before it calls `close`.
        """
        try:
            period_s = max(0.0, DELAY_S)  # a lock accepts no negative timeout, and tests set a delay below 0
            while not self._end.acquire(timeout=period_s) and self in shown_bars:
                self._draw()
                period_s = PERIOD_S
            self._draw()
            with self._drawing:
                if self._progress.live.is_started:
                    console = self._progress.console
                    # Quiet, because `stop` would show an empty output below the bars in a notebook.
                    quiet = console.quiet
                    console.quiet = quiet or console.is_jupyter
                    self._progress.stop()
                    console.quiet = quiet
        finally:
            self._ended.release()

    def _draw(self) -> None:
        elapsed_s = time.monotonic() - self._start
        if elapsed_s <= DELAY_S or not self._counted:
            return
        with self._drawing:
            done, expected = self._counts[self._bytes]
            tasks_done, tasks_expected = self._counts[self._tasks]
            rate = f"{decimal(round(done / max(1e-3, elapsed_s)))}/s"
            if tasks_expected:  # tasks that have not begun will read an unknown number of bytes, so there is no total
                self._update(self._bytes, f"{decimal(done)}, {rate}", done, None)
            else:
                self._update(self._bytes, f"{decimal(done)} of {decimal(expected)}, {rate}", done, expected)
            self._update(self._tasks, f"{tasks_done} of {tasks_expected}", tasks_done, tasks_expected)
            self._progress.start()
            self._progress.refresh()

    def _update(self, bar: TaskID, amount: str, done: int, expected: int | None) -> None:
        is_visible = bar in self._counted
        self._progress.update(bar, completed=done, total=expected, amount=amount, visible=is_visible)


_paused: list[ShownBars] = []
"""Bars whose drawing has stopped because a process is being forked off."""


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().go_on()


def _after_fork_in_child() -> None:
    for bars in shown_bars:
        bars.after_fork()
    _paused.clear()
    shown_bars.clear()


def _before_fork() -> None:
    _paused.extend([bars for bars in tuple(shown_bars) if bars.pause()])


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
