"""What stores say with bytes of an object: which version it is, how long it is, and which of its bytes these are."""

from __future__ import annotations

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
    modified: datetime | None

    def __str__(self) -> str:
        length = None if self.nbytes is None else f"{self.nbytes} bytes"
        said = (self.etag, self.version_id, length, self.modified)
        return ", ".join(str(mark) for mark in said if mark is not None)


def strong_tag(version: Version) -> str | None:
    """Return what ``If-Match`` may ask for; None if the version has no such tag."""
    etag = version.etag if isinstance(version, Marks) else None
    return None if etag is None or etag.startswith("W/") else etag


OTHER = Answer(data=memoryview(b""), version=ANOTHER)
"""Of a server that was asked for one tag, and has another."""


def range_header(request: ByteRequest | None) -> dict[str, str]:
    """Return the header that asks for these bytes; none for the whole object."""
    if isinstance(request, RangeByteRequest):
        return {"Range": f"bytes={request.start}-{request.end - 1}"}
    if isinstance(request, SuffixByteRequest):
        return {"Range": f"bytes=-{request.suffix}"}
    return {} if request is None else {"Range": f"bytes={request.offset}-"}


def http_answer(data: bytes, headers: Mapping[str, str], request: ByteRequest | None) -> Answer:
    """Make sure that a body is what was asked for, and read what the headers say of the object."""
    said = headers.get("content-range")
    if request is None or said is None:  # a server that knows no ranges sends everything
        object_nbytes: int | None = len(data)
        first, end = _asked_for(request, len(data))
        wanted = memoryview(data)[first:end]
    else:
        span, _, length = said.removeprefix("bytes ").partition("/")
        first, end = (int(n) for n in span.split("-"))
        end += 1
        object_nbytes = int(length) if length.isdecimal() else None
        if (first, end) != _asked_for(request, object_nbytes or end) or end - first != len(data):
            raise OSError(f"the server answered {range_header(request)['Range']} with {said}, {len(data)} bytes")
        wanted = memoryview(data)
    modified, now = headers.get("last-modified"), headers.get("date")
    version, settled = version_of(
        Marks(
            headers.get("etag"),
            headers.get("x-amz-version-id"),
            object_nbytes,
            parsedate_to_datetime(modified) if modified else None,
        ),
        parsedate_to_datetime(now) if now else datetime.now(UTC),
    )
    return Answer(data=wanted, object_nbytes=object_nbytes, version=version, settled=settled)


def _asked_for(request: ByteRequest | None, total: int) -> tuple[int, int]:
    """Return the bytes that a request means in an object of a known length."""
    if isinstance(request, SuffixByteRequest):
        return max(0, total - request.suffix), total
    if isinstance(request, RangeByteRequest):
        return min(request.start, total), min(request.end, total)
    return (request.offset if isinstance(request, OffsetByteRequest) else 0), total


def version_of(marks: Marks, now: datetime) -> tuple[Version, bool]:
    """Return the version that a server's marks tell, and whether it is settled.

    A tag may be made of a time in whole seconds, as nginx makes it; so no tag of an object just written is trusted.
    """
    modified = marks.modified
    if modified is not None and modified.year < 1980:  # obstore, of a server that does not say
        modified, marks = None, marks._replace(modified=None)
    if marks.etag is None and marks.version_id is None and modified is None:
        return None, False
    return marks, modified is None or is_settled((now - modified).total_seconds())
