"""`ShardingArguments`: the arguments of `to_zarr` that decide about chunks, shards and codecs."""

from __future__ import annotations

from typing import Any

from xarray_gpuzarr.backend.accessor.encodings import Size
from xarray_gpuzarr.process.records import record


@record
class ShardingArguments:
    """Arguments of `DatasetAccessor.to_zarr`, as the user has given them."""

    chunks: Size
    shards: Size | None
    compressors: Any
    rechunk: bool
    """Whether dask chunks that end inside shards are changed; if not, they are an error."""
