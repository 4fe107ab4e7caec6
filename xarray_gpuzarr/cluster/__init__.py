"""Workers of a dask cluster: `register` prepares them, and `stats` returns what they have read.

distributed is imported only when `register` is called or `GpuZarrPlugin` is looked up.
"""

from typing import TYPE_CHECKING, Any

from xarray_gpuzarr.cluster.registration import register
from xarray_gpuzarr.cluster.worker_stats import Stats, stats

if TYPE_CHECKING:
    from xarray_gpuzarr.cluster.worker import GpuZarrPlugin

__all__ = ["GpuZarrPlugin", "Stats", "register", "stats"]


def __getattr__(name: str) -> Any:
    if name == "GpuZarrPlugin":
        from xarray_gpuzarr.cluster.worker import GpuZarrPlugin  # noqa: PLC0415  # imports distributed

        return GpuZarrPlugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
