"""Random datasets of every kind that xarray stores, with encodings of every kind, and random ways to write them."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr
from zarr.abc.store import Store
from zarr.storage import MemoryStore

from helpers.data.random_encodings import Encodings

DIMS = {"t": 7, "y": 5, "x": 6}
NAMES = ["a b", "é", "g/v", "a//b", "x", "crs", "t_bnds", "v0", "__v"]
BAD_NAMES = ["", None, 1, "/", "v0/", "..", "a\\b"]
CHANGES = [
    {"dtype": "f8"},
    {"dtype": "i4", "_FillValue": -5},
    {"_FillValue": -5},
    {"nonsense": 1},
    {},
    {"chunks": 2},
    {"shards": None},
    {"compressors": None},
    {"write_empty_chunks": True},
    {"units": "days since 1900-01-01"},
    {"scale_factor": 0.5},
    {"fill_value": 1},
    {"order": "F"},
]


@dataclass
class Write:
    """One call of `to_zarr`."""

    dataset: xr.Dataset
    options: dict[str, Any] = field(default_factory=dict)
    chunks: dict[str, int] | int = field(default_factory=dict)
    shards: dict[str, int] | int | None = None
    before: Callable[[Store], None] | None = None
    """What another program does to the store before."""

    def __post_init__(self) -> None:
        """Name only dimensions that are there."""
        if isinstance(self.chunks, dict):
            self.chunks = {dim: n for dim, n in self.chunks.items() if dim in self.dataset.dims}
        if isinstance(self.shards, dict):
            self.shards = {dim: n for dim, n in self.shards.items() if dim in self.dataset.dims}


def storable(ds, zarr_format):
    """Return a dataset without what xarray refuses to store: the encoding, or all, of its variables."""
    ds = ds.copy()
    for name, variable in [*ds.variables.items()]:
        if name in ds.variables and not is_storable({name: variable}, zarr_format):
            variable.encoding = {}
            if not is_storable({name: variable}, zarr_format):
                ds = ds.drop_vars({name, *ds.xindexes.get_all_coords(name, errors="ignore")})
    return ds if is_storable({}, zarr_format, ds.attrs) else ds.drop_attrs(deep=False)


def is_storable(variables, zarr_format, attrs=None):
    """Whether xarray stores variables, computed ones of dask, without an error."""
    try:
        alone = xr.Dataset(attrs=attrs)
        for name, variable in variables.items():
            alone[name] = variable.copy(deep=False)
            alone[name].encoding = {k: v for k, v in variable.encoding.items() if k not in ("chunks", "shards")}
        alone.to_zarr(MemoryStore(), zarr_format=zarr_format, consolidated=False, safe_chunks=False)
    except Exception:  # noqa: BLE001  # whatever xarray says
        return False
    return True


def _loaded(ds):
    try:
        return ds.copy().load()
    except Exception:  # noqa: BLE001  # filters may not undo what they did
        return ds


class Draw(Encodings):
    """A source of random datasets; the same for the same seed."""

    def variable(self, zarr_format, dims=None):
        kind = self.kind()
        if dims is None:
            dims = tuple(dim for dim in self.lengths if self.maybe(0.6))
        values = self.values(kind, tuple(self.lengths[dim] for dim in dims))
        variable = xr.Variable(dims, values, self.attrs())
        variable.encoding = self.encoding(kind, zarr_format, len(dims))
        if self.maybe(0.5):
            encoding = variable.encoding
            variable = variable.chunk({dim: self.random.randint(1, max(1, self.lengths[dim])) for dim in dims})
            variable.encoding = encoding
        return variable

    def dataset(self, zarr_format):
        """Return a dataset of up to four variables, with some of the coordinates that there can be."""
        self.lengths = DIMS | ({"e": 0} if self.maybe(0.05) else {})
        names = [f"v{number}" for number in range(self.random.randint(1, 4))]
        if self.maybe(0.15):
            names.append(self.choose(*NAMES))
        if self.maybe(0.03):
            names.append(self.choose(*BAD_NAMES))
        names = [name for name in names if name not in DIMS]
        ds = xr.Dataset({name: self.variable(zarr_format) for name in names}, attrs=self.attrs())
        for dim in [dim for dim in DIMS if dim in ds.dims and self.maybe(0.6)]:
            ds = self._with_index(ds, dim, zarr_format)
        if self.maybe(0.2):
            value = self.choose(1, 2.5, "text", np.datetime64("2000", "ns"))
            ds = ds.assign_coords({self.choose("scalar", "crs"): value})
        if self.maybe(0.2):
            dims = tuple(dim for dim in ds.dims if self.maybe())
            ds = ds.assign_coords({self.choose("lon", "lon lat", "h"): self.variable(zarr_format, dims)})
        if self.maybe(0.15):
            ds = self._lazy(ds)
        return ds if self.maybe(0.2) else storable(ds, zarr_format)

    def _with_index(self, ds, dim, zarr_format):
        kind = self.choose("f8", "i4", "times", "times", "cftimes", "fixed text", "text", "timedeltas", "i2")
        labels = self.labels(kind, dim, DIMS[dim])
        if self.maybe(0.1):
            ds = ds.assign_coords(xr.Coordinates({dim: (dim, np.asarray(labels))}, indexes={}))
        elif self.maybe(0.02):
            midx = pd.MultiIndex.from_arrays([np.arange(DIMS[dim])] * 2, names=(f"{dim}1", f"{dim}2"))
            return ds.assign_coords(xr.Coordinates.from_pandas_multiindex(midx, dim))
        elif self.maybe(0.02):
            return ds.assign_coords({dim: pd.Categorical(["a"] * DIMS[dim])})
        else:
            ds = ds.assign_coords({dim: (dim, labels)})
        ds[dim].encoding = self.encoding(kind if kind in ("times", "cftimes", "timedeltas") else "text", zarr_format, 1)
        ds[dim].attrs = self.attrs()
        return ds

    def _lazy(self, ds):
        """Return a dataset as it is read from a store, or itself if it cannot be stored."""
        store = MemoryStore()
        try:
            ds.to_zarr(store, zarr_format=self.choose(2, 3), consolidated=False, safe_chunks=False)
            engine, chunks = self.choose("zarr", "gpuzarr"), self.choose(None, {}, {"t": 2})
            return xr.open_dataset(store, engine=engine, chunks=chunks, consolidated=False, cache=False)
        except Exception:  # noqa: BLE001  # whatever xarray says
            return ds

    def layout(self):
        """Return the lengths of chunks, and of shards."""
        if self.maybe(0.1):
            return self.choose(30, 100, "64 B"), self.choose(None, 200, 1000)
        chunks = {dim: self.random.randint(1, n) for dim, n in DIMS.items()}
        if self.maybe(0.3):
            return chunks, None
        return chunks, {dim: n * self.random.randint(1, 3) for dim, n in chunks.items()}

    def writes(self):
        """Return a first write, and others that add to it."""
        zarr_format = self.choose(2, 3, 3)
        ds = self.dataset(zarr_format)
        chunks, shards = self.layout()
        options = {"zarr_format": zarr_format, "consolidated": self.choose(True, False)}
        if self.maybe(0.3):
            options["mode"] = self.choose("w", "w-", "a")
        if self.maybe(0.1):
            options["group"] = self.choose("g", "g/h", "/g/")
        if self.maybe(0.15):
            options["encoding"] = {self.choose("v0", *ds.variables): self.choose(*CHANGES)}
        self._add_options(options)
        yield Write(ds, options, chunks, shards)
        for _ in range(self.random.randint(0, 2)):
            further = self._further(ds, chunks, shards)
            further.options |= {key: options[key] for key in ("group",) if key in options}
            self._add_options(further.options)
            yield further

    def _add_options(self, options):
        for key, probability, value in (
            ("write_empty_chunks", 0.1, self.maybe()),
            ("compute", 0.1, False),
            ("align_chunks", 0.05, True),
        ):
            if self.maybe(probability):
                options[key] = value

    def _further(self, ds, chunks, shards):
        kind = self.choose("append", "region", "auto", "a", "r+", "w")
        consolidated = {} if self.maybe() else {"consolidated": self.choose(True, False)}
        if self.maybe(0.2):
            ds = self._changed(ds)
        if not ds.dims or not all(ds.sizes.values()):
            kind = self.choose("a", "r+")
        before = self._resized if self.maybe(0.1) else None
        if kind == "append":
            dim = self.choose(*ds.dims)
            part = ds.isel({dim: slice(0, self.random.randint(0 if self.maybe(0.1) else 1, ds.sizes[dim]))})
            options = {"append_dim": dim, "mode": self.choose("a", None, "a-")}
            others = [each for each in ds.dims if each != dim]
            if others and self.maybe(0.1):
                part, options["region"] = self._part(part, others[:1])
            return Write(part, options | consolidated, chunks, shards, before)
        if kind == "region":
            part, region = self._part(ds, self.random.sample([*ds.dims], self.random.randint(1, len(ds.dims))))
            options = {"region": region, "mode": self.choose(None, "r+", "a")}
            return Write(part, options | consolidated, chunks, shards, before)
        if kind == "auto":
            dim = self.choose(*ds.dims)
            part = ds.isel({dim: slice(1, 4)}).drop_vars([n for n, v in ds.variables.items() if dim not in v.dims])
            return Write(part, {"region": self.choose("auto", {dim: "auto"})} | consolidated, chunks, shards, before)
        return Write(ds, {"mode": kind} | consolidated, chunks, shards, before)

    def _part(self, ds, dims):
        """Return a part of a dataset, and the region that it comes from."""
        region = {}
        for dim in dims:
            start = self.random.randint(0, ds.sizes[dim] - 1) if ds.sizes[dim] else 0
            stop = self.random.randint(start + 1, max(start + 1, ds.sizes[dim]))
            region[dim] = slice(start, stop)
        part = ds.isel(region).drop_vars([n for n, v in ds.variables.items() if not {*dims} & {*v.dims}])
        for dim, each in region.items():
            if self.maybe(0.1):
                region[dim] = slice(each.start - ds.sizes[dim], each.stop - ds.sizes[dim] or None)
            elif each.stop == ds.sizes[dim] and self.maybe(0.2):
                region[dim] = slice(each.start, None)
        return part, region

    def _changed(self, ds):
        """Return a dataset that is not quite what is stored."""
        how = self.choose("dims", "dtype", "name", "numpy", "dask", "attrs")
        if how == "dims":
            return ds.transpose(*self.random.sample([*ds.dims], len(ds.dims)))
        if how == "dtype":
            return ds.map(lambda each: each.astype("f4") if each.dtype.kind in "iu" else each)
        if how == "name":
            return ds.rename({name: "new" for name in ["v0"] if name in ds})
        if how == "attrs":
            return ds.map(lambda each: each.assign_attrs(new=1)).assign_attrs(new=2)
        return self._chunked(ds) if how == "dask" else _loaded(ds)

    def _chunked(self, ds):
        chunked = ds.chunk({dim: self.random.randint(1, max(1, n)) for dim, n in ds.sizes.items()})
        for name, variable in ds.variables.items():
            chunked[name].encoding = variable.encoding
        return chunked

    @staticmethod
    def _resized(store):
        """Let zarr-python append a row to every array along its first axis."""
        group = zarr.open_group(store, mode="r+", use_consolidated=False)
        with suppress(ValueError):  # of metadata that zarr-python writes and does not read
            for _, array in group.arrays():
                if array.ndim:
                    array.resize((array.shape[0] + 1, *array.shape[1:]))
