"""Threads for reads that mostly wait, those of each server apart: a silent one keeps no read of another waiting."""

from __future__ import annotations

import os
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

_pools: WeakValueDictionary[tuple[Hashable, int], ThreadPoolExecutor] = WeakValueDictionary()
os.register_at_fork(after_in_child=_pools.clear)


def threads_for(server: Hashable, n_threads: int) -> ThreadPoolExecutor:
    """Return the threads for reads from a server, which end once nobody holds what is returned here.

    Parameters
    ----------
    server : hashable
        See `xarray_gpuzarr.fetch.server_of`; None for local files and memory.
    n_threads : int
        Reads at once.
    """
    pool = _pools.get((server, n_threads))
    return pool or _pools.setdefault((server, n_threads), ThreadPoolExecutor(n_threads, "gpuzarr_read"))
