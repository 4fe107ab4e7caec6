"""Local files: their versions, and reads at given offsets, with errors that name the file.

Bytes in the page cache are copied from there. While other bytes are read, another thread may have the turn.
"""

from __future__ import annotations

import errno
import os
from functools import partial
from stat import S_ISDIR, S_ISREG

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.source import Version
from xarray_gpuzarr.fetch.store_errors import ObjectChangedError, changed_error, failed_error, short_object_error
from xarray_gpuzarr.process.turns import turns

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Without `O_NONBLOCK`, opening a pipe that has no writer never returns."""
_PIECE_NBYTES = 1024**2
"""Length of the pieces in which `read_unsized` reads a file."""


def version_and_length(path: str) -> tuple[tuple[int, ...], int] | None:
    """Return the version of a file and its length in bytes; None if there is no file, or a directory.

    Raises `StoreReadError` if the system refuses to tell.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  # a Path takes 30 us to make
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as err:
        raise failed_error(path, "ask for its length", err) from err
    return None if S_ISDIR(status.st_mode) else (file_version(status), status.st_size)


def file_version(status: os.stat_result) -> tuple[int, ...]:
    """Return the version of a file: device, inode, length, modification time and change time."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_cached(fd: int, into: memoryview, offset: int = 0) -> int:
    """Read from `offset` on, up to the first page that the page cache does not hold.

    Return the number of bytes read. It is 0 also if the system cannot tell what the page cache holds.
    """
    try:
        return os.preadv(fd, [into], offset, os.RWF_NOWAIT)
    except (OSError, AttributeError):  # nothing is there, or the system has no RWF_NOWAIT
        return 0


def is_cached(fd: int, offset: int) -> bool:
    """Whether the page cache holds the byte at `offset` of an open file. True if the system cannot tell."""
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except (OSError, AttributeError):
        return True
    return True


def open_file(path: str, version: Version = None) -> int | None:
    """Open a file, and return its descriptor; None if there is no file.

    Raises `StoreReadError` if it cannot be opened, and `ObjectChangedError` if there is no file although it must have
    `version`.
    """
    try:
        # Ctrl-C may arrive between a call and the assignment of its result, and the descriptor would be lost. It does
        # not arrive while `map` is unpacked.
        (fd,) = map(os.open, (path,), (_READ_FLAGS,))
    except (FileNotFoundError, NotADirectoryError):
        if version is not None:
            raise changed_error(path, version, None) from None
        return None
    except OSError as err:
        raise _read_error(path, "open", err) from err
    except ValueError as err:  # the name has a zero byte
        raise failed_error(path, "open", err) from err
    return fd


def file_status(fd: int, path: str) -> os.stat_result:
    """Return the status of an open file. Raises `StoreReadError` if the system refuses to tell."""
    try:
        return os.fstat(fd)
    except OSError as err:
        raise _read_error(path, "ask for its length", err) from err


def check_version(fd: int, path: str, version: Version) -> None:
    """Raise `ObjectChangedError` if an open file has another version. It may have any if `version` is None."""
    if version is None:
        return
    current_version = file_version(file_status(fd, path))
    if current_version != version:
        raise changed_error(path, version, current_version)


def read_part(fd: int, path: str, offset: int, into: memoryview, version: Version) -> int:
    """Fill `into` as far as the file reaches; return the number of bytes read.

    Raises `StoreReadError` if the file cannot be read, and `ObjectChangedError` if that is because something else, such
    as a directory, was opened in place of the file of that version.
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
        check_version(fd, path, version)
        raise _read_error(path, f"read {len(into)} bytes at {offset}", err) from err
    return n_read


def read_exactly(fd: int, path: str, offset: int, into: memoryview, version: Version) -> memoryview:
    """Fill `into` from an open file, from `offset` on, and return it.

    Raises `ObjectChangedError` if the file has another version, and `StoreReadError` if it ends too soon or cannot be
    read.
    """
    n_read = read_part(fd, path, offset, into, version)
    check_version(fd, path, version)
    if n_read < len(into):
        raise short_object_error(path, offset, len(into), n_read)
    return into


def read_unsized(fd: int, path: str, status: os.stat_result, most_nbytes: int) -> memoryview:
    """Read all of a file that reports a length of 0, but not much more than `most_nbytes`.

    Empty files report that length, and so do files in /proc that have bytes. Devices and pipes are refused: they may
    have no end.
    """
    if not S_ISREG(status.st_mode):
        raise _read_error(path, "read the whole file", OSError("a device or a pipe"))
    content = bytearray()
    try:
        while len(content) <= most_nbytes:
            piece = os.pread(fd, _PIECE_NBYTES, len(content))
            if not piece:
                break
            content += piece
    except OSError as err:
        raise _read_error(path, "read the whole file", err) from err
    return memoryview(content)


def _read_error(path: str, action: str, err: OSError) -> StoreReadError:
    """Return the error for a file that cannot be read, or that was replaced on a network file system.

    `action` says what was tried; see `failed_error`.
    """
    if err.errno != errno.ESTALE:
        return failed_error(path, action, err)
    return ObjectChangedError(
        f"{path} was replaced while it was read",
        tried=action,
        found="a stale handle (ESTALE): its server has no such file any more",
        do="read again once nothing writes to it",
    )
