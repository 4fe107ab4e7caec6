"""Cases of opening: trees and groups of many variables behind a server that answers late, with each engine."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import xarray as xr
from zarr.storage import ObjectStore, StorePath

from benchmarks.range_server import RangeServer
from benchmarks.remote.readers import require, rustytree_store, s3_store
from benchmarks.runner.session import Case, Contestant, Ready, WrongValuesError
from benchmarks.shared import Shared, seconds

_LATENCY_S = 0.05
_MEANINGFUL_SCALE = 0.01
_N_STORES = 12
_NBYTES = 1
"""Bytes per second say nothing of opening."""
_ENGINES = {
    "xarray, zarr engine": ("zarr", {}),
    "rustytree": ("rustytree", {}),
    "gpuzarr": ("gpuzarr", {"device": "host"}),
}

type Open = Callable[..., Any]


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    found = [
        _case(what, write, open_it, folder, consolidated=consolidated)
        for what, write, open_it in (
            ("tree of 8 x 6 groups", _write_tree, xr.open_datatree),
            ("40 variables", _write_variables, xr.open_dataset),
            ("40 variables, loaded lazily", _write_variables, _open_and_load),
        )
        for consolidated in (True, False)
    ]
    if scale < _MEANINGFUL_SCALE:
        return found[4:5]  # it opens and loads; a tree takes xarray a minute
    for how, open_it in (
        ("", _open_stores),
        (", parallel", partial(_open_stores, parallel=True)),
        (", local", _open_stores),
    ):
        many = f"{_N_STORES} stores by open_mfdataset{how}"
        found += [_case(many, _write_stores, open_it, folder, consolidated=True, is_local="local" in how)]
    return found


def _case(
    what: str, write: Callable[..., None], open_it: Open, folder: Path, *, consolidated: bool, is_local: bool = False
) -> Case:
    kind = "consolidated" if consolidated else "not consolidated"
    where = "local files" if is_local else f"a server that answers {_LATENCY_S * 1000:.0f} ms late, through obstore"
    n_engines = len(_ENGINES) - (write is _write_stores)

    def contestants() -> list[Contestant]:
        served = folder / "served"
        path = served / "stores" / f"open-{write.__name__.strip('_')}-{kind.replace(' ', '-')}"
        if not path.exists():
            write(path.with_suffix(".part"), consolidated=consolidated)
            path.with_suffix(".part").rename(path)
        shared = Shared(partial(RangeServer, served, _LATENCY_S), n_engines)
        return [
            Contestant(
                name=name,
                side="ours" if name == "gpuzarr" else "peer",
                nbytes=_NBYTES,
                prepare=partial(shared.prepare, partial(_prepare, open_it, path, *options, is_local=is_local)),
            )
            for name, options in _ENGINES.items()
            if write is not _write_stores or name != "rustytree"
        ]

    named = f"{what}, {kind}"
    return Case(name=f"open/{named}", summary=f"{named}; from {where}", most_rounds=3, contestants=contestants)


def _prepare(
    open_it: Open, path: Path, engine: str, keywords: dict[str, Any], server: RangeServer, *, is_local: bool
) -> Ready:
    require(engine)

    def opened() -> Any:
        store: Any = path if is_local else ObjectStore(s3_store(server.url, path.name), read_only=True)
        if engine == "rustytree":
            store, keywords["storage_options"] = rustytree_store(server.url, path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of metadata that are not consolidated
            return open_it(store, engine=engine, **keywords)

    server.requests()
    found = opened()
    n_requests = len(server.requests())
    if not found.identical(open_it(path, engine="zarr")):
        raise WrongValuesError("opened otherwise than from a local file by xarray's engine")
    return Ready(measure=partial(seconds, opened), facts={"requests": n_requests})


def _open_and_load(store: Any, **keywords: Any) -> xr.Dataset:
    ds = xr.open_dataset(store, chunks=None, **keywords)
    return ds.gpuzarr.load() if keywords["engine"] == "gpuzarr" else ds.load()


def _open_stores(folder: Any, *, parallel: bool = False, **keywords: Any) -> xr.Dataset:
    stores = [folder / f"{i}" if isinstance(folder, Path) else StorePath(folder, f"{i}") for i in range(_N_STORES)]
    joined = {"combine": "nested", "concat_dim": "run", "data_vars": "all", "coords": "minimal", "compat": "override"}
    with dask.config.set(scheduler="threads", num_workers=32):
        return xr.open_mfdataset(stores, parallel=parallel, join="exact", **joined, **keywords)


def _write_stores(path: Path, *, consolidated: bool) -> None:
    for i in range(_N_STORES):
        _replace(_dataset(4, 0), path / f"{i}", consolidated=consolidated)


def _write_tree(path: Path, *, consolidated: bool) -> None:
    groups = {f"/{i}/{j}": _dataset(4, 10 * i + j) for i in range(8) for j in range(6)}
    _replace(xr.DataTree.from_dict(groups), path, consolidated=consolidated)


def _write_variables(path: Path, *, consolidated: bool) -> None:
    _replace(_dataset(40, 0), path, consolidated=consolidated)


def _replace(what: xr.DataTree | xr.Dataset, path: Path, *, consolidated: bool) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # format 3 does not specify consolidated metadata
        what.to_zarr(path, zarr_format=3, consolidated=consolidated)


def _dataset(n_variables: int, value: int) -> xr.Dataset:
    shape = {"time": 8, "y": 6, "x": 5}
    return xr.Dataset(
        {f"v{i}": (tuple(shape), np.full(tuple(shape.values()), i + value, "f4")) for i in range(n_variables)},
        coords={
            "time": pd.date_range("2000-01-01", periods=shape["time"]),
            "y": np.arange(shape["y"]) * 0.5,
            "x": np.arange(shape["x"]) + float(value),
        },
    )
