"""Says where `progress` can draw a bar, and what to use instead where it cannot."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from xarray_gpuzarr.process.advice import advise

if TYPE_CHECKING:
    from rich.console import Console


def can_draw(console: Console) -> bool:
    """Whether a bar would be seen as one, and not as the lines of a log."""
    if not console.is_jupyter:
        return console.is_terminal
    has_widgets = importlib.util.find_spec("ipywidgets") is not None
    if not has_widgets:
        advise(
            "progress",
            "progress() draws nothing in this notebook",
            found="ipywidgets is not installed where the notebook's kernel runs",
            do="pip install ipywidgets there, and restart the kernel",
        )
    return has_widgets


def advise_of_workers() -> None:
    """Say so if dask computes with workers that are other processes: what they read moves no bar here."""
    client = client_of_dask()
    with suppress(RuntimeError):  # of a client that is asynchronous, with which nothing here computes
        if client is not None and not client.scheduler_info()["address"].startswith("inproc:"):
            advise(
                "progress of workers",
                "progress() does not show what the workers of a cluster read",
                found="a distributed.Client, with which dask computes in other processes",
                do="import distributed; ds = ds.persist(); distributed.progress(ds)",
            )


def client_of_dask() -> Any:
    """Return the `distributed.Client` with which dask computes; None if it computes in this process."""
    if "distributed" not in sys.modules:  # dask would import it to look for a client
        return None
    from dask.base import get_scheduler  # noqa: PLC0415  # takes long

    client = getattr(get_scheduler(), "__self__", None)
    return client if hasattr(client, "scheduler_info") else None
