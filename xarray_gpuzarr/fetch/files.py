"""Versions of files, and reads that the page cache answers."""

from __future__ import annotations

import os
from stat import S_ISDIR

from xarray_gpuzarr.fetch.store_errors import failed_error


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
    """Read what the page cache holds from `offset` on, in whole blocks except at the end of the file.

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
