"""Sample data for ``gpuzarr demo``: four days of invented weather; and `write_sharded`, for any dataset.

The weather consists of spherical harmonics that travel around a planet with Earth's continents. It is plausible but not
physical, and always the same. It is packed like reanalyses: int16 with scale, offset and fill value, zstd, and one
shard for each day.
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
"""Values on the grid, shape (n_hours, n_lat, n_lon)."""

_SHARD_CHUNKS = 24
"""Largest number of inner chunks in a shard. In the sample, there is one for each hour of a day."""
CHUNK_ELEMENTS = 1024 * 1024
"""Largest number of elements in an inner chunk: about a global field at 0.25 degrees, a common chunk of reanalyses."""
_KEPT_ENCODING = frozenset((*PACKING_KEYS, *TIME_KEYS))
"""Keys of encodings that are kept when a dataset is written. All others concern the file that it was read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGrid:
    """The grid of a sample in space and time."""

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
"""Name -> grid: 1.5 degrees for the demo (89 MB decoded), 10 degrees for tests."""


class Weather:
    """Random fields on a grid, made of travelling spherical harmonics."""

    def __init__(self, grid: SampleGrid, seed: int) -> None:
        self.grid = grid
        self.rng = np.random.default_rng(seed)
        self.phi = np.deg2rad(grid.lat)[:, None]
        """Latitudes in radians, shape (n_lat, 1)."""
        self.lam = np.deg2rad(grid.lon)[None, :]
        """Longitudes in radians, shape (1, n_lon)."""
        self.hours = np.arange(grid.n_hours, dtype=np.float64)

    def waves(self, degrees: range, *, slope: float) -> Field:
        """Return a field of waves with a standard deviation of 1.

        Parameters
        ----------
        degrees : range
            Degrees of the spherical harmonics. Four random orders of each are added up.
        slope : float
            Amplitudes are proportional to the degree to the power of -`slope`.
        """
        # A wave cos(order * lam - angle) is cos(order * lam) * cos(angle) + sin(order * lam) * sin(angle). So the field
        # is a sum of products, each of a function of space and a function of time.
        in_time = []
        in_space = []
        for degree in degrees:
            for order in self.rng.integers(1, degree + 1, 4):
                profile = legendre(degree, int(order), np.sin(self.phi)) * degree**-slope
                in_space += [profile * np.cos(order * self.lam), profile * np.sin(order * self.lam)]
                drift = np.deg2rad(self.rng.uniform(4, 14)) / 24  # 4 to 14 degrees a day eastward, in radians per hour
                angle = order * drift * self.hours + self.rng.uniform(0, 2 * np.pi)
                in_time += [np.cos(angle), np.sin(angle)]
        field = np.asarray(in_time, np.float32).T @ np.reshape(in_space, (len(in_space), -1)).astype(np.float32)
        field *= 1 / field.std()
        return field.reshape(-1, *np.broadcast_shapes(self.phi.shape, self.lam.shape))

    def noise(self, deviation: float) -> Field:
        """Return a field of independent normal noise with a standard deviation of `deviation`."""
        shape = (self.grid.n_hours, self.grid.n_lat, self.grid.n_lon)
        return self.rng.standard_normal(shape, np.float32) * np.float32(deviation)


def legendre(degree: int, order: int, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return an associated Legendre function, normalised to a variance of 1 over the sphere.

    Parameters
    ----------
    degree, order : int
        Degree, and order of at least 1 and at most `degree`.
    x : numpy.ndarray of float64
        Sines of latitudes.

    References
    ----------
    Abramowitz and Stegun, 8.5.3, with normalised coefficients.
    """
    factor = math.prod((2 * k + 1) / (2 * k) for k in range(1, order + 1))
    previous = np.zeros_like(x)  # the function of degree `order` - 1
    current = math.sqrt(factor) * np.maximum(1 - x * x, 0) ** (order / 2)  # the function of degree `order`
    for n in range(order + 1, degree + 1):
        a = math.sqrt((4 * n * n - 1) / (n * n - order * order))
        b = math.sqrt(((n - 1) ** 2 - order * order) / (4 * (n - 1) ** 2 - 1))
        previous, current = current, a * (x * current - b * previous)
    return current


def land_mask(grid: SampleGrid) -> npt.NDArray[np.bool_]:
    """Return whether each point of a grid is on land, as bool of shape (n_lat, n_lon).

    A continent is a polygon, whose corners ``continents.json`` lists as longitudes and latitudes.
    """
    lat = grid.lat[:, None]
    lon = (grid.lon[None, :] + 180) % 360 - 180
    land = np.zeros((grid.n_lat, grid.n_lon), bool)
    for corners in json.loads((resources.files(__package__) / "continents.json").read_text()).values():
        x, y = np.array(corners, float).reshape(-1, 2).T
        inside = np.zeros_like(land)
        # A point is inside if a ray from it to the east crosses an odd number of edges. No ray crosses an edge that
        # runs east or west itself.
        for x0, y0, x1, y1 in zip(x, y, np.roll(x, -1), np.roll(y, -1), strict=True):
            if y0 != y1:
                inside ^= ((y0 > lat) != (y1 > lat)) & (lon < (x1 - x0) * (lat - y0) / (y1 - y0) + x0)
        land |= inside
    return land


def weather_dataset(grid: SampleGrid) -> xr.Dataset:
    """Return the sample in memory: temperatures, winds and a land mask, with encodings that pack them into int16."""
    weather = Weather(grid, seed=20240101)
    land = land_mask(grid)
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
        # Steps of 0.01 are finer than these quantities are measured.
        offset = 273.15 if variable.attrs["units"] == "K" else 0.0
        variable.encoding = {"dtype": "int16", "scale_factor": 0.01, "add_offset": offset, "_FillValue": -32767}
    return dataset.assign(lsm=(dims[1:], land.astype(np.uint8), _attrs("Land-sea mask", "1", "land_binary_mask")))


def _attrs(long_name: str, units: str, standard_name: str) -> dict[str, str]:
    return {"long_name": long_name, "units": units, "standard_name": standard_name}


def _air_temperature(weather: Weather, land: npt.NDArray[np.bool_]) -> Field:
    """Return air temperatures in kelvin.

    Poles are cold. It is northern winter, so northern land is colder than the sea. Land has a daily cycle, and fronts
    pass.
    """
    sin_phi = np.sin(weather.phi)
    zonal = 301 - 46 * np.sin(weather.phi + np.deg2rad(9)) ** 2 - 9 * sin_phi * np.abs(sin_phi)
    ice_sheet = land & (np.abs(weather.phi - np.deg2rad(-75)) < np.deg2rad(15))
    season = zonal - 9 * land * sin_phi - 26 * ice_sheet
    local_hour = weather.hours[:, None, None] + np.rad2deg(weather.lam) / 15
    daily = np.cos((local_hour - 14) * (np.pi / 12)) * (land * np.cos(weather.phi) * 5)
    fronts = weather.waves(range(5, 24), slope=0.8) * (1 + 4 * sin_phi**2)
    return np.asarray(season + daily + fronts + weather.noise(0.05), np.float32)


def _sea_temperature(weather: Weather, land: npt.NDArray[np.bool_]) -> Field:
    """Return sea temperatures in kelvin, at least the freezing point of sea water; NaN on land."""
    zonal = 271.5 + 30 * np.maximum(np.cos(weather.phi + np.deg2rad(4)), 0) ** 2.5
    eddies = weather.waves(range(6, 30), slope=0.7) * 1.6
    field = np.maximum(zonal + eddies + weather.noise(0.005), 271.35)
    return np.where(land, np.nan, field).astype(np.float32)


def _winds(weather: Weather) -> tuple[Field, Field]:
    """Return eastward and northward winds in m/s: trade winds, westerlies, and the curl of a stream function."""
    stream = weather.waves(range(4, 22), slope=1.6)
    cos_phi = np.maximum(np.cos(weather.phi), 0.05)  # at the poles, a division by 0 would follow
    # Latitudes decrease along axis 1, from pi/2 to -pi/2, so their step is negative. Longitudes are periodic, with a
    # step of 2 * pi / n_lon: the neighbours on both sides are two steps apart.
    northward_slope = np.gradient(stream, -np.pi / (weather.grid.n_lat - 1), axis=1)
    difference = np.roll(stream, -1, axis=2) - np.roll(stream, 1, axis=2)
    eastward_slope = difference * (weather.grid.n_lon / (4 * np.pi)) / cos_phi
    factor = 6 / northward_slope.std()  # for a standard deviation of 6 m/s
    u10 = -6 * np.cos(4 * weather.phi) * cos_phi - factor * northward_slope + weather.noise(0.05)
    return u10.astype(np.float32), (factor * eastward_slope + weather.noise(0.05)).astype(np.float32)


def write_sharded(dataset: xr.Dataset, path: str) -> None:
    """Write a dataset as sharded Zarr v3 with zstd, packed as its encodings say. Replaces whatever is at `path`."""
    encoding: dict[Hashable, dict[Hashable, Any]] = {}
    for name, variable in dataset.variables.items():
        encoding[name] = {}
        if variable.dtype.kind not in "biufcmM":  # text and objects: xarray chooses how to store them
            continue
        kept = {key: value for key, value in variable.encoding.items() if key in _KEPT_ENCODING}
        encoding[name] = {**kept, "compressors": ZstdCodec(level=3)}
        if variable.ndim:
            chunk, shard = shard_layout(variable.shape)
            if name in dataset.data_vars:
                encoding[name] |= {"chunks": chunk, "shards": shard}
            else:  # coordinates are read as a whole, so their chunks are as long as shards would be
                encoding[name] |= {"chunks": shard}
    with warnings.catch_warnings():
        # zarr-python warns that the v3 specification lacks consolidated metadata. If a store lacks them, xarray warns
        # when it opens the store.
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        dataset.drop_encoding().to_zarr(path, mode="w", zarr_format=3, consolidated=True, encoding=encoding)


def shard_layout(shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of inner chunks and of shards for an array with at least one axis.

    A chunk extends over the last two axes, with at most `CHUNK_ELEMENTS` elements. A shard has at most `_SHARD_CHUNKS`
    chunks. It extends over the last axes first.
    """
    chunk = [1] * len(shape)
    n_elements_left = CHUNK_ELEMENTS
    for axis in range(len(shape) - 1, max(len(shape) - 3, -1), -1):
        chunk[axis] = max(1, min(shape[axis], n_elements_left))
        n_elements_left = max(1, n_elements_left // chunk[axis])
    shard = list(chunk)
    n_chunks_left = _SHARD_CHUNKS
    for axis in range(len(shape) - 1, -1, -1):
        n_chunks = max(1, min(-(-shape[axis] // chunk[axis]), n_chunks_left))
        shard[axis] *= n_chunks
        n_chunks_left //= n_chunks
    return tuple(chunk), tuple(shard)
