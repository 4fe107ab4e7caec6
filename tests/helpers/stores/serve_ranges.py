"""A program: an HTTP server for a directory, with byte ranges, ETags, S3's way to list, latency, faults and a log.

It stores and removes objects, too.

`range_server` starts ``python -m helpers.stores.serve_ranges DIRECTORY``, which prints its port and serves until its
input ends, or it is ended.
Objects are files; requests need no signature. What is said below ``/-/`` sets and shows the state of the server.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape, unescape

from helpers.stores.range_server import Fault, LoggedRequest

_HANG_SECONDS = 3600
_PIECE_NBYTES = 1 << 20
_SHORT_PIECE_NBYTES = 1 << 18
"""Sent at once over a connection of a limited rate, of which a short answer takes its part, too."""


class Server(ThreadingHTTPServer):
    """One for many connections at once."""

    daemon_threads = True
    request_queue_size = 256  # a connection that finds no place is asked for again after a second

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients hang up as they please."""


class Handler(BaseHTTPRequestHandler):
    """What answers requests for objects by `_answer`, at once and without a word."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass


class _Server(Server):
    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.directory = directory
        self.latency_s = 0.0
        self.bytes_per_s = math.inf
        """What the line lets through, shared by all answers."""
        self.bytes_per_s_each = math.inf
        """What each connection lets through."""
        self._line_is_free = 0.0
        self.log: list[LoggedRequest] = []
        self.parts: dict[tuple[str, str], bytes] = {}
        """Parts of uploads, by upload and number."""
        self.faults: list[Fault] = []
        self.most_at_once = 0
        self._n_at_once = 0
        self._lock = threading.Lock()

    def enter(self, change: int) -> None:
        """Count a request that begins to wait for its answer, or ends to."""
        with self._lock:
            self._n_at_once += change
            self.most_at_once = max(self.most_at_once, self._n_at_once)

    def wait_for_line(self, nbytes: int) -> None:
        """Wait until so many more bytes may be sent."""
        with self._lock:
            now = time.monotonic()
            self._line_is_free = max(now, self._line_is_free) + nbytes / self.bytes_per_s
            wait_s = self._line_is_free - now
        if wait_s > 0:
            time.sleep(wait_s)

    def fault_for(self, method: str, path: str) -> Fault | None:
        """Return the first fault that this request meets, counting it."""
        with self._lock:
            for fault in self.faults:
                if method != fault.get("method", "GET") or fault.get("path", "") not in path:
                    continue
                if fault.get("skip", 0) > 0:
                    fault["skip"] -= 1
                    return None
                if fault.get("times", 1) > 0:
                    if "times" in fault:
                        fault["times"] -= 1
                    return fault
        return None


class _Handler(Handler):
    wbufsize = 1 << 16
    server: _Server
    _is_free = 0.0
    """When this connection may send more."""

    def do_GET(self) -> None:
        if self.path.startswith("/-/"):
            said = {"log": self.server.log, "most_at_once": self.server.most_at_once}
            self._say(HTTPStatus.OK, json.dumps(said).encode(), "application/json")
            return
        self._answer()

    def do_PUT(self) -> None:
        body = self._body()
        if not self.path.startswith("/-/"):
            self._change(lambda: self._store(body))
            return
        for name, value in json.loads(body).items():
            setattr(self.server, name, value)
        self._say(HTTPStatus.OK)

    def handle_expect_100(self) -> bool:
        """Let a client that asks whether to send its body know at once."""
        is_told = super().handle_expect_100()
        self.wfile.flush()
        return is_told

    def do_DELETE(self) -> None:
        self._change(lambda: self._file().unlink(missing_ok=True))

    def _body(self) -> bytes:
        """Return what is sent with a request, taken no faster than the connection and the line let it through."""
        length, pieces = int(self.headers.get("Content-Length", 0)), []
        while length > 0:
            piece = self.rfile.read(min(length, _SHORT_PIECE_NBYTES))
            if not piece:
                break
            self.server.wait_for_line(len(piece))
            self._wait_for_connection(len(piece))
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)

    def do_POST(self) -> None:
        """Remove objects that a list names, or begin or end an upload in parts, as S3 does."""
        body = self._body().decode()
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "uploads" in query:
            upload = f"<UploadId>{uuid4().hex}</UploadId>"
            answer = f"<InitiateMultipartUploadResult>{upload}</InitiateMultipartUploadResult>"
            self._change(lambda: None, answer.encode())
            return
        if "uploadId" in query:
            numbers = re.findall("<PartNumber>(.*?)</PartNumber>", body)
            answer = '<CompleteMultipartUploadResult><ETag>"whole"</ETag></CompleteMultipartUploadResult>'
            self._change(lambda: self._join(query["uploadId"][0], numbers), answer.encode())
            return
        keys = re.findall("<Key>(.*?)</Key>", body)
        removed = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        bucket = self._file()
        answer = f"<DeleteResult>{removed}</DeleteResult>".encode()
        files = [bucket / unescape(key) for key in keys]  # s3fs names what it takes for folders, too
        self._change(lambda: [file.unlink(missing_ok=True) for file in files if not file.is_dir()], answer)

    def _change(self, change: Callable[[], object], answer: bytes = b"") -> None:
        """Change what is stored, unless a fault says otherwise."""
        url = urlsplit(self.path)
        self._note(url.path)
        self._hold_back()
        fault = self.server.fault_for(self.command, url.path)
        if fault is None or self._before(fault):
            change()
            self._say(HTTPStatus.OK, answer, "application/xml", ETag='"of what was sent"')

    def _store(self, body: bytes) -> None:
        """Keep a part of an upload, or let an object take the place of the one before."""
        query = parse_qs(urlsplit(self.path).query)
        if "uploadId" in query:
            self.server.parts[query["uploadId"][0], query["partNumber"][0]] = body
        else:
            self._replace(body)

    def _join(self, upload: str, numbers: Sequence[str]) -> None:
        """Let the parts of an upload become an object."""
        self._replace(b"".join([self.server.parts.pop((upload, number)) for number in numbers]))

    def _replace(self, body: bytes) -> None:
        """Let an object take the place of the one before."""
        file = self._file()
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{threading.get_ident()}")
        partial.write_bytes(body)
        partial.replace(file)

    def _note(self, path: str) -> None:
        """Write a request into the log."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        said: LoggedRequest = {
            "method": self.command, "path": path, "range": self.headers.get("Range"), "headers": headers,
            "query": urlsplit(self.path).query, "time": time.monotonic(),
        }  # fmt: skip
        self.server.log.append(said)

    def _answer(self) -> None:
        server, url = self.server, urlsplit(self.path)
        self._note(url.path)
        self._hold_back()
        fault = server.fault_for(self.command, url.path)
        if fault is not None and not self._before(fault):
            return
        query = parse_qs(url.query)
        if "list-type" in query:
            self._list(unquote(url.path).strip("/"), query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
        else:
            self._object(self._file(), fault)

    def _hold_back(self) -> None:
        """Wait for as long as answers are held back, and count those that do."""
        self.server.enter(1)
        time.sleep(self.server.latency_s)
        self.server.enter(-1)  # before the client can know of the answer

    def _file(self) -> Path:
        return self.server.directory / unquote(urlsplit(self.path).path).lstrip("/")

    def _before(self, fault: Fault) -> bool:
        """Carry out what a fault does before anything is read; return whether to go on."""
        kind = fault["kind"]
        if kind == "status":
            status = HTTPStatus(int(fault["value"]))
            code = b"AccessDenied" if status is HTTPStatus.FORBIDDEN else b"Injected"
            self._say(status, b"<Error><Code>%b</Code></Error>" % code, "application/xml")
        elif kind == "hang":
            time.sleep(_HANG_SECONDS)
        elif kind == "slow":
            time.sleep(float(fault["value"]))
        elif kind == "replaced":
            (self.server.directory / str(fault["value"])).replace(self._file())
        return kind not in ("status", "hang")

    def _object(self, path: Path, fault: Fault | None) -> None:
        try:
            file = path.open("rb", buffering=0)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            self._say(HTTPStatus.NOT_FOUND, b"<Error><Code>NoSuchKey</Code></Error>", "application/xml")
            return
        with file:
            found = os.fstat(file.fileno())
            kind = fault["kind"] if fault else ""
            wanted = None if kind == "no ranges" else self.headers.get("Range")
            try:
                first, end = bounds(wanted, found.st_size)
            except ValueError:
                self._say(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
                return
            moved = kind in ("wrong range", "wrong bytes") and first > 0
            at = first - moved
            declared = at if kind == "wrong range" else first
            length = end - first
            if kind == "short":
                length //= 2
            self._head(found, declared, length, partial=wanted is not None)
            if self.command == "GET":
                self._send(file.fileno(), at, length // 2 if kind == "cut" else length)
            if kind == "cut":
                self.close_connection = True

    def _head(self, found: os.stat_result, first: int, length: int, *, partial: bool) -> None:
        self.send_response(HTTPStatus.PARTIAL_CONTENT if partial else HTTPStatus.OK)
        self.send_header("Content-Length", str(length))
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{found.st_mtime_ns:x}-{found.st_size:x}"')
        self.send_header("Last-Modified", formatdate(found.st_mtime, usegmt=True))
        if partial:
            self.send_header("Content-Range", f"bytes {first}-{first + length - 1}/{found.st_size}")
        self.end_headers()

    def _send(self, fd: int, at: int, length: int) -> None:
        self.wfile.flush()
        out = self.connection.fileno()
        piece_nbytes = _PIECE_NBYTES if math.isinf(self.server.bytes_per_s_each) else _SHORT_PIECE_NBYTES
        while length > 0:
            self.server.wait_for_line(min(length, piece_nbytes))
            self._wait_for_connection(min(length, piece_nbytes))
            sent = os.sendfile(out, fd, at, min(length, piece_nbytes))
            if sent == 0:
                self.close_connection = True
                return
            at, length = at + sent, length - sent

    def _wait_for_connection(self, nbytes: int) -> None:
        """Wait until so many more bytes may be sent over this connection."""
        now = time.monotonic()
        self._is_free = max(now, self._is_free) + nbytes / self.server.bytes_per_s_each
        if self._is_free > now:
            time.sleep(self._is_free - now)

    def _list(self, bucket: str, prefix: str, delimiter: str) -> None:
        root = self.server.directory / bucket
        entries, common = "", set()
        within = root / prefix.rpartition("/")[0]
        for path in sorted(within.glob("*") if delimiter == "/" else within.rglob("*")):
            key = path.relative_to(root).as_posix()
            if not key.startswith(prefix):
                continue
            if path.is_dir():
                if delimiter == "/":
                    common.add(f"{key}/")
                continue
            found = path.stat()
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.st_mtime))
            entries += (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified>"
                f'<ETag>"{found.st_mtime_ns:x}"</ETag><Size>{found.st_size}</Size></Contents>'
            )
        entries += "".join(f"<CommonPrefixes><Prefix>{escape(c)}</Prefix></CommonPrefixes>" for c in sorted(common))
        head = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        body = f"{head}<Name>{escape(bucket)}</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        self._say(HTTPStatus.OK, body.encode(), "application/xml")

    def _say(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def bounds(wanted: str | None, nbytes: int) -> tuple[int, int]:
    """Return the half-open range that a ``Range`` header means; raises ValueError if it holds no byte."""
    if wanted is None:
        return 0, nbytes
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    begin, end = (int(first), int(last) + 1 if last else nbytes) if first else (max(0, nbytes - int(last)), nbytes)
    if begin >= min(end, nbytes):
        raise ValueError(wanted)
    return begin, min(end, nbytes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a directory on a free port of loopback; print the port."""
    parser = argparse.ArgumentParser(prog="python -m helpers.stores.serve_ranges")
    parser.add_argument("directory", type=Path)
    server = _Server(parser.parse_args(arguments).directory.resolve())
    print(server.server_address[1], flush=True)  # noqa: T201
    threading.Thread(target=_end_with_parent, daemon=True).start()
    server.serve_forever()


def _end_with_parent() -> None:
    """Wait for the end of the input, which comes if whoever started this process dies, and end too."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
