"""Processes of readers, one each: codec pipelines and thread pools are global to a process, and so is its memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context


def process() -> Executor:
    """Return a process that is spawned when it is first asked.

    A fork would share threads' locks, and CUDA does not survive one.
    """
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


class ReaderProcesses:
    """The processes of all readers, started when first needed and kept until `stop`."""

    def __init__(self) -> None:
        self._processes: dict[str, Executor] = {}

    def start(self, names: Iterable[str]) -> None:
        """Start processes that do not run yet; they import side by side."""
        for name in names:
            if name not in self._processes:
                self._processes[name] = process()
                self._processes[name].submit(os.getpid)

    def ask[T](self, do: Callable[..., T], reader: str, *arguments: object) -> T:
        """Call a function in the process of a reader: with its name, and the arguments."""
        return self._processes[reader].submit(do, reader, *arguments).result()

    def stop(self) -> None:
        """End all processes."""
        for each in self._processes.values():
            each.shutdown(cancel_futures=True)
        self._processes.clear()
