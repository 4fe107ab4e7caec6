"""Progress of long reads in a terminal or a notebook: ``with xarray_gpuzarr.progress(): ...``.

`read` passes its plans through `watch`, which hands them on as they are while no bar is shown. A bar moves plan by
plan: once a shard, or once in 1024 chunks that are objects of their own. It knows the reads of this process only; the
workers of a cluster have dask's own bars.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from dask.callbacks import Callback
from rich.filesize import decimal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

_DELAY_S = 0.5
"""Nothing is drawn for what takes less."""


@contextmanager
def progress(*, console: Console | None = None) -> Iterator[None]:
    """Show how far the reads inside a ``with`` block have come.

    Quiet unless standard error is a terminal, or this is a notebook that has ipywidgets, and quiet for the first half
    second. While one of dask's local schedulers computes, a second bar counts its tasks. A block inside a block adds
    nothing.

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
    from rich.console import Console  # noqa: PLC0415  # most programs show no bar

    console = console or Console(stderr=True)
    if _shown or not _can_draw(console):
        yield
        return
    bars = Bars(console)
    _shown.append(bars)
    try:
        with DaskTasks(bars):
            yield
    finally:
        _shown.remove(bars)
        bars.close()


def _can_draw(console: Console) -> bool:
    """Whether a bar would be seen as one, and not as the lines of a log."""
    if console.is_jupyter:
        return importlib.util.find_spec("ipywidgets") is not None
    return console.is_terminal


class Bars:
    """Two bars that appear once there is something to wait for: bytes that are read, and tasks of dask.

    Parameters
    ----------
    console : rich.console.Console
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415  # likewise

        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console)
        self._start = time.monotonic()
        self._bytes = self._progress.add_task("read", amount="", visible=False)
        self._tasks = self._progress.add_task("dask tasks", amount="", visible=False)
        self._n: dict[TaskID, tuple[int, int]] = {self._bytes: (0, 0), self._tasks: (0, 0)}
        self._lock = Lock()
        self._closed = False

    def add_bytes(self, *, done: int = 0, wanted: int = 0) -> None:
        """Add to the bytes that are read, and to those that begun reads will give."""
        with self._lock:
            done, wanted = self._add(self._bytes, done, wanted)
            rate = f"{decimal(round(done / max(1e-3, self._elapsed())))}/s"
            if self._n[self._tasks][1]:  # the tasks that dask has not begun will want more
                self._draw(self._bytes, f"{decimal(done)}, {rate}", done, None)
            else:
                self._draw(self._bytes, f"{decimal(done)} of {decimal(wanted)}, {rate}", done, wanted)

    def add_tasks(self, *, done: int = 0, wanted: int = 0) -> None:
        """Add to the tasks that dask has done, and to those that it was given."""
        with self._lock:
            done, wanted = self._add(self._tasks, done, wanted)
            self._draw(self._tasks, f"{done} of {wanted}", done, wanted)

    def close(self) -> None:
        """Leave the bars as they are; reads that are still under way draw no more."""
        with self._lock:
            self._closed = True
        self._progress.stop()

    def _elapsed(self) -> float:
        return time.monotonic() - self._start

    def _add(self, row: TaskID, done: int, wanted: int) -> tuple[int, int]:
        before = self._n[row]
        self._n[row] = before[0] + done, before[1] + wanted
        return self._n[row]

    def _draw(self, row: TaskID, amount: str, done: int, wanted: int | None) -> None:
        self._progress.update(row, completed=done, total=wanted, amount=amount, visible=True)
        if self._elapsed() > _DELAY_S and not self._closed:
            self._progress.start()


class DaskTasks(Callback):
    """Counts the tasks of dask's local schedulers.

    Parameters
    ----------
    bars : Bars
    """

    def __init__(self, bars: Bars) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bars = bars

    def _start_state(self, _graph: Any, state: Mapping[str, Any]) -> None:
        self._bars.add_tasks(wanted=sum(len(state[kind]) for kind in ("ready", "waiting")))

    def _posttask(self, *_: object) -> None:
        self._bars.add_tasks(done=1)


_shown: list[Bars] = []
"""The bars of this process, one pair at most."""


@contextmanager
def watch[Plan](
    plans: Iterator[Plan], n_chunks_of: Callable[[Plan], int], *, n_chunks: int, nbytes: int
) -> Iterator[Iterator[Plan]]:
    """Hand on the plans of one read, and tell a bar, if one is shown, how much of the read is done.

    Parameters
    ----------
    plans : iterator
        A plan counts as done when the next one is drawn, the last one when the ``with`` block ends. A block that ends
        with an error counts for nothing.
    n_chunks_of : callable
        Returns how many chunks a plan covers.
    n_chunks : int
        Chunks of all plans.
    nbytes : int
        Bytes of the result.
    """
    if not _shown:
        yield plans
        return
    bars, told = _shown[0], 0

    def counted() -> Iterator[Plan]:
        nonlocal told
        before = 0
        for plan in plans:
            bars.add_bytes(done=before)
            told += before
            before = nbytes * n_chunks_of(plan) // max(1, n_chunks)
            yield plan

    bars.add_bytes(wanted=nbytes)
    try:
        yield counted()
    except BaseException:  # perhaps the read is tried once more
        bars.add_bytes(done=-told, wanted=-nbytes)
        raise
    bars.add_bytes(done=nbytes - told)
