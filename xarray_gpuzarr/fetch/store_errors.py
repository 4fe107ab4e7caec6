"""The errors of objects that cannot be read, or that change while they are read."""

from __future__ import annotations

import re

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.source import Version

_DEBUG_OUTPUT = re.compile("\n+Debug source:")
"""Beginning of the part of an obstore error that repeats the text before it, as Rust's debug output."""


class ObjectChangedError(StoreReadError):
    """An object is no longer of the version from which its index was read."""

    key = ""
    """Store key of the object; empty for local files. By the key, `version_conflicts` finds out whether several servers
    answer with different versions."""
    index_version: Version = None
    """Version from which the index was read."""
    later_version: Version = None
    """Version that was found later; None if there was no object."""


class PiecesDifferError(StoreReadError):
    """The pieces of an object are of several versions, or may be. The object has to be requested as a whole."""

    never_cut = False
    """Whether no object of the store should be requested in pieces again, since the store never sends versions that can
    be compared."""


class ObjectTooLongError(Exception):
    """A whole object of `nbytes` bytes is too long for a chunk. `Snapshot` turns this into a `CorruptChunkError`."""

    def __init__(self, key: str, nbytes: int) -> None:
        super().__init__(key, nbytes)
        self.key = key
        self.nbytes = nbytes


def failed_error(name: str, action: str, err: Exception) -> StoreReadError:
    """Return the error for an object that could not be read.

    Parameters
    ----------
    name : str
        Path or URL of the object.
    action : str
        What was tried, such as "open".
    err : Exception
        What the store or the system raised.
    """
    return StoreReadError(
        f"cannot read {name}",
        tried=action,
        found=f"{type(err).__name__}: {_DEBUG_OUTPUT.split(str(err))[0].rstrip() or 'no details given'}",
        do="check that the object exists, that you may read it, and that the store can be reached; then read again",
    )


def short_object_error(name: str, offset: int, nbytes: int, n_read: int) -> StoreReadError:
    """Return the error for an object that has `n_read` of the `nbytes` bytes that were requested at `offset`."""
    return StoreReadError(
        f"{name} is shorter than its shard index or its size said",
        tried=f"{nbytes} bytes at {offset}",
        found=f"{n_read} bytes",
        do="the object is truncated or was replaced while it was read: open the store again, or restore the object",
    )


def pieces_differ_error(name: str, found: str, *, never_cut: bool = False) -> PiecesDifferError:
    """Return the error for an object whose pieces are, or may be, of several versions; `found` says why.

    `never_cut` is that of `PiecesDifferError`.
    """
    err = PiecesDifferError(
        f"{name} cannot be read in pieces",
        tried="several requests for parts of it, which have to be of one version",
        found=found,
        do="read again once nothing writes to it",
    )
    err.never_cut = never_cut
    return err


def changed_error(name: str, index_version: Version, later_version: Version, key: str = "") -> ObjectChangedError:
    """Return the error for an object that was replaced while it was read; see `ObjectChangedError`."""
    err = ObjectChangedError(
        f"{name} was replaced while it was read",
        tried=f"version {index_version}, which its index was read from",
        found="no object" if later_version is None else f"version {later_version}",
        do="read again once nothing writes to it",
    )
    err.key = key
    err.index_version = index_version
    err.later_version = later_version
    return err
