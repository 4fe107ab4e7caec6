"""`Answer`: bytes of an object, with its version, its length and their range, as parsed from the answer of a store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest

from xarray_gpuzarr.fetch.source import OTHER_VERSION, UNTAGGED, Version, is_settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Bytes of an object, and what the store says about it."""

    data: memoryview
    """The bytes, as uint8 in host memory."""
    object_nbytes: int | None = None
    """Length of the whole object in bytes; None if the store does not say."""
    version: Version = None
    """Version of the object; None if the store does not say."""
    settled: bool = False
    """Whether any later change of the object will give it another version."""

    def is_of(self, version: Version) -> bool:
        """Whether the bytes are of a version. True for None, which stands for any version."""
        if version is None:
            return True
        if version == UNTAGGED:  # the index came without a version
            return self.version is None
        return self.version == version


class Marks(NamedTuple):
    """The values in a server's answer that may differ between versions of an object."""

    etag: str | None
    version_id: str | None
    nbytes: int | None
    """Length of the object in bytes."""
    modified: datetime | str | None
    """Time of the last modification; the header's text if it is not a date."""

    def __str__(self) -> str:
        length = None if self.nbytes is None else f"{self.nbytes} bytes"
        marks = (self.etag, self.version_id, length, self.modified)
        return ", ".join(str(mark) for mark in marks if mark is not None)


def strong_tag(version: Version) -> str | None:
    """Return the ETag of a version for an ``If-Match`` header; None if it has none, or a weak one."""
    etag = version.etag if isinstance(version, Marks) else None
    return None if etag is None or etag.startswith("W/") else etag


class WrongBytesError(OSError):
    """A body has other bytes than its headers say. That is a fault of the server, whose next answer may be right."""


OTHER_VERSION_ANSWER = Answer(data=memoryview(b""), version=OTHER_VERSION)
"""Answer of a server that was asked for an ETag, and whose object has another one."""


def open_range_start(request: ByteRequest | None) -> int | None:
    """Return where a request without an end starts: 0 for the whole object.

    Returns None for a request of limited length: a range, or the last bytes.
    """
    if request is None:
        return 0
    return request.offset if isinstance(request, OffsetByteRequest) else None


def length_only_answer(
    request: ByteRequest | None, nbytes: int, most_nbytes: int, *, is_whole: bool = False
) -> Answer | None:
    """Return an answer without bytes if an object is too long to be read to its end, else None.

    Parameters
    ----------
    request : zarr.abc.store.ByteRequest or None
        The requested bytes; None for all of them. If their number is limited, no object is too long.
    nbytes : int
        Length of the answer's body in bytes.
    most_nbytes : int
        Length in bytes above which an object is too long.
    is_whole : bool
        Whether the body is the whole object, although a part was requested.
    """
    start = open_range_start(request)
    if start is None:
        return None
    object_nbytes = nbytes if is_whole else nbytes + start
    if object_nbytes <= most_nbytes:
        return None
    return Answer(data=memoryview(b""), object_nbytes=object_nbytes)


def range_header(request: ByteRequest | None) -> dict[str, str]:
    """Return the ``Range`` header of a request; no header for the whole object."""
    if isinstance(request, RangeByteRequest):
        return {"Range": f"bytes={request.start}-{request.end - 1}"}
    if isinstance(request, SuffixByteRequest):
        return {"Range": f"bytes=-{request.suffix}"}
    return {} if request is None else {"Range": f"bytes={request.offset}-"}


class Body(NamedTuple):
    """The part of an HTTP body that an answer needs."""

    data: bytes
    first: int
    """Offset of `data` in the body."""
    nbytes: int
    """Length of the body in bytes. If reading stopped early, since it was too long, the number of bytes read so far."""


def http_answer(
    body: Body, headers: Mapping[str, str], request: ByteRequest | None, status: int, most_nbytes: int
) -> Answer:
    """Return the answer of an HTTP server, after checking that it has the requested bytes.

    Parameters
    ----------
    body : Body
        The body, or the part of it that was read.
    headers : mapping of str to str
        The headers; their names are in lower case, or compared without case.
    request : zarr.abc.store.ByteRequest or None
        The requested bytes; None for all of them.
    status : int
        The HTTP status.
    most_nbytes : int
        Length in bytes above which an object is too long; see `length_only_answer`.

    Raises
    ------
    WrongBytesError
        If the body has other bytes than requested.
    OSError
        If the status is not one of an answer with bytes of the object, or if the answer does not tell whether the body
        is the requested range or a whole object.
    """
    if status not in (_WHOLE, _TRANSFORMED, _PARTIAL):
        raise OSError(f"the server answered with status {status}, {body.nbytes} bytes")
    is_whole_object = is_whole(headers, status)
    too_long = length_only_answer(request, body.nbytes, most_nbytes, is_whole=is_whole_object)
    if too_long is not None:
        return too_long
    content = memoryview(body.data)
    if is_whole_object:
        first, end = _requested_range(request, body.nbytes)
        # A body that is as long as the requested range may be a whole object of that length, or the range, sent
        # without saying so. For a range from byte 0 and for the last bytes, the bytes are the same either way. For
        # other ranges they are not.
        may_be_range = body.nbytes == _max_nbytes(request)
        is_ambiguous = may_be_range and isinstance(request, RangeByteRequest) and request.start > 0
        if is_ambiguous:
            raise OSError(f"the server answered with status {status}, and not with 206 and a Content-Range")
        content = content[first - body.first : end - body.first]
        object_nbytes = None if may_be_range else body.nbytes
    else:
        content_range = _parse_content_range(headers.get("content-range"))
        object_nbytes = None if content_range is None else content_range[2]
        _check_bytes(body.nbytes, content_range, request)
    marks = Marks(
        headers.get("etag"), headers.get("x-amz-version-id"), object_nbytes, _date(headers.get("last-modified"))
    )
    version, settled = version_of(marks, _date(headers.get("date")) or datetime.now(UTC))
    return Answer(data=content, object_nbytes=object_nbytes, version=version, settled=settled)


def is_whole(headers: Mapping[str, str], status: int) -> bool:
    """Whether a body is a whole object, as from a server that does not support ranges.

    Some servers answer a request for a range with a ``Content-Range``, but not with status 206.
    """
    return status != _PARTIAL and _parse_content_range(headers.get("content-range")) is None


_WHOLE, _TRANSFORMED, _PARTIAL = 200, 203, 206
"""Statuses of answers with bytes of the object. 203 is that of a proxy that has changed something."""
# With at most 18 digits, the numbers fit into int64.
_CONTENT_RANGE = re.compile(r"bytes\s+(\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.IGNORECASE)

ContentRange = tuple[int, int, int | None]
"""First byte, last byte + 1, and the length of the object, which is None if the server does not say."""


def _parse_content_range(header: str | None) -> ContentRange | None:
    """Return what a ``Content-Range`` header says; None if there is none, or if it makes no sense."""
    match = _CONTENT_RANGE.fullmatch((header or "").strip())
    if match is None:
        return None
    first = int(match[1])
    end = int(match[2]) + 1
    total = int(match[3]) if match[3].isdecimal() else None
    is_possible = first < end and (total is None or end <= total)
    return (first, end, total) if is_possible else None


def _check_bytes(nbytes: int, content_range: ContentRange | None, request: ByteRequest | None) -> None:
    """Raise `WrongBytesError` unless a partial answer has the requested bytes.

    If the answer does not say which bytes it has, only their number is checked: it must not exceed the requested one.
    """
    if content_range is None:
        max_nbytes = _max_nbytes(request)
        is_right = max_nbytes is None or nbytes <= max_nbytes
    else:
        first, end, total = content_range
        # If the server does not tell the length of the object, assume that the object ends where the body ends. So a
        # body that is shorter than the requested range is accepted.
        object_nbytes = end if total is None else total
        is_right = (first, end) == _requested_range(request, object_nbytes) and end - first == nbytes
    if not is_right:
        requested = range_header(request).get("Range", "a request for the whole object")
        sent = "bytes that it does not name"
        if content_range is not None:
            sent = f"bytes {content_range[0]} to {content_range[1] - 1}"
        raise WrongBytesError(f"the server answered {requested} with {sent}, {nbytes} bytes")


def _date(text: str | None) -> datetime | str | None:
    """Return the time in a header; None without a header.

    Servers use many formats. A header that cannot be parsed is returned as it is.
    """
    if not text:
        return None
    try:
        date = parsedate_to_datetime(text)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return date.astimezone(UTC)
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return text


def _max_nbytes(request: ByteRequest | None) -> int | None:
    """Return the largest number of bytes that a request is for; None if it has no limit."""
    if isinstance(request, RangeByteRequest):
        return request.end - request.start
    return request.suffix if isinstance(request, SuffixByteRequest) else None


def _requested_range(request: ByteRequest | None, total: int) -> tuple[int, int]:
    """Return the first requested byte and the last one + 1, in an object of `total` bytes."""
    if isinstance(request, SuffixByteRequest):
        return max(0, total - request.suffix), total
    if isinstance(request, RangeByteRequest):
        return min(request.start, total), min(request.end, total)
    if isinstance(request, OffsetByteRequest):
        return request.offset, total
    return 0, total


_EMPTY_TAGS = {"", '""', 'W/""', "*"}
"""ETags that say nothing, since they are the same for all versions."""


def version_of(marks: Marks, now: datetime | str) -> tuple[Version, bool]:
    """Return the version that consists of a server's marks, and whether it is settled.

    An ETag may be made of a time in whole seconds, as nginx does. So the version is not settled if the object was just
    written, or if its age is unknown. Without a time of modification, only a version id settles it.

    `now` is the time at the server, or at this machine if the server sends none; or the text of an unreadable header.
    """
    modified = marks.modified
    # obstore returns a time in 1970 if the server has sent none. No object is that old.
    if isinstance(modified, datetime) and modified.year < 1980:
        modified = None
        marks = marks._replace(modified=None)
    if marks.etag in _EMPTY_TAGS:
        marks = marks._replace(etag=None)
    if marks.etag is None and not marks.version_id and modified is None:
        return None, False  # only the length is left, and other bytes may have the same one
    if modified is None:
        return marks, bool(marks.version_id)
    if isinstance(modified, str) or isinstance(now, str):
        return marks, False
    return marks, is_settled((now - modified).total_seconds())
