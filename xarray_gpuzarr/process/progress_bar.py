"""Progress of long reads in a terminal or a notebook: ``with xarray_gpuzarr.progress(): ...``.

`read` passes its plans through `watch`, which hands them on as they are while no bar is shown. A bar moves plan by
plan: once a shard, or once in 1024 chunks that are objects of their own. It knows the reads of this process only; the
workers of a cluster have dask's own bars.

A thread of its own draws, so that no signal interrupts a drawing, no read waits for the terminal, and a process is
never forked off in the middle of one. Reads and tasks only add up numbers (`read_progress`), so that a process that
shows no bar imports neither this module nor rich.
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
    """Whether a bar would be seen as one, and not as the lines of a log."""
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
    """Say so if dask computes with workers that are other processes: what they read moves no bar here."""
    client = client_of_dask()
    with suppress(RuntimeError):  # of a client that is asynchronous, with which nothing here computes
        if client is not None and not client.scheduler_info()["address"].startswith("inproc:"):
            advise(
                "progress of workers",
                "progress() does not show what the workers of a cluster read",
                found="a distributed.Client, with which dask computes in other processes",
                do="import distributed; ds = ds.persist(); distributed.progress(ds)",
            )


DELAY_S = 0.5
"""Nothing is drawn for what takes less."""
PERIOD_S = 0.1
"""Time between two drawings."""


@contextmanager
def progress(*, console: Console | None = None) -> Iterator[None]:
    """Show how far the reads inside a ``with`` block have come.

    Quiet unless standard error is a terminal or this is a notebook, and quiet for the first half second. A notebook
    needs ipywidgets; a warning says so where it lacks them. While one of dask's local schedulers computes, a second bar
    counts its tasks. What the workers of a cluster read is not shown; a warning names dask's own bar, which shows it. A
    block inside a block adds nothing.

    Parameters
    ----------
    console : rich.console.Console, optional
        Where to draw; standard error if left out.

    Examples
    --------
    >>> import xarray as xr, xarray_gpuzarr
    >>> dataset = xr.open_dataset("era5.zarr", engine="gpuzarr")
    >>> with xarray_gpuzarr.progress():
    ...     temperature = dataset.t2m.load()
    """
    from dask.callbacks import Callback  # noqa: PLC0415  # some programs have no use for dask

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

    # What dask's local schedulers are to call, for start, start_state, pretask, posttask and finish.
    tasks = (None, start_state, None, posttask, None)
    try:
        shown_bars.append(bars)
        Callback.active.add(tasks)
        bars.begin()
        yield
    finally:
        if bars in shown_bars:  # not in a process that was forked off
            shown_bars.remove(bars)
        Callback.active.discard(tasks)
        bars.close()


class Bars:
    """Two bars that appear once there is something to wait for: bytes that are read, and tasks of dask."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, auto_refresh=False)
        self._start = time.monotonic()
        self._bytes = self._progress.add_task("read", amount="", visible=False)
        self._tasks = self._progress.add_task("dask tasks", amount="", visible=False)
        self._n: dict[TaskID, tuple[int, int]] = {self._bytes: (0, 0), self._tasks: (0, 0)}
        self._touched: set[TaskID] = set()
        self._lock = Lock()
        self._drawing = Lock()
        """Held by the thread that draws, and while a process is forked off."""
        self._end, self._ended = Lock(), Lock()
        """Come free when drawing is to end, and when it has."""
        self._is_drawing = False

    def add_bytes(self, *, done: int = 0, expected: int = 0) -> None:
        """Add to the bytes that are read, and to those that begun reads will give."""
        self._add(self._bytes, done, expected)

    def add_tasks(self, *, done: int = 0, expected: int = 0) -> None:
        """Add to the tasks that dask has done, and to those that it was given."""
        self._add(self._tasks, done, expected)

    def begin(self) -> None:
        """Draw from now on, on a thread of its own; nothing if the system starts no more threads."""
        self._end.acquire()
        self._ended.acquire()
        with suppress(RuntimeError):
            _thread.start_new_thread(copy_context().run, (self._draw_on,))  # a notebook's context says which cell
            self._is_drawing = True

    def close(self) -> None:
        """Leave the bars as they are; reads that are still under way draw no more."""
        if self._end.locked():
            self._end.release()
        if self._is_drawing:
            with self._ended:
                pass

    def pause(self) -> bool:
        """Draw nothing while a process is forked off; return whether that could be had."""
        return self._drawing.acquire(timeout=1)

    def go_on(self) -> None:
        """Draw again."""
        self._drawing.release()

    def after_fork(self) -> None:
        """Let go of the terminal, in a process that was forked off: what drew there is not here."""
        self._lock, self._end, self._is_drawing = Lock(), Lock(), False
        live, console = self._progress.live, self._progress.console
        vars(live).update(_lock=RLock())
        vars(console).update(_lock=RLock(), _record_buffer_lock=RLock())
        for name in ("stdout", "stderr"):
            before = getattr(live, f"_restore_{name}", None)
            if before is not None:
                setattr(sys, name, before)
        if live.is_started:
            with suppress(IndexError):
                console.clear_live()
                console.pop_render_hook()

    def _add(self, row: TaskID, done: int, expected: int) -> None:
        with self._lock:
            before = self._n[row]
            self._n[row] = before[0] + done, before[1] + expected
            self._touched.add(row)

    def _draw_on(self) -> None:
        """Draw until the block ends, or is found to have ended: a signal may have interrupted its end."""
        try:
            period_s = max(0.0, DELAY_S)
            while not self._end.acquire(timeout=period_s) and self in shown_bars:
                self._draw()
                period_s = PERIOD_S
            self._draw()
            with self._drawing:
                if self._progress.live.is_started:  # in a notebook, rich would show an empty output below the bars
                    console = self._progress.console
                    quiet = console.quiet
                    console.quiet = quiet or console.is_jupyter
                    self._progress.stop()
                    console.quiet = quiet
        finally:
            self._ended.release()

    def _draw(self) -> None:
        elapsed_s = time.monotonic() - self._start
        if elapsed_s <= DELAY_S or not self._touched:
            return
        with self._drawing:
            (done, expected), (tasks_done, tasks_wanted) = self._n[self._bytes], self._n[self._tasks]
            amount, total = f"{decimal(done)} of {decimal(expected)}", expected if not tasks_wanted else None
            if tasks_wanted:  # the tasks that dask has not begun will want more
                amount = decimal(done)
            amount += f", {decimal(round(done / max(1e-3, elapsed_s)))}/s"
            self._update(self._bytes, amount, done, total)
            self._update(self._tasks, f"{tasks_done} of {tasks_wanted}", tasks_done, tasks_wanted)
            self._progress.start()
            self._progress.refresh()

    def _update(self, row: TaskID, amount: str, done: int, expected: int | None) -> None:
        shown = row in self._touched
        self._progress.update(row, completed=done, total=expected, amount=amount, visible=shown)


_paused: list[ShownBars] = []
"""Those that draw nothing while a process is forked off."""


def _after_fork_in_parent() -> None:
    while _paused:
        _paused.pop().go_on()


def _after_fork_in_child() -> None:
    for bars in shown_bars:
        bars.after_fork()
    _paused.clear()
    shown_bars.clear()


os.register_at_fork(
    before=lambda: _paused.extend(bars for bars in tuple(shown_bars) if bars.pause()),
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
