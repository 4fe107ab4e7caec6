"""Encoded bytes from a store into memory that the decoder chose.

Two sources behind one protocol: `LocalSource` reads files by position, straight into the caller's buffer and on the
caller's thread; `StoreSource` asks any zarr store for byte ranges, several at a time, on zarr's own event loop. Both
are small, frozen and picklable, and hold no open file. Nothing is decoded or cached here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Buffer, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import cpu
from zarr.core.sync import _get_loop
from zarr.storage import LocalStore

from xarray_gpuzarr.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule
from xarray_gpuzarr.errors import StoreReadError

Allocate = Callable[[int], memoryview]
"""Given a length in bytes, return writable host memory of that length."""

Pending = Callable[[Allocate], memoryview | None]
"""Finish a read that was started; None if the object does not exist.

The bytes lie in the memory that `Allocate` returned, or in memory of the source's own if it has them already.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The first or last bytes of an object."""

    data: memoryview
    object_nbytes: int | None
    """Length of the whole object, where the source knows it."""


PendingEdge = Callable[[], Edge | None]


class ByteStream(Protocol):
    """The bytes of a range, from first to last, for codecs that decode as they read."""

    def read(self, nbytes: int) -> Buffer:
        """Return up to `nbytes` further bytes; none at the end.

        Raises
        ------
        StoreReadError
            The store failed, or the object ends before the range does.
        """

    def close(self) -> None:
        """Let go of what the stream holds open."""


PendingStream = Callable[[], ByteStream | None]
"""Open a stream that was asked for; None if the object does not exist."""


class ByteSource(Protocol):
    """Where the bytes of one array's objects come from."""

    @property
    def rule(self) -> CoalesceRule:
        """Which neighbouring chunks one request should fetch."""

    @property
    def lookahead(self) -> int:
        """Requests worth starting before their bytes are needed; 0 if starting does nothing."""

    def start(self, key: str, wanted: ByteRange) -> Pending:
        """Start reading a byte range of an object.

        Raises
        ------
        StoreReadError
            On finishing: the store failed or returned another number of bytes.
        """

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Start reading the first or last `nbytes` bytes of an object."""

    def start_stream(self, key: str, wanted: ByteRange) -> PendingStream:
        """Start reading a byte range that is too large to be held at once."""


def byte_source(store: Store) -> ByteSource:
    """Return the best source for a zarr store."""
    if type(store) is LocalStore:
        return LocalSource(root=os.fspath(store.root))
    return StoreSource(store=store)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """Files below a directory, read by position."""

    root: str
    """Directory that holds the store."""

    @property
    def rule(self) -> CoalesceRule:
        """2 MB parts: they stay in a core's cache, and handing one over (10 us) costs little beside decoding it."""
        return CoalesceRule(max_gap_nbytes=64 * 1024, max_nbytes=2 * 1024 * 1024)

    @property
    def lookahead(self) -> int:
        """0: the page cache reads ahead by itself."""
        return 0

    def start(self, key: str, wanted: ByteRange) -> Pending:
        """Return a function that reads the range on the thread that calls it."""

        def finish(allocate: Allocate) -> memoryview | None:
            fd = self._open(key)
            if fd is None:
                return None
            try:
                nbytes = wanted.nbytes
                if nbytes == WHOLE_OBJECT:
                    nbytes = max(0, os.fstat(fd).st_size - wanted.offset)
                return self.pread(fd, key, wanted.offset, allocate(nbytes))
            finally:
                os.close(fd)

        return finish

    def start_stream(self, key: str, wanted: ByteRange) -> PendingStream:
        """Return a function that opens the file on the thread that calls it."""

        def finish() -> ByteStream | None:
            fd = self._open(key)
            if fd is None:
                return None
            nbytes = wanted.nbytes
            if nbytes == WHOLE_OBJECT:
                nbytes = os.fstat(fd).st_size - wanted.offset
            return _LocalStream(self, fd, key, wanted.offset, wanted.offset + nbytes)

        return finish

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Return a function that reads the edge on the thread that calls it."""

        def finish() -> Edge | None:
            fd = self._open(key)
            if fd is None:
                return None
            try:
                total = os.fstat(fd).st_size
                take = min(nbytes, total)
                offset = total - take if location == "end" else 0
                data = self.pread(fd, key, offset, memoryview(bytearray(take)))
                return Edge(data=data, object_nbytes=total)
            finally:
                os.close(fd)

        return finish

    def _open(self, key: str) -> int | None:
        path = f"{self.root}/{key}"
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as err:
            raise _failed(path, "open", err) from err

    def pread(self, fd: int, key: str, offset: int, into: memoryview) -> memoryview:
        """Fill `into` from an open file; a read may return less than asked for, at 2 GiB always."""
        done = 0
        try:
            while done < len(into):
                n = os.preadv(fd, [into[done:]], offset + done)
                if n == 0:
                    break
                done += n
        except OSError as err:
            raise _failed(f"{self.root}/{key}", f"read {len(into)} bytes at {offset}", err) from err
        if done < len(into):
            raise _short(f"{self.root}/{key}", offset, len(into), done)
        return into


class _LocalStream:
    """A range of an open file."""

    def __init__(self, source: LocalSource, fd: int, key: str, at: int, end: int) -> None:
        self._source, self._fd, self._key, self._at, self._end = source, fd, key, at, end

    def read(self, nbytes: int) -> Buffer:
        piece = bytearray(max(0, min(nbytes, self._end - self._at)))
        self._source.pread(self._fd, self._key, self._at, memoryview(piece))
        self._at += len(piece)
        return piece

    def close(self) -> None:
        os.close(self._fd)


class MemoryStream:
    """Bytes that are there already."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def read(self, nbytes: int) -> Buffer:
        """Return up to `nbytes` further bytes; none at the end."""
        piece, self._data = self._data[:nbytes], self._data[nbytes:]
        return piece

    def close(self) -> None:
        """Let go of the bytes."""
        self._data = memoryview(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSource:
    """Any zarr store, through its own byte-range reads."""

    store: Store

    @property
    def rule(self) -> CoalesceRule:
        """1 MiB gaps and 8 MiB requests: a round trip costs more than the bytes skipped."""
        return CoalesceRule(max_gap_nbytes=1024 * 1024, max_nbytes=8 * 1024 * 1024)

    @property
    def lookahead(self) -> int:
        """16 requests in flight for one read: enough to hide a round trip, few enough for any server."""
        return 16

    def start(self, key: str, wanted: ByteRange) -> Pending:
        """Ask the store now; the returned function waits for the answer."""
        to_end = wanted.nbytes == WHOLE_OBJECT
        request: ByteRequest | None = RangeByteRequest(wanted.offset, wanted.offset + wanted.nbytes)
        if to_end:
            request = OffsetByteRequest(wanted.offset) if wanted.offset else None
        future = self._get(key, request)

        def finish(_allocate: Allocate) -> memoryview | None:
            data = self._result(future, key, wanted)
            if data is not None and not to_end and len(data) != wanted.nbytes:
                raise _short(self._name(key), wanted.offset, wanted.nbytes, len(data))
            return data

        return finish

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Ask the store now; the returned function waits for the answer."""
        at_end = location == "end"
        future = self._get(key, SuffixByteRequest(nbytes) if at_end else RangeByteRequest(0, nbytes))

        def finish() -> Edge | None:
            data = self._result(future, key, ByteRange(offset=0, nbytes=nbytes))
            return None if data is None else Edge(data=data, object_nbytes=None)

        return finish

    def start_stream(self, key: str, wanted: ByteRange) -> PendingStream:
        """Ask the store for the whole range now; what it returns is held as it is."""
        pending = self.start(key, wanted)

        def finish() -> ByteStream | None:
            data = pending(lambda nbytes: memoryview(bytearray(nbytes)))
            return None if data is None else MemoryStream(data)

        return finish

    def _get(self, key: str, request: ByteRequest | None) -> Future[Any]:
        # The host prototype is named, so that zarr.config.enable_gpu() does not move encoded bytes to a device.
        # zarr's own loop is used because remote stores bind their sessions to the loop that they first ran on.
        coroutine = self.store.get(key, cpu.buffer_prototype, request)
        return asyncio.run_coroutine_threadsafe(coroutine, _get_loop())

    def _result(self, future: Future[Any], key: str, wanted: ByteRange) -> memoryview | None:
        try:
            buffer = future.result()
        except Exception as err:  # a store may raise anything; it is named in the message
            raise _failed(self._name(key), f"read {wanted}", err) from err
        if buffer is None:
            return None
        return memoryview(np.ascontiguousarray(buffer.as_numpy_array()).view(np.uint8))

    def _name(self, key: str) -> str:
        return f"{self.store}/{key}"


def _failed(name: str, action: str, err: Exception) -> StoreReadError:
    return StoreReadError(
        f"cannot read {name}",
        tried=action,
        found=f"{type(err).__name__}: {err}",
        do="check that the object exists, that you may read it, and that the store can be reached; then read again",
    )


def _short(name: str, offset: int, wanted: int, got: int) -> StoreReadError:
    return StoreReadError(
        f"{name} is shorter than its shard index or its size said",
        tried=f"{wanted} bytes at {offset}",
        found=f"{got} bytes",
        do="the object is truncated or was replaced while it was read: open the store again, or restore the object",
    )
