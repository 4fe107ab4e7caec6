"""An HTTP server on loopback that is several behind one address: each request is answered by one of its nodes.

It answers GET and HEAD with ranges, at any path below a bucket's name, unsigned or signed as S3's clients do.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Self

from helpers.stores.serve_ranges import Handler, Server, bounds

LONG_AGO = 1_600_000_000

Files = dict[str, bytes]


@dataclass
class Node:
    """One server of the set."""

    files: Files
    """By path, which begins with the bucket."""
    tag: Callable[[str], str | None] = lambda _: None
    """The ETag of a path."""
    modified: float | None = None
    """Seconds since 1970; None: it says nothing of it."""


@dataclass(frozen=True)
class Asked:
    """One request, and which node answered it."""

    path: str
    range: str | None
    node: int
    status: int


Pick = Callable[[int, str, str | None], int]
"""Number of a request, its path and range -> number of the node that answers."""


def in_turn(n_nodes: int) -> Pick:
    return lambda number, _path, _range: number % n_nodes


def at_random(n_nodes: int, seed: int) -> Pick:
    chosen = random.Random(seed)
    return lambda _number, _path, _range: chosen.randrange(n_nodes)


def by_range(n_nodes: int) -> Pick:
    """As a cache that keeps pieces of objects does: what is asked for again comes from the same node again."""
    return lambda _number, path, wanted: sum(f"{path}{wanted}".encode()) % n_nodes


@dataclass
class Mirrors:
    """The set, for the time of a ``with`` block.

    Parameters
    ----------
    nodes : list of Node
    pick : callable
    heeds_if_match : bool
        Whether a request for another tag is answered with 412.
    """

    nodes: list[Node]
    pick: Pick
    heeds_if_match: bool = True
    asked: list[Asked] = field(default_factory=list)
    before: Callable[[int], None] = lambda _: None
    """Called with the number of each request for data before it is answered."""
    spoil: Callable[[int, dict[str, str], bytes], tuple[int, dict[str, str], bytes]] = lambda *said: said
    """Status, headers and body of an answer with data -> what is sent instead."""

    n_of_data: int = 0

    def __enter__(self) -> Self:
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"mirrors": self})
        self._server = Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def of_data(self) -> list[Asked]:
        """Requests for shards and chunks."""
        return [request for request in self.asked if "/c/" in request.path]

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""
        wanted = headers.get("range")
        with self._lock:
            if "/c/" in path:
                self.before(self.n_of_data)
            number = self.pick(self.n_of_data, path, wanted)
            self.n_of_data += "/c/" in path
            status, said, body = self._of_node(self.nodes[number], path, wanted, headers.get("if-match"))
            self.asked.append(Asked(path, wanted, number, status))
            if "/c/" in path:
                status, said, body = self.spoil(status, said, body)
        return status, said, body

    def _of_node(
        self, node: Node, path: str, wanted: str | None, if_match: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        if path not in node.files:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        data, tag, said = node.files[path], node.tag(path), {"Accept-Ranges": "bytes"}
        if tag is not None:
            said["ETag"] = tag
        if node.modified is not None:
            said["Last-Modified"] = formatdate(node.modified, usegmt=True)
        if self.heeds_if_match and if_match is not None and (if_match != tag or tag.startswith("W/")):
            return 412, said, b"<Error><Code>PreconditionFailed</Code></Error>"
        if wanted is None:
            return 200, said, data
        try:
            start, end = bounds(wanted, len(data))
        except ValueError:
            return 416, said, b""
        return 206, {**said, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}, data[start:end]


class _Handler(Handler):
    mirrors: Mirrors

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        status, said, body = self.mirrors.answer(self.path.partition("?")[0].lstrip("/"), headers)
        self.send_response_only(status)
        said = {"Date": formatdate(usegmt=True), **said}
        for name, value in said.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
