"""dask arrays of lazy arrays: one task per shard, what tasks are called, what they need, and into what they read.

`ShardVariable` is what `backend` hands to xarray; `find_block_reader` finds the stored array in a dask graph again.
"""

from xarray_gpuzarr.tasks.chunkmanager import ShardVariable, find_block_reader, find_block_readers

__all__ = ["ShardVariable", "find_block_reader", "find_block_readers"]
