"""A store that answers as late as one behind a network: after a round trip, and no more than so many bytes a second."""

from __future__ import annotations

import asyncio
from typing import Any

from zarr.abc.store import ByteRequest, Store
from zarr.storage import WrapperStore

_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class SlowStore(WrapperStore[Store]):
    """Delays requests for chunk bytes; requests share the bandwidth, one after another.

    Parameters
    ----------
    store : Store
    latency_s : float
        Seconds before the first byte, of each request.
    bytes_per_s : float
        Of all requests of one process together.
    """

    def __init__(self, store: Store, *, latency_s: float, bytes_per_s: float) -> None:
        super().__init__(store)
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def _with_store(self, store: Store) -> SlowStore:
        return type(self)(store, latency_s=self._latency_s, bytes_per_s=self._bytes_per_s)

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        """Answer late."""
        answer = await super().get(key, prototype, byte_range)
        if answer is not None and not key.endswith(_METADATA):
            now = asyncio.get_running_loop().time()
            start = max(now + self._latency_s, self._free_at)
            self._free_at = start + len(answer) / self._bytes_per_s
            await asyncio.sleep(self._free_at - now)
        return answer
