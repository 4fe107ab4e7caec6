"""Random values of every kind that xarray stores, and of kinds that it refuses."""

import random
from typing import ClassVar

import cftime
import numpy as np
import xarray as xr

CALENDARS = ["standard", "noleap", "360_day", "julian", "proleptic_gregorian", "all_leap"]
NUMBERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "?", ">i2", ">f4"]
OBJECTS = [["a", "bc", ""], ["a", np.nan], ["a", None], [1, 2], [1.5, np.nan], [True, False], [b"a", b"bc"], ["a", 1]]


class Values:
    """A source of random values; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numpy = np.random.default_rng(seed)

    def choose(self, *choices):
        return self.random.choice(choices)

    def maybe(self, probability=0.5):
        return self.random.random() < probability

    def kind(self):
        """Return a kind of values: a dtype of numbers, or one of the names below."""
        return self.choose(*NUMBERS, *self._OTHERS, "times", "f4", "f8", "i2")

    def values(self, kind, shape):
        """Return values of a kind, with missing ones where the kind has any, in some order of memory."""
        values = self._values(kind, int(np.prod(shape))).reshape(shape)
        if self.maybe(0.05):
            return np.array(values, order="F")
        if self.maybe(0.05) and values.size:
            return np.broadcast_to(values.reshape(-1)[0], shape)
        return values

    def _values(self, kind, n):
        if kind in self._OTHERS:
            return self._OTHERS[kind](self, n)
        dtype = np.dtype(kind)
        if dtype.kind == "f":
            found = (self.numpy.random(n) * self.choose(1, 100, 30000)).astype(dtype)
            return self._with_missing(found, np.nan)
        if dtype.kind == "c":
            return (self.numpy.random(n) + 1j * self.numpy.random(n)).astype(dtype)
        return self.numpy.integers(0, 2 if kind == "?" else 100, n).astype(dtype)

    def _times(self, n):
        steps = self.numpy.integers(0, 10**4, n) * self.choose(1, 60, 3600, 86400)
        unit = self.choose("ns", "ns", "s", "ms", "us")
        first = "2000-01-01" if unit == "ns" else self.choose("2000-01-01", "1200-02-03", "4000-01-01")
        found = (np.datetime64(first, "s") + steps.astype("m8[s]")).astype(f"M8[{unit}]")
        if self.maybe(0.2):
            found = found + np.timedelta64(1, unit)
        return self._with_missing(found, np.datetime64("NaT"))

    def _timedeltas(self, n):
        found = (self.numpy.integers(0, 1000, n) * self.choose(1, 3600, 86400)).astype("m8[s]")
        return self._with_missing(found.astype(self.choose("m8[ns]", "m8[s]")), np.timedelta64("NaT"))

    def _cftimes(self, n):
        dates = cftime.num2date(self.numpy.integers(0, 10000, n), "days since 1990-01-01", self.choose(*CALENDARS))
        return np.array(dates, object)

    def _text(self, n):
        return np.array([f"text {i}" * self.random.randint(0, 2) for i in range(n)], object)

    def _objects(self, n):
        several = self.choose(*OBJECTS)
        return np.array([*(self.choose(*several) for _ in range(n)), None], object)[:n]

    def _strings(self, n):
        return np.array([f"s{i}é" for i in range(n)], np.dtypes.StringDType())

    def _fixed_text(self, n):
        dtype = self.choose("U5", "S5", "S1", ">U3")
        return np.array([f"{i % 7}é" if dtype[-2] == "U" else f"t{i}" for i in range(n)], dtype)

    _OTHERS: ClassVar = {
        "times": _times,
        "timedeltas": _timedeltas,
        "cftimes": _cftimes,
        "text": _text,
        "fixed text": _fixed_text,
        "strings": _strings,
        "objects": _objects,
    }

    def _with_missing(self, values, missing):
        if self.maybe():
            values[self.numpy.random(values.shape) < 0.1] = missing
        return values

    def labels(self, kind, dim, n):
        """Return different values in order, for an index."""
        if kind == "times":
            return np.datetime64("2001-01-01", self.choose("ns", "s")) + np.arange(n) * np.timedelta64(6, "h")
        if kind == "cftimes":
            calendar = self.choose(*CALENDARS)
            return xr.date_range("2000-01-01", periods=n, calendar=calendar, use_cftime=True)
        if kind == "timedeltas":
            return np.arange(n) * np.timedelta64(90, "s").astype("m8[ns]")
        if kind in ("fixed text", "text"):
            return np.array([f"{dim}{number}" for number in range(n)], "U3" if kind == "fixed text" else object)
        return np.arange(n).astype(kind)
