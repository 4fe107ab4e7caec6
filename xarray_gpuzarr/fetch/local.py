"""Files below a directory, read by position on the thread that needs the bytes; a directory is a missing object.

What is in the page cache is copied from there. What is not is asked for ahead of time, because a file system serves
several large requests at once better than one. O_DIRECT is not used; see decision 13.
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
from xarray_gpuzarr.fetch.source import (
    Allocate,
    Edge,
    LocalFile,
    ObjectChangedError,
    ObjectTooLongError,
    Pending,
    PendingEdge,
    Request,
    Storage,
    Version,
    changed,
    failed,
    is_settled,
    short,
)
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange, CoalesceRule, coalesce_rule
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.codecs import NO_LIMIT

_MIB = 1024**2
_RULE = CoalesceRule(max_gap_nbytes=64 * 1024, max_nbytes=2 * _MIB, max_raw_nbytes=8 * _MIB, max_together=64)

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe without a writer would never open
_AHEAD_NBYTES = 8 * _MIB
"""Most that is read ahead of one range: more would push other things out of the page cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSource:
    """Files below a directory."""

    root: str
    """Directory that holds the store."""
    storage: Storage = "auto"
    most_nbytes: int = NO_LIMIT
    """Length in bytes of the longest file that one read takes for a chunk."""
    lookahead: ClassVar = 4
    """Requests: more than that did not read a cold file faster (1.2 to 1.9 GB/s; decision 13)."""
    is_remote: ClassVar = False
    cuts_objects: ClassVar = False
    is_local: ClassVar = True
    chunk_versions: ClassVar = None

    def __dask_tokenize__(self) -> tuple[str, ...]:
        return (type(self).__qualname__, self.root, self.storage)

    @property
    def rule(self) -> CoalesceRule:
        """2 MiB parts: they stay in a core's cache, and handing one over (10 us) costs little beside decoding it."""
        return coalesce_rule(fetch_options(), _RULE)

    @property
    def name(self) -> str:
        """The directory."""
        return self.root

    identity = name

    def for_one_read(
        self,
        *,
        ask_again: bool = False,  # noqa: ARG002  # a path has one file
        expected_nbytes: int | None = None,  # noqa: ARG002
        most_nbytes: int = NO_LIMIT,
    ) -> LocalSource:
        """Return this source, with a bound on files that are chunks."""
        if most_nbytes == self.most_nbytes:
            return self
        return LocalSource(root=self.root, storage=self.storage, most_nbytes=most_nbytes)

    def local_file(self, key: str, version: Version = None) -> LocalFile:
        """Return where a file lies, and the version that it must be of."""
        return LocalFile(self.local_path(key), version)

    def local_path(self, key: str) -> str:
        """Return the path of a file."""
        return f"{self.root}/{key}"

    def settled_version(self, key: str) -> Version:
        """Return the version of a file; None if there is none, or if a later change may leave it the same times."""
        now = time.time()
        try:
            status = os.stat(self.local_path(key))  # noqa: PTH116  # a Path takes 30 us to make
        except (OSError, ValueError):  # who reads the file says what is wrong
            return None
        age_s = now - max(status.st_mtime, status.st_ctime)
        return _version(status) if S_ISREG(status.st_mode) and is_settled(age_s) else None

    def prefetch(self, key: str, byte_range: ByteRange) -> bool:
        """Have a range read into the page cache unless its first byte is there; return whether that was necessary."""
        fd = self._open(key)
        if fd is None:
            return False
        try:
            if _is_cached(fd, byte_range.offset):
                return False
            nbytes = _AHEAD_NBYTES if byte_range.nbytes == WHOLE_OBJECT else min(byte_range.nbytes, _AHEAD_NBYTES)
            with suppress(OSError):  # it was advice; who reads the file says what is wrong
                os.posix_fadvise(fd, byte_range.offset, nbytes, os.POSIX_FADV_WILLNEED)
            return True
        finally:
            os.close(fd)

    def start(self, requests: Sequence[Request], version: Version = None) -> Pending:
        """Return a function that reads on the thread that calls it."""
        if len(requests) > 1 and requests[0][1].nbytes == WHOLE_OBJECT:
            return lambda _allocate: [self._read_some(key, [byte_range], _fresh)[0] for key, byte_range in requests]
        key, ranges = requests[0][0], [byte_range for _, byte_range in requests]
        return lambda allocate: self._read_some(key, ranges, allocate, version)

    def _read_some(
        self, key: str, ranges: Sequence[ByteRange], allocate: Allocate, version: Version = None
    ) -> list[memoryview | None]:
        """Read ranges of a file, which is opened once, side by side into memory; or one range to its end."""
        fd = self._open(key, version)
        if fd is None:
            return [None] * len(ranges)
        try:
            if ranges[0].nbytes == WHOLE_OBJECT:
                return [self._rest(fd, key, ranges[0].offset, allocate, version)]
            ends = list(accumulate(part.nbytes for part in ranges))
            room = allocate(ends[-1])
            parts = [room[end - part.nbytes : end] for part, end in zip(ranges, ends, strict=True)]
            for (offset, nbytes), part in zip(ranges, parts, strict=True):
                done = self._read(fd, key, offset, part, version)
                if done < nbytes:
                    self._check_version(fd, key, version)
                    raise short(self.local_path(key), offset, nbytes, done)
            self._check_version(fd, key, version)
            return [*parts]
        finally:
            os.close(fd)

    def _rest(self, fd: int, key: str, offset: int, allocate: Allocate, version: Version) -> memoryview | None:
        """Read an open file from `offset` on; None if it is a directory."""
        status = self._stat(fd, key)
        if S_ISDIR(status.st_mode):
            return None
        whole = None if status.st_size else self._to_its_end(fd, key, status)
        length = status.st_size if whole is None else len(whole)
        if length > self.most_nbytes:
            raise ObjectTooLongError(key, length)
        if whole is not None:
            return whole[offset:]
        return self.pread(fd, key, offset, allocate(max(0, length - offset)), version)

    def start_edge(self, key: str, location: Literal["start", "end"], nbytes: int) -> PendingEdge:
        """Return a function that reads the edge on the thread that calls it."""

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
        now, status = time.time(), self._stat(fd, key)
        if S_ISDIR(status.st_mode):
            return None
        version = _version(status)
        whole = None if status.st_size else self._to_its_end(fd, key, status)
        length = status.st_size if whole is None else len(whole)
        take = min(nbytes, length)
        offset = length - take if location == "end" else 0
        if whole is None and length < nbytes != NO_LIMIT:
            data = memoryview(b"")  # an index cut short is of no use
        elif whole is None:
            data = self.pread(fd, key, offset, memoryview(bytearray(take)), version)
        else:
            data = whole[offset : offset + take]
        age_s = now - max(status.st_mtime, status.st_ctime)
        return Edge(data=data, object_nbytes=length, version=version, settled=is_settled(age_s))

    def start_whole(self, key: str, most_nbytes: int = NO_LIMIT) -> PendingEdge:  # noqa: ARG002
        """Return a function that reads the whole file on the thread that calls it."""
        return self.start_edge(key, "start", NO_LIMIT)

    def give_up(self) -> None:
        """Do nothing: nothing is under way."""

    def _open(self, key: str, version: Version = None) -> int | None:
        path = self.local_path(key)
        try:
            # A signal may interrupt after a call, and lose what it returned; not within an unpacking.
            (fd,) = map(os.open, (path,), (_READ_FLAGS,))
        except (FileNotFoundError, NotADirectoryError):
            if version is not None:
                raise changed(path, version, None) from None
            return None
        except OSError as err:
            raise self._failed(key, "open", err) from err
        except ValueError as err:  # no file can have such a name
            raise failed(path, "open", err) from err
        return fd

    def _stat(self, fd: int, key: str) -> os.stat_result:
        """Return what the system says of an open file."""
        try:
            return os.fstat(fd)
        except OSError as err:
            raise self._failed(key, "ask for its length", err) from err

    def _failed(self, key: str, action: str, err: OSError) -> StoreReadError:
        """Return the error of a file that cannot be read, or that a network's file system knows no more."""
        path = self.local_path(key)
        if err.errno != errno.ESTALE:
            return failed(path, action, err)
        return ObjectChangedError(
            f"{path} was replaced while it was read",
            tried=action,
            found="a stale handle (ESTALE): its server has no such file any more",
            do="read again once nothing writes to it",
        )

    def _to_its_end(self, fd: int, key: str, said: os.stat_result) -> memoryview:
        """Read all of a file that reports no length, or a little more than it may have.

        It may have bytes, as those of /proc have, or fail. A device may have no end.
        """
        if not S_ISREG(said.st_mode):
            raise self._failed(key, "read the whole file", OSError("a device or a pipe"))
        content = bytearray()
        try:
            while len(content) <= self.most_nbytes and (piece := os.pread(fd, _MIB, len(content))):
                content += piece
        except OSError as err:
            raise self._failed(key, "read the whole file", err) from err
        return memoryview(content)

    def pread(self, fd: int, key: str, offset: int, into: memoryview, version: Version = None) -> memoryview:
        """Fill `into` from an open file; a read may return less than asked for, at 2 GiB always.

        Raises `ObjectChangedError` if the file is of another version, `StoreReadError` if it ends too soon or cannot be
        read.
        """
        done = self._read(fd, key, offset, into, version)
        self._check_version(fd, key, version)
        if done < len(into):
            raise short(self.local_path(key), offset, len(into), done)
        return into

    def _read(self, fd: int, key: str, offset: int, into: memoryview, version: Version) -> int:
        """Fill `into`, as far as the file reaches; return how many bytes that are.

        What cannot be read may have replaced what could, such as a directory a file: then `ObjectChangedError`.
        """
        done = 0
        try:
            while done < len(into):
                part, at = into[done:], offset + done
                # What the page cache holds; if that is nothing, another thread may compute while this one waits.
                n = read_cached(fd, part, at) or crew.run_without_turn(partial(os.preadv, fd, [part], at))
                if not n:
                    break
                done += n
        except OSError as err:
            self._check_version(fd, key, version)
            raise self._failed(key, f"read {len(into)} bytes at {offset}", err) from err
        return done

    def _check_version(self, fd: int, key: str, version: Version) -> None:
        """Raise if an open file is of another version."""
        if version is not None and (now := _version(self._stat(fd, key))) != version:
            raise changed(self.local_path(key), version, now)


def version_and_length(path: str) -> tuple[tuple[int, ...], int] | None:
    """Return the version of a file and its length in bytes; None if there is no file, or a directory.

    Raises `StoreReadError` if the system refuses to say.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  # a Path takes 30 us to make
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as err:
        raise failed(path, "ask for its length", err) from err
    return None if S_ISDIR(status.st_mode) else (_version(status), status.st_size)


def _fresh(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


def _version(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_cached(fd: int, into: memoryview, offset: int = 0) -> int:
    """Read what the page cache holds, in whole blocks unless the file ends; return how many bytes that are."""
    try:
        return os.preadv(fd, [into], offset, os.RWF_NOWAIT)
    except (OSError, AttributeError):  # nothing there, or a system that cannot tell
        return 0


def _is_cached(fd: int, offset: int) -> bool:
    """Say whether the page cache holds a byte, where the system can tell; else pretend that it does."""
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):  # a file system, or a system, that cannot tell
        return True
    return True
