"""What the oldest supported libraries lack, or do wrongly: what the tests that need it ask."""

import pytest
import xarray as xr
import zarr


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


ZARR, XARRAY = _numbers(zarr.__version__), _numbers(xr.__version__)

FILTERS_TAKE_ANY_ELEMENTS = ZARR >= (3, 3)
"""Before, filters of numcodecs get big-endian bytes as native ones, and transposed elements in another order."""
ENCODES_COMPLEX_FILL_VALUES = XARRAY >= (2026, 4)

needs_rectilinear_grids = pytest.mark.skipif(ZARR < (3, 2), reason="zarr-python has them from 3.2 on")
needs_selections_of_selections = pytest.mark.skipif(
    XARRAY < (2026, 2), reason="xarray selects by negative numbers in what it has reversed from 2026.2 on"
)
needs_lazy_scalar_coordinates = pytest.mark.skipif(
    XARRAY < (2025, 12), reason="xarray's arithmetic does not load them from 2025.12 on"
)
