"""Lazy variables of a slow store, loaded side by side: xarray loads one after another."""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock
from typing import Any

from xarray import Variable
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core import indexing

from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.backend.metadata_ahead import is_worth_it
from xarray_gpuzarr.fetch import StoreSource, requests_at_once

_MOST_THREADS = 32


def load_together(variables: Iterable[Variable]) -> None:
    """Load variables that are lazy and lie in a slow store, in place and several at once.

    Parameters
    ----------
    variables : iterable of xarray.Variable

    Raises
    ------
    Exception
        Whatever a read raises; variables that nobody has begun to read stay lazy.
    """
    waiting = deque(v for v in variables if _takes_long(v))
    if len(waiting) < 2:  # one is loaded by xarray
        return
    errors: list[BaseException] = []
    threads: list[Lock] = []

    def load(ended: Lock) -> None:
        try:
            while (variable := _next(waiting)) is not None:
                variable.load()
        except BaseException as err:  # noqa: BLE001  # it is raised below
            errors.append(err)
            waiting.clear()
        finally:
            ended.release()

    try:
        for _ in range(min(len(waiting), requests_at_once(), _MOST_THREADS)):
            ended = Lock()
            ended.acquire()
            _thread.start_new_thread(load, (ended,))  # see `process.waiting`
            threads.append(ended)
        _wait_for(threads)
    except BaseException:
        waiting.clear()
        _wait_for(threads)
        raise
    if errors:
        raise errors[0]


def _next(waiting: deque[Variable]) -> Variable | None:
    with suppress(IndexError):  # another thread has taken the last one
        return waiting.popleft()
    return None


def _wait_for(threads: Iterable[Lock]) -> None:
    for ended in threads:
        with ended:
            pass


def _takes_long(variable: Variable) -> bool:
    """Return whether a variable is still in a store that takes long to answer."""
    data: Any = variable._data  # noqa: SLF001
    while isinstance(data, indexing.ExplicitlyIndexed) and not isinstance(data, LazyArray | ZarrArrayWrapper):
        data = getattr(data, "array", None)
    if isinstance(data, LazyArray):
        array = data.stored.zarr_array
        return is_worth_it(array.store) if array is not None else isinstance(data.stored.place, StoreSource)
    return isinstance(data, ZarrArrayWrapper) and is_worth_it(data.get_array().store)
