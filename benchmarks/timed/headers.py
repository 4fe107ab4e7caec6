"""A store that holds nothing but headers of frames: what the modelled device decodes."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
import zstandard
from zarr.codecs import GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4
from zarr.storage import MemoryStore

from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.source import Allocate, Edge, Pending, PendingEdge, Request
from xarray_gpuzarr.plan.byte_range import ByteRange
from xarray_gpuzarr.read import StoredArray, stored_array

OnRead = Callable[[int, str], object]

_RATIO = 5.3
"""Of the published array."""
_UNIT = 16
"""Headers, trailers included, are so long, and begin at multiples of it: none writes over a part of another one."""
_CODECS: dict[str, Any] = {"zstd": ZstdCodec(), "lz4": LZ4(), "gzip": GzipCodec(), "raw": None}


class HeaderStore:
    """Shards of frames, all alike, of which only index and headers exist; an `ObjectSource` of local files' kind.

    `nbytes` are the encoded bytes of every chunk. `on_read` is called with the bytes of each read, and ``"index"`` or
    ``"chunks"``.
    """

    lookahead = 4
    is_remote = is_local = cuts_objects = False
    storage = "posix"
    identity = chunk_versions = None

    def __init__(self, nbytes: npt.NDArray[np.int64], chunk_nbytes: int, codec: str, on_read: OnRead) -> None:
        self._on_read = on_read
        self.rule = LocalSource(root="").rule
        self.is_writing = True
        """Turned off once pinned memory holds all headers: what copying takes is not asked here."""
        self._ends = np.cumsum(nbytes)
        self._first = self._ends - nbytes
        self._end = int(nbytes.sum())
        header, trailer = _around(codec, chunk_nbytes)
        self._header, self._trailer = np.frombuffer(header, np.uint8), np.frombuffer(trailer, np.uint8)
        entries = np.stack([self._first, nbytes], axis=1).astype("<u8").tobytes()
        self._index = memoryview(entries + google_crc32c.value(entries).to_bytes(4, "little"))

    def for_one_read(self, **_: object) -> HeaderStore:
        """Nothing is kept open."""
        return self

    def give_up(self) -> None:
        """Nothing is under way."""

    def prefetch(self, _key: str, _span: ByteRange) -> bool:
        """Everything is there."""
        return False

    def start_edge(self, _key: str, _location: str, _nbytes: int) -> PendingEdge:
        """Return the index."""
        edge = Edge(data=self._index, object_nbytes=self._end + len(self._index))
        return lambda: (self._on_read(len(self._index), "index"), edge)[1]

    def start(self, requests: Sequence[Request], _version: object = None) -> Pending:
        """Write the headers of the requested frames, or leave those that the last read of the same kind has written."""
        ((_, span),) = requests

        def finish(allocate: Allocate) -> list[memoryview | None]:
            self._on_read(span.nbytes, "chunks")
            view = allocate(span.nbytes)
            if self.is_writing:
                data = np.frombuffer(view, np.uint8)
                for places, ours in ((self._first, self._header), (self._ends - len(self._trailer), self._trailer)):
                    lo, hi = np.searchsorted(places, (span.offset, span.offset + span.nbytes))
                    data[places[lo:hi, None] - span.offset + np.arange(len(ours))] = ours
            return [view]

        return finish


def _around(codec: str, chunk_nbytes: int) -> tuple[bytes, bytes]:
    """Return the bytes at both ends of a frame."""
    match codec:
        case "zstd":
            return zstandard.ZstdCompressor(3).compress(bytes(chunk_nbytes))[:_UNIT], b""
        case "lz4":
            return chunk_nbytes.to_bytes(4, "little"), b""
        case "gzip":  # with a checksum as the device will answer
            return gzip.compress(b"")[: _UNIT // 2], bytes(4) + chunk_nbytes.to_bytes(4, "little")
    return b"", b""


def header_array(
    n_shards: int,
    chunks_per_shard: tuple[int, ...],
    chunk_shape: tuple[int, ...],
    codec: str = "zstd",
    on_read: OnRead = lambda _nbytes, _what: None,
) -> StoredArray:
    """Return a float32 array, as short as the published one, whose shards follow each other along the first axis."""
    n_chunks = int(np.prod(chunks_per_shard))
    chunk_nbytes = 4 * int(np.prod(chunk_shape))
    mean = max(2, round(chunk_nbytes / _RATIO / _UNIT))
    nbytes = _UNIT * np.random.default_rng(0).integers(mean - mean // 50, mean + mean // 50, n_chunks, endpoint=True)
    if codec == "raw":
        nbytes = np.full(n_chunks, chunk_nbytes)
    shards = np.multiply(chunks_per_shard, chunk_shape).tolist()
    array = zarr.create_array(
        MemoryStore(),
        name="t2m",
        shape=(n_shards * shards[0], *shards[1:]),
        dtype="f4",
        chunks=chunk_shape,
        shards=tuple(shards),
        compressors=_CODECS[codec],
        filters=None,
    )
    source: Any = HeaderStore(nbytes, chunk_nbytes, codec, on_read)
    return replace(stored_array(array), source=source, zarr_array=None)
