"""Processes that begin without anything of the tests or of this package, but need not import libraries anew.

A server imports the libraries and forks such processes off: it does so once for each process of the tests. This package
is imported by each of them. What a test has put into the environment does not reach them. Where libraries of the system
cannot be forked, they are processes that import everything.
"""

import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any

import dask
from distributed.utils import get_mp_context

METHOD = "forkserver" if sys.platform == "linux" else "spawn"
LIBRARIES = ["distributed", "dask.array", "xarray", "zarr", "scipy", "imagecodecs", "rich.console"]


def fresh_processes() -> BaseContext:
    """Return what starts such processes; dask's nannies start them, too, if they are told to."""
    with dask.config.set({"distributed.worker.multiprocessing-method": METHOD}):
        context = get_mp_context()  # which has a list of its own, set when it is first asked
    context.set_forkserver_preload(LIBRARIES)
    return context


def in_fresh_process[Result](do: Callable[..., Result], *arguments: Any, seconds: float) -> Result:
    """Return what a function of a module returns in a process of its own; fail as it fails, or if it takes longer."""
    context = fresh_processes()
    answers, answer = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(answer, do, arguments))
    process.start()
    answer.close()
    try:
        assert answers.poll(seconds), f"{do.__name__}{arguments} has not ended after {seconds} s"
        result, failure = answers.recv()
    finally:
        process.kill()
        process.join()
        answers.close()
    assert failure is None, failure
    return result


def _answer(answer: Connection, do: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Send the result, or the traceback."""
    try:
        found = do(*arguments), None
    except BaseException:  # noqa: BLE001  # an interrupt is a failure, too
        found = None, traceback.format_exc()
    answer.send(found)
