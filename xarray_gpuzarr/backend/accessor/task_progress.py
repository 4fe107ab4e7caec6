"""`compute_with_progress`: runs the tasks of a write, and shows how many are done."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from dask.callbacks import Callback
from dask.diagnostics.progress import ProgressBar

from xarray_gpuzarr.process.dask_client import client_of_dask

_INTERVAL_S = 30
"""Time between two lines, in seconds, if the output is not a terminal."""


class ProgressLines(Callback):
    """Prints a line from time to time, for files and pipes, which a progress bar would fill.

    dask calls `_start_state` when it begins, `_posttask` after each task, and `_finish` at the end.
    """

    def _start_state(self, dsk: Any, state: Any) -> None:  # noqa: ARG002
        # dask also counts tasks that only read or compute, so there are more of them than blocks to write.
        self._n_tasks = sum(len(state[name]) for name in ("ready", "waiting"))
        self._n_done = 0
        self._printed_at = time.monotonic()

    def _posttask(self, *_: Any) -> None:
        self._n_done += 1
        if time.monotonic() - self._printed_at >= _INTERVAL_S:
            self._print()

    def _finish(self, *_: Any) -> None:
        self._print()

    def _print(self) -> None:
        self._printed_at = time.monotonic()
        print(f"{self._n_done} of {self._n_tasks} steps done", flush=True)  # noqa: T201


def compute_with_progress(tasks: Any, keywords: Mapping[str, Any]) -> None:
    """Compute a dask collection, and show a progress bar if the output is a terminal or a notebook.

    Otherwise print lines from time to time or, with a client of dask, one line at the end. `keywords` are those of
    dask's `compute`, such as `scheduler`.
    """
    from rich.console import Console  # noqa: PLC0415  # a slow import

    console = Console()
    has_bar = console.is_terminal or console.is_jupyter
    if client_of_dask(keywords.get("scheduler")) is None:
        progress: AbstractContextManager[Any] = ProgressBar() if has_bar else ProgressLines()  # type: ignore[no-untyped-call]
        with progress:
            tasks.compute(**keywords)
        return
    from distributed import progress as show_bar  # noqa: PLC0415  # a slow import

    tasks = tasks.persist(**keywords)
    if has_bar:
        # In a notebook, `show_bar` would by default return a widget, which would not be seen: Jupyter only shows what
        # the last line of a cell returns.
        show_bar(tasks, notebook=False)  # type: ignore[no-untyped-call]
    tasks.compute(**keywords)  # waits, and raises the error of a task that has failed
    if not has_bar:
        print("all tasks done", flush=True)  # noqa: T201
