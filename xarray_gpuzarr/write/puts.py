"""`put`: store an object, in one request where the client allows it."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from zarr.abc.store import Store
from zarr.buffer import cpu
from zarr.storage import ObjectStore

_PART_NBYTES, _MOST_NBYTES = 5 * 1024 * 1024, 16 * 1024 * 1024
"""Longer objects than the first are sent in parts by obstore, if it is not told otherwise: three round trips, to begin,
to send, and to join them. Longer ones than the second are worth that: a connection takes long for all of one."""


async def put(store: Store, key: str, data: npt.NDArray[Any]) -> None:
    """Store an object, in one request if obstore sends it and it has at most 16 MiB, else as zarr-python does.

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
    is_sent_whole = _PART_NBYTES < data.nbytes <= _MOST_NBYTES
    if is_sent_whole and type(store) is ObjectStore and not store.read_only:
        import obstore  # noqa: PLC0415  # not everyone has it

        await obstore.put_async(store.store, key, memoryview(data), use_multipart=False)
    else:
        await store.set(key, cpu.Buffer.from_array_like(data))
