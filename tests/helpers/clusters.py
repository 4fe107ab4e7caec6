"""Real clusters on loopback, without a dashboard, whose processes end with the test."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, LocalCluster

from helpers.fresh_process import fresh_processes

SECONDS = 60
"""Nothing in these tests may take longer."""


@contextmanager
def local_cluster(
    n_workers: int = 2,
    threads_per_worker: int = 1,
    *,
    processes: bool = True,
    as_users_do: bool = False,
    **keywords: Any,
) -> Iterator[Client]:
    """Start workers, in processes unless told otherwise, and yield a client.

    The processes are quickly there, unless they are to start `as_users_do`: then all that dask puts into their
    environment takes effect, on the allocator too.
    """
    method = "spawn" if as_users_do else fresh_processes().get_start_method()
    where = {"host": "127.0.0.1"} if processes else {}
    config = {
        "distributed.comm.timeouts.connect": SECONDS,
        "distributed.worker.multiprocessing-method": method,
        # A cluster looks again that long after it lost a worker, and closes a nanny whose worker is just restarting.
        "distributed.deploy.lost-worker-timeout": "1 hour",
    }
    with (
        dask.config.set(config),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=threads_per_worker,
            processes=processes,
            dashboard_address=None,
            **where,
            **keywords,
        ) as cluster,
        Client(cluster, timeout=SECONDS) as client,
    ):
        yield client


def eventually[Found](look: Callable[[], Found], expected: Found) -> Found:
    """Look until the expected is found, and return what was found last: workers answer before they are set up."""
    deadline = time.monotonic() + SECONDS
    while (found := look()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return found
