"""`RangeServer`: an HTTP server for a directory on loopback, started as a process of its own and ended by its id."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Self, TypedDict

_READY_SECONDS = 20


class Fault(TypedDict, total=False):
    """What to do to requests instead of answering them properly."""

    kind: str
    """``hang``; ``status``; ``cut``, in the middle of the body; ``short``, a body that is shorter but says so;
    ``wrong range``, other bytes than were asked for, and so declared; ``wrong bytes``, the same undeclared;
    ``no ranges``, the whole object; ``slow``, `value` seconds late; ``replaced``, by the file `value` just before."""
    value: float | str
    """Status, seconds, or a path below the directory."""
    path: str
    """Only requests whose path contains this."""
    method: str
    """Only this method; ``GET`` if left out."""
    skip: int
    """Requests to answer properly first."""
    times: int
    """Requests to spoil; all if left out."""


class LoggedRequest(TypedDict):
    """One request for an object or a listing."""

    method: str
    path: str
    range: str | None
    headers: dict[str, str]
    """Names in small letters."""
    query: str
    time: float
    """Seconds of a clock of the server, when all of the request had come."""


class RangeServer:
    """A server of its own process, on loopback, for the time of a ``with`` block.

    Parameters
    ----------
    directory : pathlib.Path
        What it serves; the first folder of a path is the bucket, for clients that speak S3.
    latency_s : float
        Seconds that every answer is held back.
    """

    def __init__(self, directory: Path, latency_s: float = 0.0) -> None:
        self.directory = directory
        self._command = [sys.executable, "-m", "helpers.stores.serve_ranges", str(directory)]
        self._latency_s = latency_s

    def __enter__(self) -> Self:
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.set(latency_s=self._latency_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def url(self) -> str:
        """Address of the directory."""
        return f"http://127.0.0.1:{self.port}"

    def set(self, **settings: object) -> None:
        """Change `latency_s`, `bytes_per_s` of all answers together, `bytes_per_s_each`, `faults` or `log`."""
        self._ask("PUT", json.dumps(settings))

    def spoil(self, *faults: Fault) -> None:
        """Replace the faults that requests meet; none makes the server honest again."""
        self.set(faults=faults)

    def requests(self) -> list[LoggedRequest]:
        """Return what was asked for since the last call, and forget it."""
        log: list[LoggedRequest] = json.loads(self._ask("GET"))["log"]
        self.set(log=[])
        return log

    def wait_for(self, n: int) -> None:
        """Wait until so many requests have come since `requests` was last called."""
        deadline = time.monotonic() + _READY_SECONDS
        while len(json.loads(self._ask("GET"))["log"]) < n:
            assert time.monotonic() < deadline, f"fewer than {n} requests"
            time.sleep(0.02)

    def most_at_once(self) -> int:
        """Return the most requests that were under way at once since the last call, and forget it."""
        most: int = json.loads(self._ask("GET"))["most_at_once"]
        self.set(most_at_once=0)
        return most

    def _ask(self, method: str, body: str | None = None) -> bytes:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_READY_SECONDS)
        try:
            connection.request(method, "/-/", body)
            return connection.getresponse().read()
        finally:
            connection.close()
