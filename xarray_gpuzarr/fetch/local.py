"""`LocalSource`: files below a directory, read at given offsets on the calling thread.

Where a directory has the name of an object, the object is missing. The system is asked for bytes ahead of time, because
a file system reads several large requests at once faster than one after another. O_DIRECT is not used; see decision 13.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG
from typing import ClassVar, Literal

from xarray_gpuzarr.fetch.files import (
    check_version,
    file_status,
    file_version,
    is_cached,
    open_file,
    read_exactly,
    read_part,
    read_unsized,
)
from xarray_gpuzarr.fetch.source import (
    Allocate,
    Edge,
    LocalFile,
    Pending,
    PendingEdge,
    Request,
    Storage,
    Version,
    is_settled,
)
from xarray_gpuzarr.fetch.store_errors import (
    ObjectTooLongError,
    short_object_error,
)
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce_rule
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_MIB = 1024**2
_RULE = CoalesceRule(max_gap_nbytes=64 * 1024, max_nbytes=2 * _MIB, max_raw_nbytes=8 * _MIB, max_together=64)

_MAX_AHEAD_NBYTES = 8 * _MIB
"""Largest part of a range that is read ahead. More might displace other data from the page cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """Files below a directory."""

    root: str
    """Directory that holds the store."""
    storage: Storage = "auto"
    most_nbytes: int = NO_LIMIT
    """Length in bytes above which a file cannot be a chunk."""
    lookahead: ClassVar = 4
    """Number of requests that are read ahead. More did not read a cold file faster (1.2 to 1.9 GB/s; decision 13)."""
    is_remote: ClassVar = False
    cuts_objects: ClassVar = False
    is_local: ClassVar = True
    chunk_versions: ClassVar = None

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return (type(self).__qualname__, self.root, self.storage)

    @property
    def rule(self) -> CoalesceRule:
        """Rule with requests of 2 MiB: these fit a core's cache, and handing one to a thread takes only 10 us."""
        return coalesce_rule(fetch_options(), _RULE)

    @property
    def name(self) -> str:
        """Path of the directory."""
        return self.root

    identity = name
    """The directory, which is equal for all sources of one store."""

    def for_one_read(
        self,
        *,
        ask_again: bool = False,  # noqa: ARG002  # the file would be the same
        expected_nbytes: int | None = None,  # noqa: ARG002  # no requests are outstanding
        most_nbytes: int = NO_LIMIT,
    ) -> LocalSource:
        """Return this source with a limit on the length of chunks; see `ObjectSource.for_one_read`."""
        if most_nbytes == self.most_nbytes:
            return self
        return LocalSource(root=self.root, storage=self.storage, most_nbytes=most_nbytes)

    def local_file(self, key: str, version: Version = None) -> LocalFile:
        """Return the path of a file, and `version`, which it must have."""
        return LocalFile(self.local_path(key), version)

    def local_path(self, key: str) -> str:
        """Return the path of the file that holds an object."""
        return f"{self.root}/{key}"

    def settled_version(self, key: str) -> Version:
        """Return the version of a file; None if it is no regular file, or if a change might not show in its times."""
        now = time.time()  # before the times are read, so that no file counts as older than it is
        try:
            status = os.stat(self.local_path(key))  # noqa: PTH116  # a Path takes 30 us to make
        except (OSError, ValueError):  # reading the file will raise the error
            return None
        age_s = now - max(status.st_mtime, status.st_ctime)
        return file_version(status) if S_ISREG(status.st_mode) and is_settled(age_s) else None

    def prefetch(self, key: str, byte_range: ByteRange) -> bool:
        """Read a range into the page cache, in the background.

        Return False, without doing so, if its first byte is there already or if there is no file. Raises
        `StoreReadError` if the file cannot be opened.
        """
        fd = open_file(self.local_path(key))
        if fd is None:
            return False
        try:
            if is_cached(fd, byte_range.offset):
                return False
            nbytes = _MAX_AHEAD_NBYTES
            if byte_range.nbytes != WHOLE_OBJECT:
                nbytes = min(nbytes, byte_range.nbytes)
            with suppress(OSError):  # reading the file will raise the error
                os.posix_fadvise(fd, byte_range.offset, nbytes, os.POSIX_FADV_WILLNEED)
            return True
        finally:
            os.close(fd)

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:
        """Return a function that reads on its calling thread; see `ObjectSource.start`."""
        if len(requests) > 1 and requests[0][1].nbytes == WHOLE_OBJECT:
            # Several whole files: each gets memory of its own, since `allocate` may be called only once. They are
            # unsharded chunks, which may be of any version.
            return lambda _allocate: [self._read_ranges(key, [whole], _new_memory)[0] for key, whole in requests]
        key = requests[0][0]
        ranges = [byte_range for _, byte_range in requests]
        return lambda allocate: self._read_ranges(key, ranges, allocate, version)

    def _read_ranges(
        self, key: str, ranges: Sequence[ByteRange], allocate: Allocate, version: Version = None
    ) -> list[memoryview | None]:
        """Read ranges of one file in their order, or a single range that goes to the end of the file.

        Ranges of known length get one piece of allocated memory, in which they follow each other. Return None for each
        range if there is no file.
        """
        path = self.local_path(key)
        fd = open_file(path, version)
        if fd is None:
            return [None] * len(ranges)
        try:
            if ranges[0].nbytes == WHOLE_OBJECT:
                return [self._read_to_end(fd, path, key, ranges[0].offset, allocate, version)]
            memory = allocate(sum([byte_range.nbytes for byte_range in ranges]))
            parts: list[memoryview | None] = []
            start = 0
            for offset, nbytes in ranges:
                part = memory[start : start + nbytes]
                n_read = read_part(fd, path, offset, part, version)
                if n_read < nbytes:
                    check_version(fd, path, version)
                    raise short_object_error(path, offset, nbytes, n_read)
                parts.append(part)
                start += nbytes
            check_version(fd, path, version)
            return parts
        finally:
            os.close(fd)

    def _read_to_end(
        self, fd: int, path: str, key: str, offset: int, allocate: Allocate, version: Version
    ) -> memoryview | None:
        """Read an open file from `offset` on; None if it is a directory.

        Raises `ObjectTooLongError` if the file has more than `most_nbytes` bytes.
        """
        status = file_status(fd, path)
        if S_ISDIR(status.st_mode):
            return None
        # Only reading shows the length of a file that reports none; see `read_unsized`.
        whole = None if status.st_size else read_unsized(fd, path, status, self.most_nbytes)
        length = status.st_size if whole is None else len(whole)
        if length > self.most_nbytes:
            raise ObjectTooLongError(key, length)
        if whole is not None:
            return whole[offset:]
        return read_exactly(fd, path, offset, allocate(max(0, length - offset)), version)

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Return a function that reads on its calling thread; see `ObjectSource.start_edge`."""

        def finish() -> Edge | None:
            path = self.local_path(key)
            fd = open_file(path)
            if fd is None:
                return None
            try:
                return self._edge(fd, path, location, nbytes)
            finally:
                os.close(fd)

        return finish

    def _edge(self, fd: int, path: str, location: Literal["start", "end"], nbytes: int) -> Edge | None:
        """Read the first or last `nbytes` bytes of an open file; None if it is a directory.

        `nbytes` is the length of a shard's index, or `NO_LIMIT` for all bytes of the file.
        """
        now = time.time()  # before the times are read, as in `settled_version`
        status = file_status(fd, path)
        if S_ISDIR(status.st_mode):
            return None
        version = file_version(status)
        whole = None if status.st_size else read_unsized(fd, path, status, self.most_nbytes)
        length = status.st_size if whole is None else len(whole)
        edge_nbytes = min(nbytes, length)
        offset = length - edge_nbytes if location == "end" else 0
        if whole is not None:
            data = whole[offset : offset + edge_nbytes]
        elif length < nbytes and nbytes != NO_LIMIT:
            data = memoryview(b"")  # the file is shorter than an index, so it holds none and is not read
        else:
            data = read_exactly(fd, path, offset, memoryview(bytearray(edge_nbytes)), version)
        age_s = now - max(status.st_mtime, status.st_ctime)
        return Edge(data=data, object_nbytes=length, version=version, settled=is_settled(age_s))

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:  # noqa: ARG002
        """Return a function that reads the whole file, of any length, on its calling thread."""
        return self.start_edge(key, "start", NO_LIMIT)

    def give_up(self) -> None:
        """Do nothing, since no requests are outstanding."""


def _new_memory(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))
