"""Synthetic data that compresses like measured data: smooth structure plus noise, from a fixed seed.

Knows no Zarr. Called by `workloads` when a store is not in the cache yet.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

FieldName = Literal["series", "volume", "noise", "era5"]

_SEED = 20261120


def make_field(name: FieldName, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the values of one array.

    Parameters
    ----------
    name : "series", "volume", "noise" or "era5"
    shape : tuple of int

    Returns
    -------
    numpy.ndarray, C order
        uint16 for "volume", float32 for the others.
    """
    rng = np.random.default_rng(_SEED)
    match name:
        case "series":
            return _series(shape, rng)
        case "volume":
            return _volume(shape, rng)
        case "noise":
            return rng.standard_normal(shape, dtype=np.float32)
        case "era5":
            return _era5(shape, rng)


def _series(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return a 1-D record in steps of 1/32, as an instrument gives it: zstd shrinks it about five times."""
    (n,) = shape
    knots = rng.standard_normal(n // 2000 + 2).cumsum() * 0.5
    out = np.empty(n, np.float32)
    for start in range(0, n, 1 << 20):
        position = np.arange(start, min(start + (1 << 20), n))
        value = np.interp(position / 2000, np.arange(len(knots)), knots)
        value += 0.065 * rng.standard_normal(len(value))
        out[position] = 280 + np.round(value * 32) / 32
    return out


def _volume(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.uint16]:
    """Return a 3-D image as a light-sheet microscope gives it: dark background, bright bodies, camera noise."""
    bodies = _smooth(shape, 24, rng)
    np.maximum(bodies - 0.3, 0, out=bodies)
    bodies *= 900 + 200 * _smooth(shape, 6, rng)
    bodies += 100
    noise = rng.standard_normal(shape, dtype=np.float32)
    noise *= 0.35 * np.sqrt(bodies)
    bodies += noise
    return np.clip(bodies, 0, 65535).astype(np.uint16)


def _era5(shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return temperature (time, latitude, longitude) in K, about 4 % NaN: a mask that stays and gaps that do not."""
    field = _smooth(shape, 40, rng)
    field *= 5
    latitude = np.linspace(90, -90, shape[1], dtype=np.float32)
    field += (288 - 40 * np.sin(np.deg2rad(latitude)) ** 2)[None, :, None]
    field += 0.05 * rng.standard_normal(shape, dtype=np.float32)
    mask = _smooth(shape[1:], 20, rng)
    field[:, mask > np.quantile(mask, 0.965)] = np.nan
    field[rng.random(shape, dtype=np.float32) < 0.005] = np.nan
    return field


def _smooth(shape: tuple[int, ...], scale: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return standard normal values on a grid `scale` elements wide, interpolated linearly between."""
    coarse = tuple(n // scale + 2 for n in shape)
    field = rng.standard_normal(coarse, dtype=np.float32)
    for axis, n in enumerate(shape):
        field = _stretched(field, axis, n)
    return field


def _stretched(field: npt.NDArray[np.float32], axis: int, n: int) -> npt.NDArray[np.float32]:
    position = np.linspace(0, field.shape[axis] - 1, n, endpoint=False, dtype=np.float32)
    low = position.astype(np.intp)
    weight = (position - low).reshape([-1 if a == axis else 1 for a in range(field.ndim)])
    below, above = field.take(low, axis), field.take(low + 1, axis)
    above -= below
    above *= weight
    below += above
    return below
