"""`WholeObjects`: unsharded chunks, some of which were requested before the read began."""

from __future__ import annotations

from collections.abc import Sequence

from xarray_gpuzarr.fetch.ahead import RequestsAhead
from xarray_gpuzarr.fetch.source import Allocate, Edge, ObjectSource, Request
from xarray_gpuzarr.fetch.store_errors import ObjectTooLongError


class WholeObjects:
    """A `Pending` of whole objects. When made, it takes those requested ahead, and requests the other objects."""

    def __init__(self, ahead: RequestsAhead, requests: Sequence[Request], source: ObjectSource) -> None:
        self._requests = requests
        self._most_nbytes = ahead.most_nbytes
        self._taken = [ahead.take(key) for key, _ in requests]
        """For each object, the request made ahead; None if there was none."""
        remaining = [request for request, taken in zip(requests, self._taken, strict=True) if taken is None]
        self._remaining = source.start(remaining) if remaining else None

    def __call__(self, allocate: Allocate) -> list[memoryview | None]:
        """Wait for all answers, and return the bytes of each object; see `Pending`."""
        remaining = iter([] if self._remaining is None else self._remaining(allocate))
        data: list[memoryview | None] = []
        for (key, _), taken in zip(self._requests, self._taken, strict=True):
            if taken is None:
                data.append(next(remaining))
            else:
                data.append(_chunk_bytes(key, taken.answer(), self._most_nbytes))
        return data


def _chunk_bytes(key: str, answer: Edge | None, most_nbytes: int) -> memoryview | None:
    """Return all bytes of an object; None if it does not exist. Raises `ObjectTooLongError` if it is too long."""
    if answer is None:
        return None
    # A source may not know the length of an object, or may leave out the bytes of one that is too long.
    nbytes = max(answer.object_nbytes or 0, len(answer.data))
    if nbytes > most_nbytes:
        raise ObjectTooLongError(key, nbytes)
    return answer.data
