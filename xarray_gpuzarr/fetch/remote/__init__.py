"""Any zarr store that is neither a directory of local files nor memory: requests on zarr's own event loop."""
