"""Threads for reads that mostly wait, with a pool for each server: a silent one delays no read from another."""

from __future__ import annotations

import os
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

_pools: WeakValueDictionary[tuple[Hashable, int], ThreadPoolExecutor] = WeakValueDictionary()
os.register_at_fork(after_in_child=_pools.clear)


def threads_for(server: Hashable, n_threads: int) -> ThreadPoolExecutor:
    """Return a pool for `n_threads` reads at once from a server, which ends once nobody holds it.

    `server` is as `xarray_gpuzarr.fetch.server_of` returns it; None for local files and memory.
    """
    pool = _pools.get((server, n_threads))
    return pool or _pools.setdefault((server, n_threads), ThreadPoolExecutor(n_threads, "gpuzarr_read"))
