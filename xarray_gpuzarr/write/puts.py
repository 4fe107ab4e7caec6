"""`put`: store an object, in one request where the client allows it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from zarr.abc.store import Store
from zarr.buffer import cpu
from zarr.storage import ObjectStore

_PART_NBYTES = 5 * 1024 * 1024
"""By default, obstore sends longer objects in parts, which takes three round trips: to begin, to send and to join."""
_MAX_SINGLE_NBYTES = 16 * 1024 * 1024
"""Longest object that is sent in one request. Parts of longer ones share several connections, which is sooner."""


async def put(store: Store, key: str, data: npt.NDArray[Any]) -> None:
    """Store an object: with obstore in one request if it has at most 16 MiB, else as zarr-python does.

    Parameters
    ----------
    store : zarr.abc.store.Store
        A store that may be written to.
    key : str
        Key of the object in the store.
    data : numpy.ndarray of uint8, shape (n,)
        The object. It may be sent without a copy.

    Raises
    ------
    Exception
        What the store raises.
    """
    comes_in_parts = data.nbytes > _PART_NBYTES
    is_sooner_whole = data.nbytes <= _MAX_SINGLE_NBYTES
    # Subclasses may have a `set` of their own, and that of a read-only store raises an error.
    if comes_in_parts and is_sooner_whole and type(store) is ObjectStore and not store.read_only:
        import obstore  # noqa: PLC0415  # an optional dependency

        await obstore.put_async(store.store, key, memoryview(data), use_multipart=False)
    else:
        await store.set(key, cpu.Buffer.from_array_like(data))
