"""A plugin of pytest: what xarray's own tests read with ``engine="zarr"`` is read with the engine of this package.

Every store counts as slow, so that local files and memory are opened as an object store is.
"""

import xarray.backends.zarr  # which registers the engine that is replaced
from xarray.backends.common import BACKEND_ENTRYPOINTS

from xarray_gpuzarr.backend import GpuZarrBackendEntrypoint, datasets


class Engine(GpuZarrBackendEntrypoint):
    """The engine, on the host; it guesses as xarray's does."""

    guess_can_open = xarray.backends.zarr.ZarrBackendEntrypoint.guess_can_open

    def open_dataset(self, *args: object, **keywords: object) -> object:
        """Open on the host."""
        return super().open_dataset(*args, device="host", **keywords)

    def open_groups_as_dict(self, *args: object, **keywords: object) -> object:
        """Likewise."""
        return super().open_groups_as_dict(*args, device="host", **keywords)


BACKEND_ENTRYPOINTS["zarr"] = (BACKEND_ENTRYPOINTS["zarr"][0], Engine)
datasets.takes_long = bool
