"""Where dask computes: the client of a cluster, or other processes. Found without importing distributed."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def client_of_dask(scheduler: Any = None) -> Any:
    """Return the `distributed.Client` that dask computes with, or None if it computes without one.

    `scheduler` is the one that dask is given for the computation. If it is None, dask's settings choose.
    """
    if "distributed" not in sys.modules:  # so there is no client, and `get_scheduler` would import it
        return None
    from dask.base import get_scheduler  # noqa: PLC0415  # slow to import

    client = getattr(get_scheduler(scheduler=scheduler), "__self__", None)  # a client's scheduler is its method `get`
    return client if hasattr(client, "scheduler_info") else None


def computes_in_other_processes(scheduler: Any = None) -> bool:
    """Return whether dask computes with a client, or in other processes of this machine; see `client_of_dask`.

    Workers count as other processes, also those that run in this one, since tasks and stores are pickled for them.
    """
    if client_of_dask(scheduler) is not None:
        return True
    from dask import config  # noqa: PLC0415  # as above

    if scheduler is None:
        scheduler = config.get("scheduler", None)
    if scheduler is None or isinstance(scheduler, ProcessPoolExecutor):
        return scheduler is not None
    from dask import multiprocessing  # noqa: PLC0415  # as above
    from dask.base import get_scheduler  # noqa: PLC0415  # as above

    return get_scheduler(scheduler=scheduler) is multiprocessing.get
