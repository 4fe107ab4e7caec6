"""`LocalSource`: files below a directory, read at given offsets on the calling thread.

Where a directory has the name of an object, the object is missing. Bytes in the page cache are copied from there. The
system is asked for other bytes ahead of time, because a file system reads several large requests at once faster than
one after another. O_DIRECT is not used; see decision 13.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from stat import S_ISDIR, S_ISREG
from typing import ClassVar, Literal

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.files import file_version, is_cached, read_cached
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
    ObjectChangedError,
    ObjectTooLongError,
    changed_error,
    failed_error,
    short_object_error,
)
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce_rule
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.process.turns import turns
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_MIB = 1024**2
_RULE = CoalesceRule(max_gap_nbytes=64 * 1024, max_nbytes=2 * _MIB, max_raw_nbytes=8 * _MIB, max_together=64)

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Without `O_NONBLOCK`, opening a pipe that has no writer never returns."""
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
        """Return the version of a file; None if a later change might not show in its times, or for no regular file."""
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
        fd = self._open(key)
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
            # unsharded chunks, of which no version is requested.
            return lambda _allocate: [self._read_ranges(key, [part], _new_memory)[0] for key, part in requests]
        key = requests[0][0]
        ranges = [byte_range for _, byte_range in requests]
        return lambda allocate: self._read_ranges(key, ranges, allocate, version)

    def _read_ranges(
        self, key: str, ranges: Sequence[ByteRange], allocate: Allocate, version: Version = None
    ) -> list[memoryview | None]:
        """Read ranges of one file one after another, or one range that goes to the end of the file.

        Ranges of known length get one piece of allocated memory, in which they follow each other. Return None for each
        range if there is no file.
        """
        fd = self._open(key, version)
        if fd is None:
            return [None] * len(ranges)
        try:
            if ranges[0].nbytes == WHOLE_OBJECT:
                return [self._read_to_end(fd, key, ranges[0].offset, allocate, version)]
            ends = list(accumulate(byte_range.nbytes for byte_range in ranges))
            memory = allocate(ends[-1])
            parts = [memory[end - byte_range.nbytes : end] for byte_range, end in zip(ranges, ends, strict=True)]
            for (offset, nbytes), part in zip(ranges, parts, strict=True):
                n_read = self._read(fd, key, offset, part, version)
                if n_read < nbytes:
                    self._check_version(fd, key, version)
                    raise short_object_error(self.local_path(key), offset, nbytes, n_read)
            self._check_version(fd, key, version)
            return [*parts]  # a list of the declared type
        finally:
            os.close(fd)

    def _read_to_end(self, fd: int, key: str, offset: int, allocate: Allocate, version: Version) -> memoryview | None:
        """Read an open file from `offset` on; None if it is a directory.

        Raises `ObjectTooLongError` if the file has more than `most_nbytes` bytes.
        """
        status = self._stat(fd, key)
        if S_ISDIR(status.st_mode):
            return None
        # Only reading shows the length of a file that reports none; see `_read_all`.
        whole = None if status.st_size else self._read_all(fd, key, status)
        length = status.st_size if whole is None else len(whole)
        if length > self.most_nbytes:
            raise ObjectTooLongError(key, length)
        if whole is not None:
            return whole[offset:]
        return self._pread(fd, key, offset, allocate(max(0, length - offset)), version)

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Return a function that reads on its calling thread; see `ObjectSource.start_edge`."""

        def finish() -> Edge | None:
            fd = self._open(key)
            if fd is None:
                return None
            try:
                return self._edge(fd, key, location, nbytes)
            finally:
                os.close(fd)

        return finish

    def _edge(self, fd: int, key: str, location: Literal["start", "end"], nbytes: int) -> Edge | None:
        """Read the first or last bytes of an open file, or all of it; None if it is a directory."""
        now = time.time()  # before the times are read, as in `settled_version`
        status = self._stat(fd, key)
        if S_ISDIR(status.st_mode):
            return None
        version = file_version(status)
        whole = None if status.st_size else self._read_all(fd, key, status)
        length = status.st_size if whole is None else len(whole)
        edge_nbytes = min(nbytes, length)
        offset = length - edge_nbytes if location == "end" else 0
        if whole is not None:
            data = whole[offset : offset + edge_nbytes]
        elif length < nbytes and nbytes != NO_LIMIT:
            data = memoryview(b"")  # the file is shorter than the index of a shard, so its bytes are of no use
        else:
            data = self._pread(fd, key, offset, memoryview(bytearray(edge_nbytes)), version)
        age_s = now - max(status.st_mtime, status.st_ctime)
        return Edge(data=data, object_nbytes=length, version=version, settled=is_settled(age_s))

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:  # noqa: ARG002
        """Return a function that reads the whole file, of any length, on its calling thread."""
        return self.start_edge(key, "start", NO_LIMIT)

    def give_up(self) -> None:
        """Do nothing, since no requests are outstanding."""

    def _open(self, key: str, version: Version = None) -> int | None:
        """Open a file, and return its descriptor; None if there is no file.

        Raises `StoreReadError` if it cannot be opened, and `ObjectChangedError` if there is no file although it must
        have `version`.
        """
        path = self.local_path(key)
        try:
            # Ctrl-C may arrive between a call and the assignment of its result, and the descriptor would be lost. It
            # does not arrive while `map` is unpacked.
            (fd,) = map(os.open, (path,), (_READ_FLAGS,))
        except (FileNotFoundError, NotADirectoryError):
            if version is not None:
                raise changed_error(path, version, None) from None
            return None
        except OSError as err:
            raise self._read_error(key, "open", err) from err
        except ValueError as err:  # the name has a zero byte
            raise failed_error(path, "open", err) from err
        return fd

    def _stat(self, fd: int, key: str) -> os.stat_result:
        """Return the status of an open file."""
        try:
            return os.fstat(fd)
        except OSError as err:
            raise self._read_error(key, "ask for its length", err) from err

    def _read_error(self, key: str, action: str, err: OSError) -> StoreReadError:
        """Return the error for a file that cannot be read, or that was replaced on a network file system.

        `action` says what was tried; see `failed_error`.
        """
        path = self.local_path(key)
        if err.errno != errno.ESTALE:
            return failed_error(path, action, err)
        return ObjectChangedError(
            f"{path} was replaced while it was read",
            tried=action,
            found="a stale handle (ESTALE): its server has no such file any more",
            do="read again once nothing writes to it",
        )

    def _read_all(self, fd: int, key: str, status: os.stat_result) -> memoryview:
        """Read all of a file that reports a length of 0, but not much more than `most_nbytes`.

        Empty files report that length, and so do files in /proc that have bytes. Devices and pipes are refused: they
        may have no end.
        """
        if not S_ISREG(status.st_mode):
            raise self._read_error(key, "read the whole file", OSError("a device or a pipe"))
        content = bytearray()
        try:
            while len(content) <= self.most_nbytes:
                piece = os.pread(fd, _MIB, len(content))
                if not piece:
                    break
                content += piece
        except OSError as err:
            raise self._read_error(key, "read the whole file", err) from err
        return memoryview(content)

    def _pread(self, fd: int, key: str, offset: int, into: memoryview, version: Version = None) -> memoryview:
        """Fill `into` from an open file, from `offset` on, and return it.

        Raises `ObjectChangedError` if the file has another version, and `StoreReadError` if it ends too soon or cannot
        be read.
        """
        n_read = self._read(fd, key, offset, into, version)
        self._check_version(fd, key, version)
        if n_read < len(into):
            raise short_object_error(self.local_path(key), offset, len(into), n_read)
        return into

    def _read(self, fd: int, key: str, offset: int, into: memoryview, version: Version) -> int:
        """Fill `into` as far as the file reaches; return the number of bytes read.

        Raises `StoreReadError` if the file cannot be read: `ObjectChangedError` if the reason is that it was replaced,
        such as by a directory.
        """
        n_read = 0
        try:
            while n_read < len(into):  # one call of the system returns at most 2 GiB
                part = into[n_read:]
                position = offset + n_read
                # If the page cache has nothing, another thread may compute while this one waits for the disk.
                n = read_cached(fd, part, position) or turns.run_without(partial(os.preadv, fd, [part], position))
                if not n:
                    break
                n_read += n
        except OSError as err:
            self._check_version(fd, key, version)
            raise self._read_error(key, f"read {len(into)} bytes at {offset}", err) from err
        return n_read

    def _check_version(self, fd: int, key: str, version: Version) -> None:
        """Raise `ObjectChangedError` if an open file has another version."""
        if version is None:
            return
        current_version = file_version(self._stat(fd, key))
        if current_version != version:
            raise changed_error(self.local_path(key), version, current_version)


def _new_memory(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))
