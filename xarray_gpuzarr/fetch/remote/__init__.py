"""Any zarr store that is neither a directory of local files nor memory: requests on zarr's own event loop."""

from xarray_gpuzarr.fetch.remote.clients import server_of
from xarray_gpuzarr.fetch.remote.store_source import StoreSource, requests_at_once
from xarray_gpuzarr.fetch.remote.under_way import Reply, UnderWay, begin_on_loop, run_on_loop

__all__ = ["Reply", "StoreSource", "UnderWay", "begin_on_loop", "requests_at_once", "run_on_loop", "server_of"]
