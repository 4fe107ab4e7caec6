"""Protocols of sources of bytes, and the small values that they take and return."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol
from uuid import uuid4

from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore, WrapperStore, ZipStore

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.plan.byte_range import ByteRange, CoalesceRule
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.codecs import NO_LIMIT

Allocate = Callable[[int], memoryview]
"""Given a length in bytes, return writable host memory of that length."""

Pending = Callable[[Allocate], list[memoryview | None]]
"""Finish requests that were started; None for each whose object does not exist.

The bytes lie in the memory that `Allocate` returned, or in memory of the source's own if it has them already; it is
called once at most.
"""


class AtHand:
    """A `Pending` whose bytes are here already: nothing is gained by starting it before they are needed."""

    __slots__ = ("_data",)

    def __init__(self, data: list[memoryview | None]) -> None:
        self._data = data

    def __call__(self, _allocate: Allocate) -> list[memoryview | None]:
        """Return the bytes."""
        return self._data


Request = tuple[str, ByteRange]
"""Key of an object and which of its bytes."""

Storage = Literal["auto", "posix", "gds"]
"""How local files reach a GPU: through host memory (``posix``), or straight into device memory with GPUDirect Storage
(``gds``). ``auto`` is ``gds`` where that was measured to be quicker. Other stores, and reads on the host, know one way
only."""

Version = Hashable
"""What tells one version of an object from any other, such as its ETag and length; None if the store does not say."""

UNTAGGED: Version = "without a tag"
"""Asked for where the index bore none: answers must bear none, too."""
ANOTHER: Version = "of another tag"
"""Version of an answer that says only that it is not of the version that was asked for."""


_FSSPEC_LOCAL = "fsspec.implementations.local.LocalFileSystem"
SETTLED_S = 2.0
"""Age from which the times of an object tell a later change: the coarsest clock in use (that of FAT) ticks in 2 s."""


def store_token(store: Store) -> str:
    """Return what tells a store from others, as text: a digest of all that it is pickled with.

    The text of stores on fsspec shows neither their options nor their server.
    """
    if isinstance(store, LocalStore | MemoryStore | ZipStore):
        return repr(store)
    try:
        return hashlib.sha256(pickle.dumps(store)).hexdigest()
    except Exception:  # noqa: BLE001  # whatever the client raises
        return uuid4().hex  # equal to nothing, not even to that of the same store


def wrapped(store: WrapperStore[Any]) -> Store:
    """Return the store that one of zarr's wrappers wraps."""
    inner: Store = store._store  # noqa: SLF001  # wrappers have no public name for it
    return inner


def unwrapped(store: Store) -> Store:
    """Return the store below zarr's wrappers."""
    while isinstance(store, WrapperStore):
        store = wrapped(store)
    return store


def local_folder(store: Store) -> str | None:
    """Return the directory of a store of local files, whatever opens it; None of other stores."""
    if isinstance(store, LocalStore):
        root = getattr(store, "root", None)  # stand-ins of tests have none
        return None if root is None else os.fspath(root)
    if isinstance(store, FsspecStore):
        fs = type(getattr(store.fs, "sync_fs", store.fs))  # zarr wraps file systems that are not asynchronous
        return store.path if f"{fs.__module__}.{fs.__name__}" == _FSSPEC_LOCAL else None
    if isinstance(store, ObjectStore) and type(store.store).__name__ == "LocalStore":
        return os.fspath(getattr(store.store, "prefix", None) or "/")
    return None


def is_obstore_memory(client: Any) -> bool:
    """Say whether a client of obstore keeps objects in memory; zarr takes no classes derived from obstore's."""
    return type(client).__name__ == "MemoryStore"


def is_settled(age_s: float) -> bool:
    """Say whether an object is so old that any later change will give it other times."""
    return age_s > SETTLED_S


@record
class Edge:
    """The first or last bytes of an object, or all of it."""

    data: memoryview
    object_nbytes: int | None
    """Length of the whole object, where the source knows it."""
    version: Version = None
    """Version of the object that the bytes come from."""
    settled: bool = False
    """Whether any later change of the object will give it another version: not just written, by a coarse clock."""


PendingEdge = Callable[[], Edge | None]
PendingCheck = Callable[[], None]


class LocalFile(NamedTuple):
    """An object that is a local file."""

    path: str
    version: Any
    """As `fetch.local` tells it, a tuple of int; None: any."""


class ChunkVersions(Protocol):
    """The versions of the objects of one read."""

    @property
    def identity(self) -> Hashable:
        """What is read from, equal in every read of it."""

    def settled_version(self, key: str) -> Version:
        """Return the version of an object of which decoded chunks may be kept; None if a later change may not show.

        Makes no request: of a shard it is the one that its index was read from, see `start_check`.
        """

    def start_check(self, places: Sequence[tuple[str, int]]) -> PendingCheck:
        """Start requests for the versions of shards.

        `places` holds the key of each shard with the offset of a byte that the shard has. The returned function waits
        for the answers, and raises `ObjectChangedError` if a shard has another version than the one its index was read
        from.
        """


class ByteSource(Protocol):
    """Where a decoder gets the bytes of one array's objects from."""

    @property
    def rule(self) -> CoalesceRule:
        """Which neighbouring chunks one request should fetch."""

    @property
    def lookahead(self) -> int:
        """Requests worth starting, or reading ahead, before their bytes are needed."""

    @property
    def is_remote(self) -> bool:
        """Whether what is started is under way, and a round trip is worth saving."""

    @property
    def is_local(self) -> bool:
        """Whether objects are local files, which may be read past the source: see `local_file`."""

    @property
    def chunk_versions(self) -> ChunkVersions | None:
        """What knows the versions of objects of which decoded chunks may be kept; None if none may."""

    @property
    def storage(self) -> Storage:
        """How bytes should reach a GPU; ``posix`` where the objects are no local files."""

    def local_file(self, key: str) -> LocalFile:
        """Return where an object that is a local file lies, and of which version it must be."""

    @property
    def cuts_objects(self) -> bool:
        """Whether long raw chunks may be requested in pieces, all of which are then of one version."""

    def prefetch(self, key: str, byte_range: ByteRange) -> bool:
        """Let the system read ahead what will be wanted soon; return whether it had to."""

    def start(self, requests: Sequence[Request]) -> Pending:
        """Start reading byte ranges of one object, or whole objects: one at least.

        Finishing raises `StoreReadError` if the store failed or returned another number of bytes, and
        `PiecesDifferError` if parts of an object that is a chunk cannot be told to be of one version.
        """


class ObjectSource(ByteSource, Protocol):
    """A store's own source, which knows which version of an object it reads."""

    @property
    def name(self) -> str:
        """The store's path or URL, as errors show it."""

    @property
    def identity(self) -> Hashable:
        """What the source reads from, equal in every copy of it; None if that cannot be told."""

    def __dask_tokenize__(self) -> tuple[str, ...]:
        """Return what tells the source from others, as text: dask takes what is in it as it is."""

    def for_one_read(
        self, *, ask_again: bool = False, expected_nbytes: int | None = None, most_nbytes: int = NO_LIMIT
    ) -> ObjectSource:
        """Return this source as one read is to use it.

        With `ask_again` it asks again, many times, while answers are of another version than the one wanted.
        `expected_nbytes` is the length of one request, where that is known. No memory is taken for chunks of more than
        `most_nbytes`, as far as the store tells the lengths of objects.
        """

    def local_file(self, key: str, version: Version = None) -> LocalFile:
        """Return where an object that is a local file lies, and the version that it must be of."""

    def settled_version(self, key: str) -> Version:
        """Return the version that an object has now; None if it was changed lately, or only a server knows."""

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:
        """Start reading byte ranges of one object, or whole objects, as they are now; no store is asked for older ones.

        Finishing raises `ObjectChangedError` if an object is not of `version`, or is gone; `StoreReadError` if the
        store failed or returned another number of bytes; `ObjectTooLongError` if an object that is a chunk is longer
        than it may be.
        """

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Start reading the first or last `nbytes` bytes of an object; a shorter one may come without its bytes."""

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:
        """Start reading a whole object; one that is longer may come without its bytes."""

    def give_up(self) -> None:
        """Give up all that was started and has not been finished; only for what `for_one_read` returned."""


class RemoteSource(ObjectSource, Protocol):
    """An `ObjectSource` whose objects may be requested in pieces, many at a time."""

    def start_range(self, key: str, byte_range: ByteRange) -> PendingEdge:
        """Start reading a byte range of an object, whichever version of it the store has."""


class SourceWithoutFiles:
    """What sources have in common whose objects are no local files, and start early instead of being read ahead."""

    __slots__ = ()

    is_local = False
    storage: Storage = "posix"
    chunk_versions: ChunkVersions | None = None

    def local_file(self, key: str, version: Version = None) -> LocalFile:
        """Raise: there is none."""
        raise ValueError(self, key, version)

    def settled_version(self, key: str) -> Version:  # noqa: ARG002
        """Return None."""
        return None

    def prefetch(self, key: str, byte_range: ByteRange) -> bool:  # noqa: ARG002
        """Do nothing."""
        return False


_REST = 7
"""Requests that are not looked at after one whose bytes were in the page cache already: looking costs 5 us."""


class ReadAhead:
    """Prefetches the queued requests of one read. Safe to call from several threads."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._rest = 1  # the first request is carried out at once

    def __call__(self, requests: Iterable[Request]) -> None:
        """Let the system read ahead for requests that have just been queued."""
        for request in requests:
            if self._rest:
                self._rest -= 1
            elif not self._source.prefetch(*request):
                self._rest = _REST


_DETAILS = re.compile("\n+Debug source:")
"""Where obstore begins to repeat itself in Rust's words."""


class ObjectChangedError(StoreReadError):
    """An object is not the one that its index was read from."""

    key = ""
    """Store key of the object, if the store is not local files."""
    was: Version = None
    now: Version = None


class PiecesDifferError(StoreReadError):
    """The pieces of an object are not of one version, or cannot be told to be: it has to come in one answer."""

    bears_no_version = False
    """Whether the store does not tell the versions of its objects."""


class ObjectTooLongError(Exception):
    """An object, `nbytes` long, is too long for a chunk; `Snapshot` says of which array."""

    def __init__(self, key: str, nbytes: int) -> None:
        super().__init__(key, nbytes)
        self.key, self.nbytes = key, nbytes


def failed(name: str, action: str, err: Exception) -> StoreReadError:
    """Return the error of a store that failed."""
    return StoreReadError(
        f"cannot read {name}",
        tried=action,
        found=f"{type(err).__name__}: {_DETAILS.split(str(err))[0].rstrip() or 'no details given'}",
        do="check that the object exists, that you may read it, and that the store can be reached; then read again",
    )


def short(name: str, offset: int, nbytes: int, got: int) -> StoreReadError:
    """Return the error of an object that ends too soon."""
    return StoreReadError(
        f"{name} is shorter than its shard index or its size said",
        tried=f"{nbytes} bytes at {offset}",
        found=f"{got} bytes",
        do="the object is truncated or was replaced while it was read: open the store again, or restore the object",
    )


def pieces_differ(name: str, found: str, *, bears_no_version: bool = False) -> PiecesDifferError:
    """Return the error of an object whose pieces do not fit each other."""
    err = PiecesDifferError(
        f"{name} cannot be read in pieces",
        tried="several requests for parts of it, which have to be of one version",
        found=found,
        do="read again once nothing writes to it",
    )
    err.bears_no_version = bears_no_version
    return err


def changed(name: str, was: Version, now: Version, key: str = "") -> ObjectChangedError:
    """Return the error of an object that was replaced while it was read."""
    err = ObjectChangedError(
        f"{name} was replaced while it was read",
        tried=f"version {was}, which its index was read from",
        found="no object" if now is None else f"version {now}",
        do="read again once nothing writes to it",
    )
    err.key, err.was, err.now = key, was, now
    return err
