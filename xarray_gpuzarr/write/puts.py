"""`put`: store an object, in one request where the client allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from zarr.abc.store import Store
from zarr.buffer import cpu
from zarr.storage import ObjectStore

_MOST_NBYTES = 16 * 1024 * 1024
"""Bytes of an object that obstore sends in one request rather than in parts. Parts take three round trips: to begin,
to send, and to join them; they are worth it where a connection takes several times as long for all of it."""


async def put(store: Store, key: str, data: npt.NDArray[Any]) -> None:
    """Store an object, in one request if obstore sends it and it is short enough, else as zarr-python does.

    Parameters
    ----------
    store : zarr.abc.store.Store
        A store that may be written to.
    key : str
        Key of the object in the store.
    data : numpy.ndarray of uint8, shape (n,)
        The object. It may be sent from where it lies.

    Raises
    ------
    Exception
        What the store raises.
    """
    assert data.dtype == np.uint8
    if type(store) is ObjectStore and data.nbytes <= _MOST_NBYTES and not store.read_only:
        import obstore  # noqa: PLC0415  # not everyone has it

        await obstore.put_async(store.store, key, memoryview(data), use_multipart=False)
    else:
        await store.set(key, cpu.Buffer.from_array_like(data))
