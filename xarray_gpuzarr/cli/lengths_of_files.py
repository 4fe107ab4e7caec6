"""`disk_nbytes`: how many bytes the files of an array take in a local store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.stored.array_spec import ArraySpec

MOST_FILES = 20_000
"""Largest number of files of an array whose lengths are added up, so that `info` answers at once."""


def disk_nbytes(lazy: LazyArray) -> int | None:
    """Return the total size in bytes of an array's objects in a local store.

    None for other stores, for more than `MOST_FILES` files, and if the files cannot be listed.
    """
    source = lazy.stored.store_source
    if not isinstance(source, LocalSource):
        return None
    assert isinstance(lazy.stored.spec, ArraySpec)  # other arrays have no source
    try:
        return _nbytes_below(Path(source.root) / lazy.stored.spec.path.lstrip("/"))
    except (OSError, ValueError):  # no permission, a link to itself, or a name that no file can have
        return None


def _nbytes_below(folder: Path) -> int | None:
    """Return the total size of the files below a folder in bytes, or None if they are more than `MOST_FILES`.

    Broken links, and files that are deleted meanwhile, count as empty.
    """
    total = 0
    for n_files, entry in enumerate(_files_below(folder), 1):
        if n_files > MOST_FILES:
            return None
        with suppress(FileNotFoundError, NotADirectoryError):
            total += entry.stat().st_size
    return total


def _files_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a folder, and broken links. Folders that are deleted meanwhile are left out."""
    folders = [folder]
    seen = set[tuple[int, int]]()
    while folders:
        folder = folders.pop()
        with suppress(FileNotFoundError, NotADirectoryError):
            status = folder.stat()
            if (status.st_dev, status.st_ino) in seen:  # links may form a cycle
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        folders.append(Path(entry.path))
                    else:
                        yield entry
