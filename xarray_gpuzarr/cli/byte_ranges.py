"""`sends_whole_objects`: whether a server gives no byte ranges, and answers a request for a part with a whole object.

fsspec's HTTP file system returns what such a server sends, and zarr-python takes it for the part that it asked for. So
the checksum of a shard's index is wrong. This package cuts out what was asked for (`fetch.remote.answers`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import zarr
from zarr.abc.store import RangeByteRequest
from zarr.buffer import cpu

from xarray_gpuzarr.fetch.remote.under_way import run_on_loop

_FIRST_BYTE = RangeByteRequest(0, 1)


def sends_whole_objects(array: zarr.Array[Any]) -> bool:
    """Whether the store of an array answers a request for the first byte of an object with more bytes.

    One request is made, for the shard at the origin, or the chunk if there are no shards. If there is no such object,
    or the request fails, the answer is unknown, and False is returned.
    """
    name = array.metadata.encode_chunk_key((0,) * array.ndim)
    key = f"{array.path}/{name}".lstrip("/")
    with suppress(Exception):  # stores raise anything, and `bench` has already printed why its reads failed
        answer = run_on_loop(
            str(array.store_path), lambda: array.store.get(key, cpu.buffer_prototype, byte_range=_FIRST_BYTE)
        )
        return answer is not None and len(answer) > 1
    return False
