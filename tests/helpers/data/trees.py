"""Small datasets of many variables, and trees of them, with and without consolidated metadata."""

import random
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr
from zarr.storage import MemoryStore

from helpers.stores.fakes import is_data, put, take


def small(value: float, n_times: int = 4) -> xr.Dataset:
    """Return a dataset with index coordinates, one of them times, and bounds and scalars that are times."""
    times = pd.date_range("2000-01-01", periods=n_times)
    ds = xr.Dataset(
        {
            "a": (("time", "x"), np.full((n_times, 3), value, "f4")),
            "valid": (("time", "x"), np.broadcast_to(times.to_numpy()[:, None], (n_times, 3)).copy()),
            "time_bounds": (("time", "nv"), np.stack([times, times + pd.Timedelta("1D")], 1)),
        },
        coords={"time": times, "x": np.arange(3.0) + value, "name": ("x", list("uvw")), "begin": times[0]},
        attrs={"value": value},
    )
    ds["time"].attrs["bounds"] = "time_bounds"
    return ds


def many_variables(zarr_format: int, *, consolidated: bool, **encoding: Any) -> MemoryStore:
    """Return a store of `small` with forty variables more."""
    store = MemoryStore()
    ds = small(1, 8).assign({f"v{i}": ("x", np.arange(3.0)) for i in range(40)})
    ds.to_zarr(store, zarr_format=zarr_format, consolidated=consolidated, encoding=encoding)
    return store


def tree(zarr_format: int, *, consolidated: bool, n: tuple[int, int] = (3, 2)) -> MemoryStore:
    """Return a store of a tree whose groups ``g0/h0`` and so on are `small` datasets."""
    return MemoryStore(dict(_tree(zarr_format, consolidated, n)))


@cache
def _tree(zarr_format: int, consolidated: bool, n: tuple[int, int]) -> dict:
    objects = {}
    groups = {f"/g{i}/h{j}": small(10 * i + j) for i in range(n[0]) for j in range(n[1])}
    xr.DataTree.from_dict({"/": xr.Dataset(attrs={"root": 1}), **groups}).to_zarr(
        MemoryStore(objects), zarr_format=zarr_format, consolidated=consolidated
    )
    return objects


def random_tree(rng: random.Random, zarr_format: int) -> tuple[MemoryStore, list[str]]:
    """Return a store of groups, arrays and strange objects, and the paths of the groups.

    Some of its groups are consolidated, and some of its documents damaged.
    """
    objects: dict = {}
    store = MemoryStore(objects)
    groups = [zarr.open_group(store, zarr_format=zarr_format)]
    for i in range(rng.randrange(1, 9)):
        groups.append(rng.choice(groups).require_group(rng.choice([f"g{i}", f"{i}", "c", f"h.{i}", f"ü{i}"])))
    for i in range(rng.randrange(12)):
        with suppress(Exception):  # of the same name as another node
            _put_array(rng, rng.choice(groups), i)
    for group in groups:
        if rng.random() < 0.25:
            zarr.consolidate_metadata(store, path=group.path)
    keys = sorted(key for key in objects if not is_data(key))
    for _ in range(rng.randrange(3)):
        key = rng.choice(keys)
        kind = rng.choice(["drop", "drop", "drop", "cut", *["add"] * 6])
        if kind == "drop":
            objects.pop(key, None)
        elif kind == "add":
            objects[f"{rng.choice(groups).path}/README.txt".strip("/")] = next(iter(objects.values()))
        elif key in objects:
            put(store, key, take(store, key)[: rng.randrange(9)])
    return store, [group.path for group in groups]


def _put_array(rng: random.Random, group: zarr.Group, number: int) -> None:
    dims = (rng.choice(["x", f"v{number}", "time"]),)
    array = group.create_array(
        rng.choice([dims[0], f"v{number}", f"w{number}"]),
        data=np.arange(4) * number,
        chunks=rng.choice([(1,), (3,), (4,)]),
        attributes={"units": "days since 2000-01-01"} if rng.random() < 0.4 else {"bounds": "w1"},
        **({"dimension_names": dims} if group.metadata.zarr_format == 3 else {}),
    )
    if group.metadata.zarr_format == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = list(dims)
