"""`compute_with_progress`: run the tasks of a write, and show how many are done."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

from dask.callbacks import Callback
from dask.diagnostics.progress import ProgressBar

from xarray_gpuzarr.process.dask_client import client_of_dask

_INTERVAL_S = 30
"""Time between two lines, in seconds, where the output is no terminal."""


class ProgressLines(Callback):
    """Prints a line now and then: bars fill files and pipes."""

    def _start_state(self, dsk: Any, state: Any) -> None:  # noqa: ARG002
        self._n_tasks = sum(len(state[name]) for name in ("ready", "waiting"))
        self._n_done, self._shown = 0, time.monotonic()

    def _posttask(self, *_: Any) -> None:
        self._n_done += 1
        if time.monotonic() - self._shown >= _INTERVAL_S:
            self._show()

    def _finish(self, *_: Any) -> None:
        self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        print(f"{self._n_done} of {self._n_tasks} steps done", flush=True)  # noqa: T201


def compute_with_progress(tasks: Any) -> None:
    """Compute a task of dask, and show a bar, or lines where the output is neither a terminal nor a notebook."""
    from rich.console import Console  # noqa: PLC0415  # takes long

    console = Console()
    is_seen = console.is_terminal or console.is_jupyter
    if client_of_dask() is None:
        shown: AbstractContextManager[Any] = ProgressBar() if is_seen else ProgressLines()  # type: ignore[no-untyped-call]
        with shown:
            tasks.compute()
        return
    from distributed import progress as show  # noqa: PLC0415  # takes long

    tasks = tasks.persist()
    if is_seen:
        show(tasks, notebook=False)  # type: ignore[no-untyped-call]
    tasks.compute()
    if not is_seen:
        print("all tasks done", flush=True)  # noqa: T201
