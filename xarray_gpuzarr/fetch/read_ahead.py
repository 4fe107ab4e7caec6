"""Prefetches a queue of requests, and skips some once a request shows that its bytes are in memory already."""

from __future__ import annotations

from collections.abc import Iterable

from xarray_gpuzarr.fetch.source import ByteSource, Request

_REST = 7
"""Requests that are not looked at after one whose bytes were in the page cache already: looking costs 5 us."""


class ReadAhead:
    """Prefetches the queued requests of one read. Safe to call from several threads."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._rest = 1  # the first request is carried out at once

    def __call__(self, requests: Iterable[Request]) -> None:
        """Let the system read ahead for requests that have just been queued."""
        for request in requests:
            if self._rest:
                self._rest -= 1
            elif not self._source.prefetch(*request):
                self._rest = _REST
