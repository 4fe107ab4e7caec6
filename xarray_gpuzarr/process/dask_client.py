"""`client_of_dask`: the cluster that dask computes with, found without importing distributed."""

from __future__ import annotations

import sys
from typing import Any


def client_of_dask() -> Any:
    """Return the `distributed.Client` that dask computes with, or None if it computes in this process."""
    if "distributed" not in sys.modules:  # so there is no client, and `get_scheduler` would import it
        return None
    from dask.base import get_scheduler  # noqa: PLC0415  # slow to import

    client = getattr(get_scheduler(), "__self__", None)  # a client's scheduler is its method `get`
    return client if hasattr(client, "scheduler_info") else None
