"""The cluster with which dask computes, asked for without importing what is not imported yet."""

from __future__ import annotations

import sys
from typing import Any


def client_of_dask() -> Any:
    """Return the `distributed.Client` with which dask computes; None if it computes in this process."""
    if "distributed" not in sys.modules:  # dask would import it to look for a client
        return None
    from dask.base import get_scheduler  # noqa: PLC0415  # takes long

    client = getattr(get_scheduler(), "__self__", None)
    return client if hasattr(client, "scheduler_info") else None
