"""Batches for PyTorch's loaders: a dataset, what its batches are, and workers that wait.

Tests that need PyTorch are skipped where it is missing; ``XARRAY_GPUZARR_REQUIRE_TORCH=1`` makes that a failure.
"""

import importlib
import multiprocessing
import os
from typing import Any

import numpy as np
import pytest
import xarray as xr
from xarray import Dataset

from helpers.data.datasets import open_ours
from xarray_gpuzarr import batches

N_TIMES = 24
_LONGEST = 60
"""Seconds that a worker waits for a test that has failed meanwhile."""


def import_or_skip(name: str) -> Any:
    """Return a module that comes with PyTorch, or end the tests of a module here."""
    if os.environ.get("XARRAY_GPUZARR_REQUIRE_TORCH") == "1":
        found = importlib.import_module(name)
    else:
        found = pytest.importorskip(name)
    multiprocessing.set_forkserver_preload(["torch.utils.data", "xarray", "xarray_gpuzarr.torch"])
    return found


def written(folder: Any) -> Dataset:
    """Write a dataset whose values say where they are, and open it."""
    ds = xr.Dataset(
        {
            "a": (("time", "y", "x"), np.arange(N_TIMES * 12.0).reshape(N_TIMES, 3, 4)),
            "b": ("time", np.arange(N_TIMES, dtype=">i4")),
            "text": ("time", ["x"] * N_TIMES),
        },
        coords={"time": np.arange(N_TIMES)},
    )
    ds.to_zarr(folder / "s.zarr", encoding={"a": {"chunks": (1, 3, 4)}}, consolidated=False)
    return open_ours(folder / "s.zarr", consolidated=False)


def epochs_of(ds: Dataset, n_epochs: int, **keywords: Any) -> list[list[list[float]]]:
    """Return the first elements of all samples of each batch of each epoch, as one process reads them."""
    made = batches(ds, {"time": 2}, 3, **keywords)
    return [[batch.a.values[:, 0, 0, 0].tolist() for batch in made] for _ in range(n_epochs)]


def firsts(loader: Any) -> list[list[float]]:
    """Return the first elements of all samples of each batch of tensors."""
    return [batch["a"][:, 0, 0, 0].tolist() for batch in loader]


class Late:
    """Lets some workers of a DataLoader begin only once an event of `multiprocessing` is set."""

    def __init__(self, event: Any, workers: Any) -> None:
        self._event = event
        self._workers = workers

    def __call__(self, worker: int) -> None:
        """Wait, as a ``worker_init_fn``."""
        if worker in self._workers:
            assert self._event.wait(_LONGEST)
