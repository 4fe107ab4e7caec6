"""A store that answers in rounds: a request that had to wait for an earlier answer is of a later round."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from zarr.abc.store import ByteRequest, Store

from helpers.stores.fakes import Wrapper

_SILENCE_S = 0.05
"""So long after the last request all are answered; no thread takes as long to make its next one."""


class RoundStore(Wrapper):
    """Counts rounds, and requests by their keys.

    Parameters
    ----------
    store : Store
    rounds : list, optional
        One list of requests for each round.
    """

    def __init__(self, store: Store, rounds: list[list[str]] | None = None) -> None:
        super().__init__(store)
        self.rounds: list[list[str]] = [] if rounds is None else rounds
        self._answer: asyncio.Event | None = None

    def _with_store(self, store: Store) -> "RoundStore":
        return type(self)(store, self.rounds)

    @property
    def asked(self) -> list[str]:
        """Every request of every round."""
        return [key for keys in self.rounds for key in keys]

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        await self._turn(key)
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        await self._turn(f"{prefix}/")
        async for name in super().list_dir(prefix):
            yield name

    async def _turn(self, request: str) -> None:
        if self._answer is None:
            self._answer = asyncio.Event()
            self.rounds.append([])
            asyncio.get_running_loop().create_task(self._close(self._answer))
        self.rounds[-1].append(request)
        await self._answer.wait()

    async def _close(self, answer: asyncio.Event) -> None:
        n_asked = 0
        while n_asked < len(self.rounds[-1]):
            n_asked = len(self.rounds[-1])
            await asyncio.sleep(_SILENCE_S)
        self._answer = None
        answer.set()
