"""A store that answers in rounds: a request that had to wait for an earlier answer is of a later round."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from zarr.abc.store import ByteRequest, Store

from helpers.stores.fakes import Wrapper

_TASKS = Path("/proc/self/task")  # Linux
_SILENCE_S = 0.1
"""So long after the last request all are answered; no thread takes as long to make its next one."""
_LOOK_S = 0.001
"""So often somebody looks whether any thread still does something: if none does, none makes a request."""
_NOTHING_S = 0.0001
"""Threads that worked for less did nothing: the clocks are not read at one moment."""
_N_LOOKS = 3
"""So many times in a row nothing happened: a thread that waits for Python's lock has had it in the meantime."""


class Rounds(list[list[str]]):
    """One list of requests for each round."""

    over = False
    """Whether requests are answered at once from now on, as part of the last round."""


class RoundStore(Wrapper):
    """Counts rounds, and requests by their keys."""

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
        n_asked, worked_s, quiet, since = 0, 0.0, 0, time.monotonic()
        while quiet < _N_LOOKS and time.monotonic() - since < _SILENCE_S:
            await asyncio.sleep(_LOOK_S)
            quiet = 0 if _anybody_works() or _others_worked_s() - worked_s > _NOTHING_S else quiet + 1
            worked_s = _others_worked_s()
            if len(self.rounds[-1]) > n_asked:
                n_asked, quiet, since = len(self.rounds[-1]), 0, time.monotonic()
        self._answer = None
        answer.set()


def _others_worked_s() -> float:
    """Return how long threads other than this one have worked so far."""
    return time.process_time() - time.thread_time()


def _anybody_works() -> bool:
    """Say whether the running event loop has more to do, or another thread does something or waits for a core."""
    if asyncio.get_running_loop()._ready:  # type: ignore[attr-defined]  # asyncio's own
        return True
    if not _TASKS.exists():
        return True  # only silence tells
    own = str(threading.get_native_id())
    return any(_state(task) in "RD" for task in _TASKS.iterdir() if task.name != own)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"  # it has ended
