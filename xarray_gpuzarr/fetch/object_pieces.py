"""`ObjectPieces`: the long unsharded chunks that one read requests in pieces, as several requests are faster than one.

Another process may replace an object between two requests. So each answer must have the version of its object, and
these versions must be equal. The version of an object that was just written, or whose age is unknown, does not count:
the next version might look the same.
"""

from __future__ import annotations

from datetime import datetime
from typing import cast

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.remote.answers import Marks
from xarray_gpuzarr.fetch.remote.failures import is_final
from xarray_gpuzarr.fetch.source import Allocate, Edge, ObjectSource, Pending, RemoteSource, Version
from xarray_gpuzarr.fetch.store_errors import PiecesDifferError, pieces_differ_error
from xarray_gpuzarr.plan.byte_range import ByteRange
from xarray_gpuzarr.process.counters import counters

_NO_OBJECT: Version = "no object"
"""Version of a piece whose object does not exist."""


class ObjectPieces:
    """The objects of one read that are requested in pieces. Safe to use from several threads."""

    def __init__(self, source: ObjectSource) -> None:
        self._source = source
        self._versions: dict[str, Version] = {}
        """Version of the first piece of each object that has arrived."""

    def start(self, key: str, byte_range: ByteRange) -> Pending:
        """Request a piece of an object. The source must be remote.

        The returned function returns a list of one item: the bytes, fewer than requested if the object ends inside the
        piece, or None if the object does not exist. It raises `PiecesDifferError` if the piece may be of another
        version than earlier ones, and `StoreReadError` if the store fails.
        """
        finish_edge = cast("RemoteSource", self._source).start_range(key, byte_range)

        def finish(_allocate: Allocate) -> list[memoryview | None]:
            with counters.stage("fetch"):
                try:
                    edge = finish_edge()
                except StoreReadError as err:
                    if is_final(err):  # other errors may mean that the server sends whole objects only
                        raise
                    raise self._error(key, err.found) from err
            self._check(key, edge)
            if edge is None:
                return [None]
            counters.add(read_nbytes=len(edge.data))
            return [edge.data]

        return finish

    def _check(self, key: str, edge: Edge | None) -> None:
        """Raise `PiecesDifferError` unless a piece is of the version of the first one that arrived."""
        version = _NO_OBJECT if edge is None else edge.version
        if version is None:
            # For a piece behind the end of the object, `StoreSource` itself makes an answer, without bytes and without
            # a version. This answer does not show whether the store sends versions.
            ends_before = edge is not None and not edge.data
            found = "an object that ends before the piece" if ends_before else "answers without a version"
            raise self._error(key, found, never_cut=not ends_before)
        if edge is not None and not edge.settled:  # the next version might have the same tag and times
            # If the store sends no dates, none of its objects ever counts as old enough.
            is_dated = isinstance(version, Marks) and isinstance(version.modified, datetime)
            raise self._error(key, "an object that may have just been written", never_cut=not is_dated)
        first = self._versions.setdefault(key, version)
        if version != first:
            raise self._error(key, f"version {first}; version {version}")

    def _error(self, key: str, found: str, *, never_cut: bool = False) -> PiecesDifferError:
        return pieces_differ_error(f"{self._source.name}/{key}", found, never_cut=never_cut)
