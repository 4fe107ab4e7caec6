"""`WholeObjects`: chunks that are objects of their own, some of which were asked for ahead."""

from __future__ import annotations

from collections.abc import Sequence

from xarray_gpuzarr.fetch.ahead import ObjectsAhead
from xarray_gpuzarr.fetch.source import Allocate, Edge, ObjectSource, ObjectTooLongError, Request


class WholeObjects:
    """A `Pending` of whole objects: those that were asked for ahead, and requests for the others."""

    def __init__(self, ahead: ObjectsAhead, requests: Sequence[Request], source: ObjectSource) -> None:
        self._requests, self._most_nbytes = requests, ahead.most_nbytes
        self._taken = [ahead.take(key) for key, _ in requests]
        remaining = [request for request, taken in zip(requests, self._taken, strict=True) if taken is None]
        self._remaining = source.start(remaining) if remaining else None

    def __call__(self, allocate: Allocate) -> list[memoryview | None]:
        """Wait for all of them."""
        remaining = iter([] if self._remaining is None else self._remaining(allocate))
        data: list[memoryview | None] = []
        for (key, _), taken in zip(self._requests, self._taken, strict=True):
            data.append(next(remaining) if taken is None else _all_of(key, taken.answer(), self._most_nbytes))
        return data


def _all_of(key: str, edge: Edge | None, most_nbytes: int) -> memoryview | None:
    """Return all bytes of an object, None if there is none; raise `ObjectTooLongError` if no chunk is that long."""
    if edge is None:
        return None
    nbytes = max(edge.object_nbytes or 0, len(edge.data))
    if nbytes > most_nbytes:
        raise ObjectTooLongError(key, nbytes)
    return edge.data
