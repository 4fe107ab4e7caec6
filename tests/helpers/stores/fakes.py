"""Fakes of the outside world: zarr stores that record, fail, or lie; and raw access to what a store holds."""

from collections.abc import Callable
from typing import Any

from zarr.abc.store import ByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import cpu
from zarr.core.sync import sync
from zarr.storage import MemoryStore, WrapperStore

METADATA_NAMES = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")

Request = tuple[str, ByteRequest | None]


def take(store: Store, key: str) -> bytes:
    """Return the bytes of one object."""
    return sync(store.get(key, cpu.buffer_prototype)).to_bytes()


def put(store: Store, key: str, data: bytes) -> None:
    """Replace the bytes of one object."""
    sync(store.set(key, cpu.Buffer.from_bytes(data)))


def drop(store: Store, key: str) -> None:
    """Delete one object."""
    sync(store.delete(key))


def is_data(key: str) -> bool:
    return not key.endswith(METADATA_NAMES)


class AskedStore(MemoryStore):
    """One whose objects are asked for, as those of a server are, and may be others the next time."""


class Wrapper(WrapperStore):
    """Opened for reading, it wraps a store that cannot be written: so do those of zarr-python from 3.1.6 on."""

    def with_read_only(self, read_only: bool = False) -> "Wrapper":
        return self._with_store(self._store.with_read_only(read_only))

    def _with_store(self, store: Store) -> "Wrapper":
        return type(self)(store)


class RecordingStore(Wrapper):
    """Remembers every request for chunk bytes."""

    def __init__(self, store: Store, requests: list[Request] | None = None) -> None:
        super().__init__(store)
        self.requests: list[Request] = [] if requests is None else requests

    def _with_store(self, store: Store) -> "RecordingStore":
        return type(self)(store, self.requests)

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        if is_data(key):
            self.requests.append((key, byte_range))
        return await super().get(key, prototype, byte_range)

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        """(key, first byte, end) of every bounded request, sorted."""
        bounded = [(key, r) for key, r in self.requests if isinstance(r, RangeByteRequest)]
        return sorted((key, r.start, r.end) for key, r in bounded)

    @property
    def opened(self) -> list[str]:
        """Keys of the shards whose index was asked for, alone or with everything else."""
        return [key for key, wanted in self.requests if wanted is None or isinstance(wanted, SuffixByteRequest)]


class ScriptedStore(Wrapper):
    """Answers requests for chunk bytes as a script says; the script may raise."""

    def __init__(self, store: Store, script: Callable[[str, ByteRequest | None, Any], Any]) -> None:
        super().__init__(store)
        self.script = script

    def _with_store(self, store: Store) -> "ScriptedStore":
        return type(self)(store, self.script)

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        answer = await super().get(key, prototype, byte_range)
        return self.script(key, byte_range, answer) if is_data(key) else answer


class FlakyStore(Wrapper):
    """Every third request for chunk bytes fails, in each process that it is unpickled in."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._n_requests = 0

    async def get(self, key: str, prototype: Any, byte_range: ByteRequest | None = None) -> Any:
        if is_data(key):
            self._n_requests += 1
            if self._n_requests % 3 == 0:
                raise TimeoutError("the network was down")
        return await super().get(key, prototype, byte_range)


class FailAfter:
    """A script: the first `n_good` requests are answered, the others raise `error` until it is healed."""

    def __init__(self, error: Exception, n_good: int = 0) -> None:
        self.error = error
        self.n_good = n_good
        self.healed = False

    def __call__(self, key: str, byte_range: ByteRequest | None, answer: Any) -> Any:
        self.n_good -= 1
        if self.n_good < 0 and not self.healed:
            raise self.error
        return answer
