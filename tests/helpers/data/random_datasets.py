"""Random datasets of every kind that xarray stores, with encodings of every kind, and random ways to write them."""

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

import cftime
import numpy as np
import xarray as xr
from zarr.codecs import BloscCodec, ZstdCodec

DIMS = {"t": 7, "y": 5, "x": 6}
CALENDARS = ["standard", "noleap", "360_day", "julian", "proleptic_gregorian", "all_leap"]
NUMBERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "?", ">i2", ">f4"]


@dataclass
class Write:
    """One call of `to_zarr`."""

    dataset: xr.Dataset
    options: dict[str, Any] = field(default_factory=dict)
    chunks: dict[str, int] = field(default_factory=dict)
    shards: dict[str, int] | None = None

    def __post_init__(self) -> None:
        """Name only dimensions that are there."""
        self.chunks = {dim: n for dim, n in self.chunks.items() if dim in self.dataset.dims}
        if self.shards is not None:
            self.shards = {dim: n for dim, n in self.shards.items() if dim in self.dataset.dims}


class Draw:
    """A source of random datasets; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)

    def choose(self, *choices):
        return self.random.choice(choices)

    def maybe(self, probability=0.5):
        return self.random.random() < probability

    # ---- values

    def values(self, kind, shape):
        """Return values of a kind, with missing ones where the kind has any."""
        n = int(np.prod(shape))
        if kind in self._OTHERS:
            return self._OTHERS[kind](self, n).reshape(shape)
        dtype = np.dtype(kind)
        if dtype.kind == "f":
            found = (self.numpy.random(n) * self.choose(1, 100, 30000)).astype(dtype)
            return self._with_missing(found, np.nan).reshape(shape)
        if dtype.kind == "c":
            return (self.numpy.random(shape) + 1j * self.numpy.random(shape)).astype(dtype)
        return self.numpy.integers(0, 2 if kind == "?" else 100, shape).astype(dtype)

    def _times(self, n):
        seconds = self.numpy.integers(0, 10**4, n) * self.choose(1, 60, 3600, 86400)
        found = np.datetime64("2000-01-01", "s") + seconds.astype("m8[s]")
        return self._with_missing(found.astype(self.choose("M8[ns]", "M8[s]")), np.datetime64("NaT"))

    def _timedeltas(self, n):
        found = (self.numpy.integers(0, 1000, n) * self.choose(1, 3600, 86400)).astype("m8[s]")
        return self._with_missing(found.astype("m8[ns]"), np.timedelta64("NaT"))

    def _cftimes(self, n):
        dates = cftime.num2date(self.numpy.integers(0, 10000, n), "days since 1990-01-01", self.choose(*CALENDARS))
        return np.array(dates, object)

    def _text(self, n):
        return np.array([f"text {i}" * self.random.randint(0, 2) for i in range(n)], object)

    def _fixed_text(self, n):
        return np.array([f"t{i}" for i in range(n)], self.choose("U5", "S5"))

    _OTHERS: ClassVar = {
        "times": _times,
        "timedeltas": _timedeltas,
        "cftimes": _cftimes,
        "text": _text,
        "fixed text": _fixed_text,
    }

    def _with_missing(self, values, missing):
        if self.maybe():
            values[self.numpy.random(values.shape) < 0.1] = missing
        return values

    # ---- encodings

    def encoding(self, kind, zarr_format):
        encoding = {}
        if kind == "times" and self.maybe():
            encoding["units"] = self.choose("seconds since 2000-01-01", "hours since 1999-12-31T12:00:00")
            if self.maybe():
                encoding |= {
                    "dtype": self.choose("i8", "f8"),
                    "calendar": self.choose("standard", "proleptic_gregorian"),
                }
        elif kind == "cftimes" and self.maybe():
            encoding["units"] = "days since 1980-01-01"
            if self.maybe():
                encoding["dtype"] = self.choose("int64", "float64")
        elif kind == "timedeltas" and self.maybe():
            encoding["units"] = self.choose("seconds", "hours", "days")
            if self.maybe():
                encoding["dtype"] = self.choose("i8", "f8")
        elif kind in NUMBERS and kind != "?" and np.dtype(kind).kind != "c":
            encoding |= self._packing(np.dtype(kind))
        for key, probability, value in (
            ("compressors", 0.2, (ZstdCodec(level=3),) if zarr_format == 3 else None),
            ("compressors", 0.05, None),
            ("compressors", 0.1, (BloscCodec(cname="lz4"),) if zarr_format == 3 else None),
            ("fill_value", 0.15, 3),
            ("write_empty_chunks", 0.1, self.maybe()),
            ("grid_mapping", 0.1, "crs"),
            ("coordinates", 0.05, "lon lat"),
            ("preferred_chunks", 0.1, {"t": 1}),
            ("source", 0.1, "somewhere"),
            ("original_shape", 0.1, (1, 2)),
            ("zlib", 0.05, True),
        ):
            if self.maybe(probability):
                encoding[key] = value
        return encoding

    def _packing(self, dtype):
        encoding = {}
        if self.maybe(0.4 if dtype.kind == "f" else 0.05):
            encoding["scale_factor"] = self.choose(0.5, np.float32(0.25), np.float64(0.03), 2, np.int16(2))
        if self.maybe(0.3 if dtype.kind == "f" else 0.05):
            encoding["add_offset"] = self.choose(10.0, np.float32(1.5), 273.15, 1)
        if self.maybe(0.4):
            encoding["dtype"] = self.choose("i2", "i4", "u2", "f4", "f8", "i8", "<i2", np.dtype("int16"))
        if self.maybe(0.4):
            encoding["_FillValue"] = self.choose(-99, np.int16(-99), 0, np.float32(-9), np.nan, None, 250)
        if self.maybe(0.1):
            encoding["missing_value"] = self.choose(-99, np.int16(-99), np.nan)
        if self.maybe(0.05):
            encoding["_Unsigned"] = self.choose("true", "false")
        return encoding

    def attrs(self):
        found = (
            ("units", 0.2, self.choose("K", "m", "days since 2000-01-01")),
            ("long_name", 0.2, "a name"),
            ("valid_range", 0.1, np.array([0, 5], "i2")),
            ("flag", 0.1, [1, 2]),
            ("coordinates", 0.02, "a b"),
            ("_FillValue", 0.02, -1),
        )
        return {key: value for key, probability, value in found if self.maybe(probability)}

    # ---- datasets

    def variable(self, zarr_format, dims=None):
        kind = self.choose(*NUMBERS, "times", "timedeltas", "cftimes", "text", "fixed text", "f4", "f8", "i2")
        if dims is None:
            dims = tuple(dim for dim in DIMS if self.maybe(0.6))
        variable = xr.Variable(dims, self.values(kind, tuple(DIMS[dim] for dim in dims)), self.attrs())
        variable.encoding = self.encoding(kind, zarr_format)
        if self.maybe(0.55):
            encoding = variable.encoding
            variable = variable.chunk({dim: self.random.randint(1, DIMS[dim]) for dim in dims})
            variable.encoding = encoding
        return variable

    def dataset(self, zarr_format):
        names = [f"v{number}" for number in range(self.random.randint(1, 4))]
        ds = xr.Dataset({name: self.variable(zarr_format) for name in names}, attrs=self.attrs())
        for dim in [dim for dim in DIMS if dim in ds.dims and self.maybe(0.6)]:
            kind = self.choose("f8", "i4", "times", "cftimes", "fixed text")
            values = np.arange(DIMS[dim])
            if kind == "times":
                values = np.datetime64("2001-01-01", "ns") + np.arange(DIMS[dim]) * np.timedelta64(6, "h")
            elif kind == "cftimes":
                values = xr.date_range("2000-01-01", periods=DIMS[dim], calendar="noleap", use_cftime=True)
            elif kind == "fixed text":
                values = np.array([f"{dim}{n}" for n in range(DIMS[dim])])
            else:
                values = values.astype(kind)
            ds = ds.assign_coords({dim: (dim, values)})
            ds[dim].encoding = self.encoding(kind if kind in ("times", "cftimes") else "text", zarr_format)
            if self.maybe(0.1):
                ds[dim].encoding["bounds"] = f"{dim}_bnds"
        if self.maybe(0.2):
            ds = ds.assign_coords(scalar=self.choose(1, 2.5, "text"))
        return ds

    def layout(self):
        """Return the lengths of chunks, and of shards."""
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
            options["write_empty_chunks"] = self.maybe()
        if self.maybe(0.1):
            options["encoding"] = {"v0": self.choose({"dtype": "f8"}, {"_FillValue": -5}, {"nonsense": 1}, {})}
        yield Write(ds, options, chunks, shards)
        for _ in range(self.random.randint(0, 2)):
            yield self._further(ds, chunks, shards)

    def _further(self, ds, chunks, shards):
        kind = self.choose("append", "region", "auto", "a", "r+")
        consolidated = {} if self.maybe() else {"consolidated": self.choose(True, False)}
        if not ds.dims:
            kind = self.choose("a", "r+")
        if kind == "append":
            dim = self.choose(*ds.dims)
            part = ds.isel({dim: slice(0, self.random.randint(1, ds.sizes[dim]))})
            options = {"append_dim": dim, "mode": self.choose("a", None, "a-")}
            return Write(part, options | consolidated, chunks, shards)
        if kind == "region":
            dim = self.choose(*ds.dims)
            start = self.random.randint(0, ds.sizes[dim] - 1)
            stop = self.random.randint(start + 1, ds.sizes[dim])
            part = ds.isel({dim: slice(start, stop)}).drop_vars(
                [n for n, v in ds.variables.items() if dim not in v.dims]
            )
            return Write(part, {"region": {dim: slice(start, stop)}} | consolidated, chunks, shards)
        if kind == "auto":
            dim = self.choose(*ds.dims)
            part = ds.isel({dim: slice(1, 4)}).drop_vars([n for n, v in ds.variables.items() if dim not in v.dims])
            return Write(part, {"region": self.choose("auto", {dim: "auto"})} | consolidated, chunks, shards)
        return Write(ds, {"mode": kind} | consolidated, chunks, shards)
