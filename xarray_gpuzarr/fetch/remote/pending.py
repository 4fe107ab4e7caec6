"""Requests to a store that are under way; finishing one checks the answer's length and version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zarr
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest

from xarray_gpuzarr.fetch.remote.answers import Answer
from xarray_gpuzarr.fetch.remote.under_way import Reply
from xarray_gpuzarr.fetch.source import (
    UNTAGGED,
    Allocate,
    Edge,
    ObjectTooLongError,
    Version,
    changed,
    failed,
    short,
)
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that is under way."""

    reply: Reply[Answer | None]
    key: str
    name: str
    request: ByteRequest | None

    def answer(self) -> Answer | None:
        """Wait for the answer; None if there is no such object."""
        limit_s = zarr.config.get("async.timeout", None)
        try:
            return self.reply.result(limit_s)
        except Exception as err:  # a store may raise anything; it is named in the message
            if limit_s is not None and isinstance(err, TimeoutError) and not self.reply.is_answered:
                self.reply.cancel()
                err = TimeoutError(f"no answer in {limit_s} s, zarr's async.timeout")
            raise failed(self.name, f"read {_words(self.request)}", err) from err


def _words(request: ByteRequest | None) -> str:
    if isinstance(request, RangeByteRequest):
        return f"{request.end - request.start} bytes at {request.start}"
    if isinstance(request, SuffixByteRequest):
        return f"the last {request.suffix} bytes"
    return "the whole object" if request is None else f"all bytes from {request.offset} on"


class WaitingRanges:
    """Byte ranges that were asked for: a `Pending`."""

    __slots__ = ("_most_nbytes", "_version", "_wanted", "asked")

    def __init__(self, asked: Sequence[Asked], ranges: Sequence[ByteRange], version: Version, most_nbytes: int) -> None:
        self.asked, self._wanted, self._version = asked, ranges, version
        self._most_nbytes = most_nbytes

    def __call__(self, _allocate: Allocate) -> list[memoryview | None]:
        """Wait for the bytes of all."""
        return [self._checked(*each) for each in zip(self.asked, self._wanted, strict=True)]

    def _checked(self, asked: Asked, byte_range: ByteRange) -> memoryview | None:
        """Wait for a range; refuse one of another version or of another length, and an object that is too long."""
        answer, version = asked.answer(), self._version
        if answer is None:
            if version is None or version == UNTAGGED:
                return None
            raise changed(asked.name, version, None, asked.key)
        if not answer.is_of(version):
            raise changed(asked.name, version, answer.version or UNTAGGED, asked.key)
        if byte_range.nbytes == WHOLE_OBJECT:
            nbytes = max(answer.object_nbytes or 0, byte_range.offset + len(answer.data))
            if nbytes > self._most_nbytes:
                raise ObjectTooLongError(asked.key, nbytes)
        elif byte_range.nbytes != len(answer.data):
            raise short(asked.name, byte_range.offset, byte_range.nbytes, len(answer.data))
        return answer.data


def edge_of(asked: Asked) -> Edge | None:
    """Wait for the first or last bytes of an object, or for all of it."""
    answer = asked.answer()
    if answer is None:
        return None
    return Edge(data=answer.data, object_nbytes=answer.object_nbytes, version=answer.version, settled=answer.settled)
