"""`RoundStore`: a slow store that counts the rounds in which it is asked."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from zarr.abc.store import ByteRequest, Store

from helpers.stores.fakes import Wrapper

_SILENCE_S = 0.1
"""A round ends this long after its last request: no thread takes as long to make the next one."""


class Rounds(list[list[str]]):
    """Keys of the requests of each round; those of listings end in a slash."""

    over = False
    """Whether requests are answered at once from now on, as part of the last round."""


class RoundStore(Wrapper):
    """Answers the requests of a round together: those that nobody makes before another one is answered are the next."""

    def __init__(self, store: Store, rounds: Rounds | None = None) -> None:
        super().__init__(store)
        self.rounds = Rounds() if rounds is None else rounds
        self._answer: asyncio.Event | None = None

    def _with_store(self, store: Store) -> "RoundStore":
        return type(self)(store, self.rounds)

    @property
    def asked(self) -> list[str]:
        """Every request of every round."""
        return [key for keys in self.rounds for key in keys]

    def assert_rounds(self, least: int, most: int) -> None:
        """Compare how many rounds there were, in which each object was asked for once; from now on, there are none."""
        assert least <= len(self.rounds) <= most, self.rounds
        assert max(Counter(self.asked).values()) == 1
        self.answer_at_once()

    def answer_at_once(self) -> None:
        """Make no more rounds."""
        self.rounds.append([])
        self.rounds.over = True

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        await self._turn(key)
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        await self._turn(f"{prefix}/")
        async for name in super().list_dir(prefix):
            yield name

    async def _turn(self, request: str) -> None:
        if self.rounds.over:
            self.rounds[-1].append(request)
            return
        if self._answer is None:
            self._answer = asyncio.Event()
            self.rounds.append([])
            asyncio.get_running_loop().create_task(self._close(self._answer))
        self.rounds[-1].append(request)
        await self._answer.wait()

    async def _close(self, answer: asyncio.Event) -> None:
        n_asked = 0
        while len(self.rounds[-1]) > n_asked:
            n_asked = len(self.rounds[-1])
            await asyncio.sleep(_SILENCE_S)
        self._answer = None
        answer.set()
