"""What people compute with `helpers.data.datasets.weather`: each takes the dataset, chunked or not, of any engine."""

from collections.abc import Callable
from typing import Any

import xarray as xr

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
