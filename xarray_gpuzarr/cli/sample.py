"""Sample data for ``gpuzarr demo``: four days of invented weather, or any dataset, as sharded Zarr.

The weather is spherical harmonics that travel around a planet with Earth's continents; plausible, not physical, and the
same every time. It is packed as reanalyses are: int16 with scale, offset and fill value, zstd, one shard per day.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from zarr.codecs import ZstdCodec

from xarray_gpuzarr.backend.accessor.encodings import PACKING_KEYS, TIME_KEYS

Field = npt.NDArray[np.float32]

_SHARD_CHUNKS = 24
"""Most inner chunks of a shard: in the sample one per hour of a day."""
CHUNK_ELEMENTS = 1024 * 1024
"""Most elements of an inner chunk: a 0.25 degree field of the globe, as reanalyses are often stored."""
_KEPT_ENCODING = frozenset((*PACKING_KEYS, *TIME_KEYS))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGrid:
    """Points and hours of a sample."""

    n_lat: int
    n_lon: int
    n_hours: int

    @property
    def lat(self) -> npt.NDArray[np.float64]:
        """Latitudes in degrees, from north to south, poles included."""
        return np.linspace(90.0, -90.0, self.n_lat, dtype=np.float64)

    @property
    def lon(self) -> npt.NDArray[np.float64]:
        """Longitudes in degrees east, from 0."""
        return np.linspace(0.0, 360.0, self.n_lon, endpoint=False, dtype=np.float64)


SAMPLES = {"normal": SampleGrid(n_lat=121, n_lon=240, n_hours=96), "small": SampleGrid(n_lat=19, n_lon=36, n_hours=48)}
"""Grids by name: 1.5 degrees for the demo (89 MB decoded), 10 degrees for tests."""


class Weather:
    """Random fields on one grid, each made of travelling spherical harmonics."""

    def __init__(self, grid: SampleGrid, seed: int) -> None:
        self.grid = grid
        self.rng = np.random.default_rng(seed)
        self.phi = np.deg2rad(grid.lat)[:, None]
        self.lam = np.deg2rad(grid.lon)[None, :]
        self.hours = np.arange(grid.n_hours, dtype=np.float64)

    def waves(self, degrees: range, *, slope: float) -> Field:
        """Return waves of unit standard deviation, shape (n_hours, n_lat, n_lon).

        Each of `degrees` appears with four orders; the amplitude falls with the power `slope` of the degree.
        """
        in_time, in_space = [], []
        for degree in degrees:
            for order in self.rng.integers(1, degree + 1, 4):
                profile = legendre(degree, int(order), np.sin(self.phi)) * degree**-slope
                in_space += [profile * np.cos(order * self.lam), profile * np.sin(order * self.lam)]
                drift = np.deg2rad(self.rng.uniform(4, 14)) / 24  # radians per hour, eastward
                angle = order * drift * self.hours + self.rng.uniform(0, 2 * np.pi)
                in_time += [np.cos(angle), np.sin(angle)]
        field = np.asarray(in_time, np.float32).T @ np.reshape(in_space, (len(in_space), -1)).astype(np.float32)
        field *= 1 / field.std()
        return field.reshape(-1, *np.broadcast_shapes(self.phi.shape, self.lam.shape))

    def noise(self, deviation: float) -> Field:
        """Return independent normal noise, shape (n_hours, n_lat, n_lon)."""
        shape = (self.grid.n_hours, self.grid.n_lat, self.grid.n_lon)
        return self.rng.standard_normal(shape, np.float32) * np.float32(deviation)


def legendre(degree: int, order: int, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the associated Legendre function, normalised to unit variance over the sphere, at sines of latitudes.

    References
    ----------
    Abramowitz and Stegun, 8.5.3, with normalised coefficients.
    """
    factor = math.prod((2 * k + 1) / (2 * k) for k in range(1, order + 1))
    below, current = np.zeros_like(x), math.sqrt(factor) * np.maximum(1 - x * x, 0) ** (order / 2)
    for n in range(order + 1, degree + 1):
        a = math.sqrt((4 * n * n - 1) / (n * n - order * order))
        b = math.sqrt(((n - 1) ** 2 - order * order) / (4 * (n - 1) ** 2 - 1))
        below, current = current, a * (x * current - b * below)
    return current


def land_mask(grid: SampleGrid) -> npt.NDArray[np.bool_]:
    """Return which points lie inside a continent, shape (n_lat, n_lon): its corners are longitudes and latitudes."""
    lat = grid.lat[:, None]
    lon = (grid.lon[None, :] + 180) % 360 - 180
    land = np.zeros((grid.n_lat, grid.n_lon), bool)
    for corners in json.loads((resources.files(__package__) / "continents.json").read_text()).values():
        x, y = np.array(corners, float).reshape(-1, 2).T
        inside = np.zeros_like(land)
        for x0, y0, x1, y1 in zip(x, y, np.roll(x, -1), np.roll(y, -1), strict=True):
            if y0 != y1:
                inside ^= ((y0 > lat) != (y1 > lat)) & (lon < (x1 - x0) * (lat - y0) / (y1 - y0) + x0)
        land |= inside
    return land


def weather_dataset(grid: SampleGrid) -> xr.Dataset:
    """Return the sample in memory: temperatures, winds and a land mask, with encodings that pack them into int16."""
    weather, land = Weather(grid, seed=20240101), land_mask(grid)
    u10, v10 = _winds(weather)
    fields = {
        "t2m": (_air_temperature(weather, land), "2 metre temperature", "K", "air_temperature"),
        "sst": (_sea_temperature(weather, land), "Sea surface temperature", "K", "sea_surface_temperature"),
        "u10": (u10, "10 metre U wind component", "m s-1", "eastward_wind"),
        "v10": (v10, "10 metre V wind component", "m s-1", "northward_wind"),
    }
    dims = ("time", "latitude", "longitude")
    dataset = xr.Dataset(
        {name: (dims, field, _attrs(*words)) for name, (field, *words) in fields.items()},
        coords={
            "time": np.datetime64("2024-01-01", "ns") + np.arange(grid.n_hours) * np.timedelta64(1, "h"),
            "latitude": ("latitude", grid.lat, _attrs("latitude", "degrees_north", "latitude")),
            "longitude": ("longitude", grid.lon, _attrs("longitude", "degrees_east", "longitude")),
        },
        attrs={"Conventions": "CF-1.12", "title": "Invented weather", "source": "gpuzarr demo; not a forecast"},
    )
    for variable in dataset.data_vars.values():
        # In steps of 0.01, which is more than these quantities are measured to.
        offset = 273.15 if variable.attrs["units"] == "K" else 0.0
        variable.encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": offset, "_FillValue": -32767}
    return dataset.assign(lsm=(dims[1:], land.astype(np.uint8), _attrs("Land-sea mask", "1", "land_binary_mask")))


def _attrs(long_name: str, units: str, standard_name: str) -> dict[str, str]:
    return {"long_name": long_name, "units": units, "standard_name": standard_name}


def _air_temperature(weather: Weather, land: npt.NDArray[np.bool_]) -> Field:
    """Kelvin: cold poles, northern winter, colder land in winter and a daily cycle over it, passing waves."""
    sin_phi = np.sin(weather.phi)
    zonal = 301 - 46 * np.sin(weather.phi + np.deg2rad(9)) ** 2 - 9 * sin_phi * np.abs(sin_phi)
    ice_sheet = land & (np.abs(weather.phi - np.deg2rad(-75)) < np.deg2rad(15))
    season = zonal - 9 * land * sin_phi - 26 * ice_sheet
    local_hour = weather.hours[:, None, None] + np.rad2deg(weather.lam) / 15
    daily = np.cos((local_hour - 14) * (np.pi / 12)) * (land * np.cos(weather.phi) * 5)
    fronts = weather.waves(range(5, 24), slope=0.8) * (1 + 4 * sin_phi**2)
    return np.asarray(season + daily + fronts + weather.noise(0.05), np.float32)


def _sea_temperature(weather: Weather, land: npt.NDArray[np.bool_]) -> Field:
    """Kelvin: warm tropics, eddies, never below the freezing point of sea water; NaN on land."""
    zonal = 271.5 + 30 * np.maximum(np.cos(weather.phi + np.deg2rad(4)), 0) ** 2.5
    eddies = weather.waves(range(6, 30), slope=0.7) * 1.6
    field = np.maximum(zonal + eddies + weather.noise(0.005), 271.35)
    return np.where(land, np.nan, field).astype(np.float32)


def _winds(weather: Weather) -> tuple[Field, Field]:
    """Metres per second: trade winds and westerlies, and the rotation of a travelling stream function."""
    stream = weather.waves(range(4, 22), slope=1.6)
    cos_phi = np.maximum(np.cos(weather.phi), 0.05)
    north = np.gradient(stream, -np.pi / (weather.grid.n_lat - 1), axis=1)
    east = (np.roll(stream, -1, axis=2) - np.roll(stream, 1, axis=2)) * (weather.grid.n_lon / (4 * np.pi)) / cos_phi
    speed = 6 / north.std()
    u10 = -6 * np.cos(4 * weather.phi) * cos_phi - speed * north + weather.noise(0.05)
    return u10.astype(np.float32), (speed * east + weather.noise(0.05)).astype(np.float32)


def write_sharded(dataset: xr.Dataset, path: str) -> None:
    """Write a dataset, packed as its encodings say, as sharded Zarr v3 with zstd, in place of what lies at `path`."""
    encoding: dict[Hashable, dict[Hashable, Any]] = {}
    for name, variable in dataset.variables.items():
        encoding[name] = {}
        if variable.dtype.kind in "biufcmM":
            kept = {key: value for key, value in variable.encoding.items() if key in _KEPT_ENCODING}
            encoding[name] = {**kept, "compressors": ZstdCodec(level=3)}
            if variable.ndim:
                chunk, shard = shard_layout(variable.shape)
                encoding[name] |= {"chunks": chunk, "shards": shard} if name in dataset.data_vars else {"chunks": shard}
    with warnings.catch_warnings():
        # zarr-python warns that consolidated metadata is not in the v3 specification; xarray warns where it is absent.
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        dataset.drop_encoding().to_zarr(path, mode="w", zarr_format=3, consolidated=True, encoding=encoding)


def shard_layout(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose inner chunks, each a field over the last two axes, and shards of up to 24 of them; at least one axis."""
    chunk, room = [1] * len(shape), CHUNK_ELEMENTS
    for axis in range(len(shape) - 1, max(len(shape) - 3, -1), -1):
        chunk[axis] = max(1, min(shape[axis], room))
        room = max(1, room // chunk[axis])
    shard, room = list(chunk), _SHARD_CHUNKS
    for axis in range(len(shape) - 1, -1, -1):
        n = max(1, min(-(-shape[axis] // chunk[axis]), room))
        shard[axis] *= n
        room //= n
    return tuple(chunk), tuple(shard)
