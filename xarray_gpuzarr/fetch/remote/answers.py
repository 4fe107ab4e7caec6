"""Parses what stores say with the bytes of an object: its version, its length, and which of its bytes these are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from xarray_gpuzarr.fetch.source import ANOTHER, UNTAGGED, Version, is_settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Bytes of an object, and what the store said of it."""

    data: memoryview
    object_nbytes: int | None = None
    version: Version = None
    settled: bool = False

    def is_of(self, version: Version) -> bool:
        """Say whether the bytes are of a version; of any, if it is None."""
        return version is None or (UNTAGGED if self.version is None else self.version) == version


class Marks(NamedTuple):
    """What a server says that tells a version of an object from others."""

    etag: str | None
    version_id: str | None
    nbytes: int | None
    modified: datetime | str | None
    """The text itself where it is no date."""

    def __str__(self) -> str:
        length = None if self.nbytes is None else f"{self.nbytes} bytes"
        said = (self.etag, self.version_id, length, self.modified)
        return ", ".join(str(mark) for mark in said if mark is not None)


def strong_tag(version: Version) -> str | None:
    """Return what ``If-Match`` may ask for; None if the version has no such tag."""
    etag = version.etag if isinstance(version, Marks) else None
    return None if etag is None or etag.startswith("W/") else etag


class WrongBytesError(OSError):
    """A body is not the bytes that its headers tell: the server's fault, which another request may not meet."""


OTHER = Answer(data=memoryview(b""), version=ANOTHER)
"""Answer of a server that was asked for one tag, and has another."""


def first_of_rest(request: ByteRequest | None) -> int | None:
    """Return the first byte of what is asked for, if that is all from there on to the end of an object."""
    if request is None:
        return 0
    return request.offset if isinstance(request, OffsetByteRequest) else None


def length_alone(
    request: ByteRequest | None, nbytes: int, most_nbytes: int, *, is_whole: bool = False
) -> Answer | None:
    """Return an answer without bytes for a request to the end of an object that is longer than `most_nbytes`.

    `nbytes` are sent; with `is_whole` they are all of the object, whatever was asked for.
    """
    first = first_of_rest(request)
    length = nbytes if is_whole else nbytes + (first or 0)
    return None if first is None or length <= most_nbytes else Answer(data=memoryview(b""), object_nbytes=length)


def range_header(request: ByteRequest | None) -> dict[str, str]:
    """Return the header that asks for these bytes; none for the whole object."""
    if isinstance(request, RangeByteRequest):
        return {"Range": f"bytes={request.start}-{request.end - 1}"}
    if isinstance(request, SuffixByteRequest):
        return {"Range": f"bytes=-{request.suffix}"}
    return {} if request is None else {"Range": f"bytes={request.offset}-"}


class Body(NamedTuple):
    """What is kept of a body: as much of it as an answer needs."""

    data: bytes
    first: int
    """First byte of `data`, counted from the start of the body."""
    nbytes: int
    """Length of the body, or more than an answer may have."""


def http_answer(
    body: Body, headers: Mapping[str, str], request: ByteRequest | None, status: int, most_nbytes: int
) -> Answer:
    """Make sure that a body is what was asked for, and read what the headers say of the object; see `Client.get`.

    Raises `OSError` if the body is of other bytes, or the status says that it is none of the object.
    """
    if status not in (_WHOLE, _TRANSFORMED, _PARTIAL):
        raise OSError(f"the server answered with status {status}, {body.nbytes} bytes")
    is_all = is_whole(headers, status)
    refused = length_alone(request, body.nbytes, most_nbytes, is_whole=is_all)
    if refused is not None:
        return refused
    content = memoryview(body.data)
    if is_all:
        first, end = _asked_for(request, body.nbytes)
        if isinstance(request, RangeByteRequest) and request.start and body.nbytes == _most_nbytes(request):
            raise OSError(f"the server answered with status {status}, and not with 206 and a Content-Range")
        content = content[first - body.first : end - body.first]
        # Of as many bytes as the end that was asked for, nobody can say whether they are all.
        object_nbytes = None if body.nbytes == _most_nbytes(request) else body.nbytes
    else:
        span = _span(headers.get("content-range"))
        object_nbytes = None if span is None else span[2]
        _check_bytes(body.nbytes, span, request)
    marks = Marks(
        headers.get("etag"), headers.get("x-amz-version-id"), object_nbytes, _date(headers.get("last-modified"))
    )
    version, settled = version_of(marks, _date(headers.get("date")) or datetime.now(UTC))
    return Answer(data=content, object_nbytes=object_nbytes, version=version, settled=settled)


def is_whole(headers: Mapping[str, str], status: int) -> bool:
    """Say whether a body is all of an object: a server that knows no ranges sends everything."""
    return status != _PARTIAL and _span(headers.get("content-range")) is None


_WHOLE, _TRANSFORMED, _PARTIAL = 200, 203, 206
_CONTENT_RANGE = re.compile(r"bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.IGNORECASE)

Span = tuple[int, int, int | None]
"""First byte, the one behind the last, and the length of the object if it is told."""


def _span(said: str | None) -> Span | None:
    """Return what ``Content-Range`` says; None if that makes no sense."""
    match = _CONTENT_RANGE.fullmatch((said or "").strip())
    if match is None:
        return None
    first, end, total = int(match[1]), int(match[2]) + 1, int(match[3]) if match[3].isdecimal() else None
    return (first, end, total) if first < end and (total is None or end <= total) else None


def _check_bytes(nbytes: int, span: Span | None, request: ByteRequest | None) -> None:
    """Raise unless a partial answer has the bytes that were asked for; without a span, by their number alone."""
    if span is None:
        most = _most_nbytes(request)
        is_right = most is None or nbytes <= most
    else:
        first, end, total = span
        is_right = (first, end) == _asked_for(request, total or end) and end - first == nbytes
    if not is_right:
        asked = range_header(request).get("Range", "a request for the whole object")
        sent = "bytes that it does not name" if span is None else f"bytes {span[0]} to {span[1] - 1}"
        raise WrongBytesError(f"the server answered {asked} with {sent}, {nbytes} bytes")


def _date(text: str | None) -> datetime | str | None:
    """Return the time that a header tells, or the header itself if that cannot be read; servers send many forms."""
    if not text:
        return None
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return text


def _most_nbytes(request: ByteRequest | None) -> int | None:
    """Return the bytes that an answer may have, as far as the request tells."""
    if isinstance(request, RangeByteRequest):
        return request.end - request.start
    return request.suffix if isinstance(request, SuffixByteRequest) else None


def _asked_for(request: ByteRequest | None, total: int) -> tuple[int, int]:
    """Return the bytes that a request means in an object of a known length."""
    if isinstance(request, SuffixByteRequest):
        return max(0, total - request.suffix), total
    if isinstance(request, RangeByteRequest):
        return min(request.start, total), min(request.end, total)
    return (request.offset if isinstance(request, OffsetByteRequest) else 0), total


_EMPTY_TAGS = {"", '""', 'W/""', "*"}
"""They are the same for all versions."""


def version_of(marks: Marks, now: datetime | str) -> tuple[Version, bool]:
    """Return the version that a server's marks tell, and whether it is settled.

    A tag may be made of a time in whole seconds, as nginx makes it; so no tag of an object just written is trusted, nor
    one of an object whose age cannot be told.
    """
    modified = marks.modified
    if isinstance(modified, datetime) and modified.year < 1980:  # obstore, of a server that does not say
        modified, marks = None, marks._replace(modified=None)
    if marks.etag in _EMPTY_TAGS:
        marks = marks._replace(etag=None)
    if marks.etag is None and not marks.version_id and modified is None:
        return None, False
    if modified is None:
        return marks, bool(marks.version_id)
    if isinstance(modified, str) or isinstance(now, str):
        return marks, False
    return marks, is_settled((now - modified).total_seconds())
