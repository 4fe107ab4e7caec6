"""`OutstandingRequest`: a request that was sent to a store. Its answer becomes bytes, an `Edge`, or an error."""

from __future__ import annotations

from dataclasses import dataclass

import zarr
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest

from xarray_gpuzarr.fetch.remote.answers import Answer
from xarray_gpuzarr.fetch.remote.under_way import Reply
from xarray_gpuzarr.fetch.source import UNTAGGED, Edge, Version
from xarray_gpuzarr.fetch.store_errors import ObjectTooLongError, changed_error, failed_error, short_object_error
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange


@dataclass(frozen=True, slots=True, kw_only=True)
class OutstandingRequest:
    """A request that was sent, or that waits until the limits on requests let it be sent."""

    reply: Reply[Answer | None]
    key: str
    """Store key of the object."""
    name: str
    """Name of the object, as errors show it."""
    request: ByteRequest | None
    """The requested bytes; None for all of them."""

    def answer(self) -> Answer | None:
        """Wait for the answer and return it; None if there is no such object. Called once.

        Raises `StoreReadError` if the store fails, or does not answer within zarr's ``async.timeout``.
        """
        limit_s = zarr.config.get("async.timeout", None)
        try:
            return self.reply.result(limit_s)
        except Exception as err:  # a store may raise anything
            # Without an answer, the error comes from `result`, whose limit is over, and not from the store.
            if limit_s is not None and isinstance(err, TimeoutError) and not self.reply.is_answered:
                self.reply.cancel()
                err = TimeoutError(f"no answer in {limit_s} s, zarr's async.timeout")
            raise failed_error(self.name, f"read {_describe(self.request)}", err) from err


def _describe(request: ByteRequest | None) -> str:
    """Return the bytes of a request in words, for errors."""
    if isinstance(request, RangeByteRequest):
        return f"{request.end - request.start} bytes at {request.start}"
    if isinstance(request, SuffixByteRequest):
        return f"the last {request.suffix} bytes"
    return "the whole object" if request is None else f"all bytes from {request.offset} on"


def finish_range(
    outstanding: OutstandingRequest, byte_range: ByteRange, version: Version, most_nbytes: int
) -> memoryview | None:
    """Wait for a byte range of an object and return it; None if there is no such object.

    Raises the errors of `ObjectSource.start`.
    """
    answer = outstanding.answer()
    if answer is None:
        # If no version is known, the object may always have been missing. The decoder knows what that means: the fill
        # value for an unsharded chunk, an error for a shard whose index has been read.
        if version is None or version == UNTAGGED:
            return None
        raise changed_error(outstanding.name, version, None, outstanding.key)
    if not answer.is_of(version):
        later_version = answer.version or UNTAGGED  # None would stand for a missing object
        raise changed_error(outstanding.name, version, later_version, outstanding.key)
    if byte_range.nbytes == WHOLE_OBJECT:
        nbytes = max(answer.object_nbytes or 0, byte_range.offset + len(answer.data))  # the store may not tell lengths
        if nbytes > most_nbytes:
            raise ObjectTooLongError(outstanding.key, nbytes)
    elif byte_range.nbytes != len(answer.data):
        raise short_object_error(outstanding.name, byte_range.offset, byte_range.nbytes, len(answer.data))
    return answer.data


def finish_edge(outstanding: OutstandingRequest) -> Edge | None:
    """Wait for bytes of an object, of whichever version, and return them; None if there is no such object."""
    answer = outstanding.answer()
    if answer is None:
        return None
    return Edge(data=answer.data, object_nbytes=answer.object_nbytes, version=answer.version, settled=answer.settled)
