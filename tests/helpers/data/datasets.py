"""Datasets with everything that xarray decodes, and the encodings that store them in shards."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

N_TIMES, N_LATS, N_LONS = 10, 6, 8
CHUNKS = (2, 3, 4)
SHARDS = (4, 6, 8)
SHARDED: dict[str, Any] = {"chunks": CHUNKS, "shards": SHARDS}
DIMS = ("time", "lat", "lon")


def field(seed: int = 0) -> np.ndarray:
    """Numbers with one decimal, some of them missing."""
    data = np.random.default_rng(seed).integers(-999, 999, (N_TIMES, N_LATS, N_LONS)) / 10
    data[data > 90] = np.nan
    return data


def weather(seed: int = 0) -> xr.Dataset:
    """A dataset with packed, plain, boolean, text and time variables, bounds, and coordinates of every kind."""
    times = pd.date_range("2020-01-01", periods=N_TIMES, freq="6h")
    bounds = np.stack([times, times + pd.Timedelta("6h")], axis=1)
    return xr.Dataset(
        {
            "t2m": (DIMS, field(seed), {"units": "K", "valid_min": 1, "grid_mapping": "crs"}),
            "u10": (DIMS, field(seed + 1).astype("f4"), {"long_name": "wind"}),
            "count": (DIMS, np.arange(N_TIMES * N_LATS * N_LONS).reshape(N_TIMES, N_LATS, N_LONS)),
            "mask": (("lat", "lon"), field(seed + 2)[0] > 0),
            "station": ("lat", [f"station {i}" for i in range(N_LATS)]),
            "lead": (("lat", "lon"), np.arange(48).reshape(6, 8) * np.timedelta64(1, "h")),
            "valid": (("lat", "lon"), np.datetime64("2020-01-01", "ns") + np.arange(48).reshape(6, 8) * 3600 * 10**9),
            "time_bounds": (("time", "nv"), bounds),
            "crs": ((), 7, {"grid_mapping_name": "latitude_longitude"}),
            "scalar": ((), 1.5, {"units": "m"}),
        },
        coords={
            "time": ("time", times, {"bounds": "time_bounds", "axis": "T"}),
            "lat": ("lat", np.linspace(-50, 50, N_LATS), {"units": "degrees_north"}),
            "lon": ("lon", np.arange(N_LONS), {"units": "degrees_east"}),
            "height": (("lat", "lon"), np.arange(48.0).reshape(6, 8)),
            "level": ((), 500),
        },
        attrs={"title": "weather", "numbers": [1, 2, 3]},
    )


ENCODING: dict[str, dict[str, Any]] = {
    "t2m": {**SHARDED, "dtype": "i2", "scale_factor": 0.1, "add_offset": 273.15, "_FillValue": -32768},
    "u10": dict(SHARDED),
    "count": dict(SHARDED),
    "mask": {"chunks": (3, 4), "shards": (6, 8)},
    "time": {"units": "hours since 2020-01-01", "dtype": "i4"},
}
V2_ENCODING: dict[str, dict[str, Any]] = {
    name: {k: v for k, v in encoding.items() if k != "shards"} for name, encoding in ENCODING.items()
}


def write_weather(store: Any, *, zarr_format: int = 3, seed: int = 0, **keywords: Any) -> None:
    """Write `weather` with xarray's own engine."""
    encoding = ENCODING if zarr_format == 3 else V2_ENCODING
    weather(seed).to_zarr(store, encoding=encoding, zarr_format=zarr_format, **keywords)


def open_ours(store: Any, **keywords: Any) -> xr.Dataset:
    """Open with this package on the host."""
    return xr.open_dataset(store, engine="gpuzarr", **({"device": "host"} | keywords))


def open_stock(store: Any, **keywords: Any) -> xr.Dataset:
    """Open with xarray's own engine."""
    return xr.open_dataset(store, engine="zarr", **keywords)


COMMON_WORK: dict[str, Callable[[xr.Dataset], Any]] = {
    "everything": lambda ds: ds[["u10", "t2m", "count", "mask"]],
    "mean over time": lambda ds: ds.t2m.mean("time"),
    "mean of all": lambda ds: ds.u10.mean(),
    "climatology": lambda ds: ds.t2m.groupby("time.hour").mean(),
    "anomalies": lambda ds: ds.t2m.groupby("time.hour") - ds.t2m.groupby("time.hour").mean(),
    "resample": lambda ds: ds.u10.resample(time="1D").mean(),
    "standard deviation": lambda ds: ds.u10.std("time"),
    "where": lambda ds: ds.t2m.where(ds.u10 > 0, 0.0),
    "selection": lambda ds: ds.u10.isel(time=[1, 7, 3], lat=slice(None, None, -1)),
    "rechunk": lambda ds: ds.u10.chunk(time=-1, lat=2),
    "rechunk, then median": lambda ds: ds.u10.chunk(time=-1).median("time"),
    "concat": lambda ds: xr.concat([ds.u10, ds.t2m.astype("f4")], "run"),
    "coarsen": lambda ds: ds.u10.coarsen(time=2).mean(),
    "differences": lambda ds: ds.u10.diff("time"),
    "sum": lambda ds: ds.u10.sum(),
    "maximum": lambda ds: ds.u10.max("time"),
    "rolling": lambda ds: ds.u10.rolling(time=3, center=True).mean(),
    "shift": lambda ds: ds.t2m.shift(time=1),
    "cumulative sum": lambda ds: ds.u10.cumsum("time"),
    "pad": lambda ds: ds.u10.pad(time=1),
    "product": lambda ds: xr.dot(ds.u10, ds.u10, dim="time"),
    "bins": lambda ds: ds.u10.groupby_bins("lat", [-60, 0, 60]).mean(),
}
