"""Random encodings and attributes of variables: the keys of xarray, zarr-python and CF, and unknown ones."""

import numcodecs
import numpy as np
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn

from helpers.data.random_values import CALENDARS, NUMBERS, Values

LINKS = [
    "grid_mapping",
    "bounds",
    "cell_measures",
    "formula_terms",
    "ancillary_variables",
    "coordinates",
    "climatology",
]
LINKED = ["crs", "v0", "area: v1", "a: v0 b: scalar", "lon lat", "t_bnds", "", None]
EPOCHS = ["2000-01-01", "1999-12-31T12:00:00", "1850-01-01", "0001-01-01", "1970-01-01T00:00:00+01:00"]


class Encodings(Values):
    """A source of random encodings and attributes; the same for the same seed."""

    def encoding(self, kind, zarr_format, ndim=0):
        """Return an encoding of a variable of a kind."""
        if kind in ("times", "cftimes"):
            encoding = self._of_times()
        elif kind == "timedeltas":
            encoding = self._of_timedeltas()
        elif kind in NUMBERS:
            encoding = self._packing(np.dtype(kind))
        else:
            encoding = self._of_text()
        keys = self._for_zarr(zarr_format, ndim, kind if kind in NUMBERS else "i8")
        for key, probability, value in (
            ("preferred_chunks", 0.1, {"t": 1}),
            ("source", 0.1, "somewhere"),
            ("original_shape", 0.1, (1, 2)),
            ("zlib", 0.05, True),
            ("order", 0.03, "F"),
            ("object_codec", 0.03, numcodecs.VLenUTF8()),
            ("unlimited_dims", 0.03, {"t"}),
            ("szip", 0.03, False),
            *keys,
            *((link, 0.03, self.choose(*LINKED)) for link in LINKS),
        ):
            if self.maybe(probability):
                encoding[key] = value
        return encoding

    def _for_zarr(self, zarr_format, ndim, dtype):
        """Return keys of zarr-python's with how often they are given."""
        both = [
            ("fill_value", 0.1, self.choose(3, 0, -1, np.float32(2), np.nan, "x", None)),
            ("write_empty_chunks", 0.1, self.maybe()),
            ("cache_metadata", 0.03, False),
            ("compressors", 0.05, None),
            ("filters", 0.05, None),
            ("chunks", 0.1, self.choose((2,) * ndim, 3, (2,), None)),
            ("shards", 0.05, self.choose((4,) * ndim, None, 4)),
        ]
        if zarr_format == 2:
            codecs = numcodecs.Zstd(3), numcodecs.Blosc("lz4"), [numcodecs.Zstd(1)], "auto", ()
            filters = [numcodecs.Delta(dtype)], [numcodecs.VLenUTF8()], (), numcodecs.Shuffle(4)
            return [
                *both,
                ("compressors", 0.25, self.choose(*codecs)),
                ("compressor", 0.1, numcodecs.Zstd(2)),
                ("filters", 0.1, self.choose(*filters)),
                ("chunk_key_encoding", 0.1, {"name": "v2", "separator": self.choose("/", ".")}),
            ]
        codecs = (ZstdCodec(level=3),), BloscCodec(cname="lz4"), (GzipCodec(level=1),), "auto", (), [ZstdCodec()]
        transpose = TransposeCodec(order=tuple(range(ndim))[::-1])
        filters = (transpose,), (), "auto", (zn.Delta(dtype=dtype),)
        return [
            *both,
            ("compressors", 0.3, self.choose(*codecs)),
            ("filters", 0.1, self.choose(*filters)),
            ("serializer", 0.08, self.choose(BytesCodec(endian="big"), BytesCodec(), "auto")),
            ("chunk_key_encoding", 0.1, {"name": self.choose("v2", "default"), "separator": self.choose("/", ".")}),
        ]

    def _of_times(self):
        encoding = {}
        if self.maybe():
            unit = self.choose("seconds", "hours", "days", "milliseconds", "nanoseconds")
            encoding["units"] = f"{unit} since {self.choose(*EPOCHS)}"
            if self.maybe():
                encoding["dtype"] = self.choose("i8", "f8", "i4", "f4", np.dtype("int64"))
        if self.maybe(0.2):
            encoding["calendar"] = self.choose("standard", "proleptic_gregorian", *CALENDARS)
        if self.maybe(0.2):
            encoding["_FillValue"] = self.choose(-99, np.int64(-(2**63)), np.nan, None, 1e20)
        if self.maybe(0.03):
            encoding["units"] = self.choose("days", "fortnights since 2000-01-01", "days since ever")
        return encoding

    def _of_timedeltas(self):
        encoding = {}
        if self.maybe():
            encoding["units"] = self.choose("seconds", "hours", "days", "nanoseconds", "months")
        if self.maybe(0.4):
            encoding["dtype"] = self.choose("i8", "f8", "i4", "f4", "timedelta64[ns]", "timedelta64[s]")
        if self.maybe(0.2):
            encoding["_FillValue"] = self.choose(-99, np.int64(-(2**63)), np.nan, None)
        return encoding

    def _of_text(self):
        encoding = {}
        if self.maybe(0.2):
            encoding["dtype"] = self.choose(str, "S1", object, "U5", np.dtype("S9"), np.dtypes.StringDType())
        if self.maybe(0.1):
            encoding["_FillValue"] = self.choose("missing", b"x", "", None, np.nan)
        if self.maybe(0.1):
            encoding["_Encoding"] = self.choose("utf-8", "latin-1", "ascii")
        if self.maybe(0.05):
            encoding["char_dim_name"] = "letters"
        return encoding

    def _packing(self, dtype):
        encoding = {}
        is_float = dtype.kind == "f"
        if self.maybe(0.4 if is_float else 0.08):
            numbers = 0.5, np.float32(0.25), np.float64(0.03), 2, np.int16(2), np.array([0.5]), np.array(0.5), -0.1, 100
            encoding["scale_factor"] = self.choose(*numbers)
        if self.maybe(0.3 if is_float else 0.08):
            encoding["add_offset"] = self.choose(10.0, np.float32(1.5), 273.15, 1, np.array([3.0]), -5, np.int8(4))
        if self.maybe(0.4):
            dtypes = "i2", "i4", "u2", "f4", "f8", "i8", "<i2", np.dtype("int16"), "u1", "i1", ">i4", float, "?", "c8"
            encoding["dtype"] = self.choose(*dtypes)
        if self.maybe(0.4):
            fills = -99, np.int16(-99), 0, np.float32(-9), np.nan, None, 250, np.array([-9]), np.float64(1e20), "x"
            encoding["_FillValue"] = self.choose(*fills)
        if self.maybe(0.1):
            encoding["missing_value"] = self.choose(-99, np.int16(-99), np.nan, None)
        if self.maybe(0.08):
            encoding["_Unsigned"] = self.choose("true", "false")
            if self.maybe(0.7):
                encoding["dtype"] = self.choose("i1", "u1", "i2", "u2")
        return encoding

    def attrs(self):
        """Return attributes, some of which cannot be stored."""
        found = (
            ("units", 0.2, self.choose("K", "m", "days since 2000-01-01", "seconds", 1)),
            ("long_name", 0.2, self.choose("a name", "größe", "")),
            ("valid_range", 0.1, np.array([0, 5], "i2")),
            ("flag", 0.1, [1, 2]),
            ("number", 0.1, self.choose(np.float32(0.1), np.nan, np.int8(3), 1e300, True, np.bool_(True), None)),
            ("nested", 0.05, {"a": [1, {"b": None}]}),
            ("bytes", 0.01, b"bytes"),
            ("complex", 0.01, 1j),
            ("coordinates", 0.02, "a b"),
            ("_FillValue", 0.02, -1),
            ("missing_value", 0.02, -1),
            ("scale_factor", 0.01, 0.5),
            ("dtype", 0.01, "bool"),
            ("calendar", 0.01, "noleap"),
            ("_Unsigned", 0.01, "true"),
            ("_ARRAY_DIMENSIONS", 0.01, ["a"]),
            ("_nc_a", 0.02, "b"),
            *((link, 0.02, self.choose(*LINKED)) for link in LINKS),
        )
        return {key: value for key, probability, value in found if self.maybe(probability)}
