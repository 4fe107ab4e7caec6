"""Protocols of the sources that fetch encoded bytes, the values that they take and return, and code that they share.

`SourceWithoutFiles` is the base of sources whose objects are not local files. `ReadAhead` prefetches local files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from xarray_gpuzarr.plan.byte_range import ByteRange, CoalesceRule
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.codecs import NO_LIMIT

Allocate = Callable[[int], memoryview]
"""Given a length in bytes, return writable host memory of that length."""

Pending = Callable[[Allocate], list[memoryview | None]]
"""Wait for requests that were started, and return their bytes; None for each whose object does not exist.

The bytes lie in memory that `Allocate` returns, or in the source's own memory if they are there already. `Allocate` is
called at most once.
"""


class FetchedBytes:
    """A `Pending` whose bytes are in memory already. Decoders tell it from others: to start it early saves no time."""

    __slots__ = ("_data",)

    def __init__(self, data: list[memoryview | None]) -> None:
        self._data = data

    def __call__(self, _allocate: Allocate) -> list[memoryview | None]:
        """Return the bytes."""
        return self._data


Request = tuple[str, ByteRange]
"""Key of an object, and the byte range that is requested of it."""

Storage = Literal["auto", "posix", "gds"]
"""How local files reach a GPU: through host memory (``posix``), or straight into device memory with GPUDirect Storage
(``gds``). ``auto`` is ``gds`` where it was measured to be faster. It has no effect on other stores or host reads."""

Version = Hashable
"""Value that differs between two versions of an object, such as its ETag and length; None if the store has none."""

UNTAGGED: Version = "without a tag"
"""Version that is requested if the index came without a version. Answers must then have none either."""
OTHER_VERSION: Version = "of another tag"
"""Version of an answer that is known only to differ from the requested one."""


SETTLED_S = 2.0
"""Age of an object, in seconds, after which any change gives it another modification time. The coarsest clock in use,
that of FAT, has a resolution of 2 s."""


def is_settled(age_s: float) -> bool:
    """Whether an object is so old that any later change will give it another modification time."""
    return age_s > SETTLED_S


@record
class Edge:
    """Bytes of an object, in most cases its first or last bytes, or all of them."""

    data: memoryview
    """The bytes. They may be left out if the object is shorter than the requested bytes or longer than may be read."""
    object_nbytes: int | None
    """Length of the whole object in bytes; None if the source does not know it."""
    version: Version = None
    """Version of the object that the bytes come from."""
    settled: bool = False
    """Whether any later change of the object will give it another version. False if it was written so recently that the
    clock of its store may not show a change."""


PendingEdge = Callable[[], Edge | None]
"""Wait for the request of an `Edge`, and return it; None if the object does not exist."""
PendingCheck = Callable[[], None]
"""Wait for the requests of `ChunkVersions.start_check`."""


class LocalFile(NamedTuple):
    """An object that is a local file."""

    path: str
    version: Any
    """Version that the file must have, as `fetch.files.version_and_length` returns it; None for any."""


class ChunkVersions(Protocol):
    """The versions of the objects of one read."""

    cached_nbytes: int
    """Decoded bytes of the chunks that the decoder has found in its cache. The decoder adds to this number."""

    @property
    def identity(self) -> Hashable:
        """Value that all reads of one store share, and that differs between stores."""

    def settled_version(self, key: str) -> Version:
        """Return the version of an object; None if its decoded chunks must not be cached.

        That is so if a later change of the object might go unnoticed. No request is made. The version of a shard is
        that from which its index was read; `start_check` compares it with the current one.
        """

    def start_check(self, byte_positions: Sequence[tuple[str, int]]) -> PendingCheck:
        """Start requests for the current versions of shards.

        Parameters
        ----------
        byte_positions : sequence of (str, int)
            Key of each shard, and the offset of a byte inside it. This byte is requested, since its answer has the
            version.

        Returns
        -------
        callable
            Waits for the answers. Raises `ObjectChangedError` if a shard no longer has the version from which its index
            was read.
        """


class ByteSource(Protocol):
    """A source from which a decoder fetches the bytes of one array's objects."""

    @property
    def rule(self) -> CoalesceRule:
        """Rule that decides which neighbouring chunks share a request."""

    @property
    def lookahead(self) -> int:
        """Number of requests worth starting, or reading ahead, before their bytes are needed."""

    @property
    def is_remote(self) -> bool:
        """Whether `start` sends requests at once, and each round trip costs time."""

    @property
    def is_local(self) -> bool:
        """Whether objects are local files, which a decoder may read without the source; see `local_file`."""

    @property
    def chunk_versions(self) -> ChunkVersions | None:
        """Versions of the objects whose decoded chunks may be cached; None if no chunks may be."""

    @property
    def storage(self) -> Storage:
        """How bytes should reach a GPU; ``posix`` if the objects are not local files."""

    def local_file(self, key: str) -> LocalFile:
        """Return the path of an object that is a local file, and the version that it must have."""

    @property
    def cuts_objects(self) -> bool:
        """Whether long chunks may be requested in pieces. A `Snapshot` checks that all pieces have one version."""

    def prefetch(self, key: str, byte_range: ByteRange) -> bool:
        """Let the system read bytes ahead that will soon be needed.

        Return False if the system was not asked to, for example because the first byte is in the page cache already.
        """

    def start(self, requests: Sequence[Request]) -> Pending:
        """Start reading one or more byte ranges of one object, or one or more whole objects.

        The returned function raises `StoreReadError` if the store fails or returns another number of bytes, and
        `PiecesDifferError` if the pieces of an object may be of several versions.
        """


class ObjectSource(ByteSource, Protocol):
    """The source of one store, which can request a certain version of an object."""

    @property
    def name(self) -> str:
        """Path or URL of the store, as errors show it."""

    @property
    def identity(self) -> Hashable:
        """Value that all sources of one store share, and that differs between stores; None if there is none."""

    def __dask_tokenize__(self) -> tuple[str, ...]:
        """Return text that differs between sources, from which dask makes tokens."""

    def for_one_read(
        self, *, ask_again: bool = False, expected_nbytes: int | None = None, most_nbytes: int = NO_LIMIT
    ) -> ObjectSource:
        """Return a source for one read: a copy of this one, or this one itself.

        Parameters
        ----------
        ask_again : bool
            Whether a request is repeated, many times, while answers are not of the requested version.
        expected_nbytes : int, optional
            Length in bytes that the read's requests usually do not exceed, if it is known. More short requests may be
            outstanding at once than long ones.
        most_nbytes : int
            Length in bytes above which an object cannot be a chunk. As far as the store tells the lengths of objects,
            no memory is allocated for longer ones.
        """

    def local_file(self, key: str, version: Version = None) -> LocalFile:
        """Return the path of an object that is a local file, and the version that it must have."""

    def settled_version(self, key: str) -> Version:
        """Return the version that an object has now; None if it changed recently, or a request would be needed."""

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:
        """Start reading one or more byte ranges of one object, or one or more whole objects.

        Parameters
        ----------
        requests : sequence of (str, ByteRange)
            Key and byte range of each request.
        version : Version
            Version that the objects must have now; None for any. No store is asked for older versions.

        Returns
        -------
        Pending
            Raises `ObjectChangedError` if an object has another version or no longer exists, `StoreReadError` if the
            store fails or returns another number of bytes, and `ObjectTooLongError` if a whole object is longer than a
            chunk may be.
        """

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Start reading the first or last `nbytes` bytes of an object. A shorter object may come without its bytes.

        The returned function raises `StoreReadError` if the store fails.
        """

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:
        """Start reading a whole object. One of more than `most_nbytes` bytes may come without its bytes."""

    def give_up(self) -> None:
        """Cancel all requests that have not been answered. Only for the result of `for_one_read`."""


class RemoteSource(ObjectSource, Protocol):
    """An `ObjectSource` whose objects may be requested in pieces, many at a time."""

    def start_range(self, key: str, byte_range: ByteRange) -> PendingEdge:
        """Start reading a byte range of whichever version of an object the store has."""


class SourceWithoutFiles:
    """Base of sources whose objects are not local files. Their requests start early, so they need no `prefetch`."""

    __slots__ = ()

    is_local = False
    storage: Storage = "posix"
    chunk_versions: ChunkVersions | None = None

    def local_file(self, key: str, version: Version = None) -> LocalFile:
        """Raise `ValueError`, since there is no file."""
        raise ValueError(self, key, version)

    def settled_version(self, key: str) -> Version:  # noqa: ARG002
        """Return None, since only a request would tell the version."""
        return None

    def prefetch(self, key: str, byte_range: ByteRange) -> bool:  # noqa: ARG002
        """Do nothing, and return False."""
        return False


_N_SKIPPED = 7
"""Number of requests that are not prefetched after one whose bytes were in the page cache. The bytes of these are
probably there, too, and each look into the page cache would cost 5 us."""


class ReadAhead:
    """Prefetches the queued requests of one read. After one whose bytes were in the page cache already, it skips some.

    Several threads may call it. The counter has no lock: at worst, a few more requests are skipped, or fewer.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._n_to_skip = 1  # the first request is carried out at once

    def __call__(self, requests: Iterable[Request]) -> None:
        """Let the system read ahead for requests that have just been queued."""
        for request in requests:
            if self._n_to_skip > 0:
                self._n_to_skip -= 1
            elif not self._source.prefetch(*request):
                self._n_to_skip = _N_SKIPPED
