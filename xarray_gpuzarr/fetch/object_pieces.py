"""`ObjectPieces`: objects that one read requests in pieces, each of which has to be of the same version.

A long raw chunk that is an object arrives sooner by several requests. Another process may replace the object between
two of them, so every answer has to bear the version of its object, and all versions have to be equal. Marks of an
object that was just written, or whose age is not known, may be those of another version as well.
"""

from __future__ import annotations

from datetime import datetime
from typing import cast

from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.remote.answers import Marks
from xarray_gpuzarr.fetch.remote.failures import is_final
from xarray_gpuzarr.fetch.source import (
    Allocate,
    Edge,
    ObjectSource,
    Pending,
    PiecesDifferError,
    RemoteSource,
    Version,
    pieces_differ,
)
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
        """Request a piece of an object, from a source that is remote.

        Finishing returns None for an object that does not exist, and fewer bytes than requested for one that ends
        within the piece. It raises `PiecesDifferError` if the piece is not of the version of earlier ones, and
        `StoreReadError` if the store failed.
        """
        finish_edge = cast("RemoteSource", self._source).start_range(key, byte_range)

        def finish(_allocate: Allocate) -> list[memoryview | None]:
            with counters.stage("fetch"):
                try:
                    edge = finish_edge()
                except StoreReadError as err:
                    if is_final(err):  # all else may mean that the server sends whole objects only
                        raise
                    raise self._differ(key, err.found) from err
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
            ends_before = edge is not None and not edge.data
            found = "an object that ends before the piece" if ends_before else "answers that bear no version"
            raise self._differ(key, found, bears_no_version=not ends_before)
        if edge is not None and not edge.settled:  # another version may bear the same marks
            is_dated = isinstance(version, Marks) and isinstance(version.modified, datetime)
            raise self._differ(key, "an object that may have just been written", bears_no_version=not is_dated)
        first = self._versions.setdefault(key, version)
        if version != first:
            raise self._differ(key, f"version {first}; version {version}")

    def _differ(self, key: str, found: str, *, bears_no_version: bool = False) -> PiecesDifferError:
        return pieces_differ(f"{self._source.name}/{key}", found, bears_no_version=bears_no_version)
