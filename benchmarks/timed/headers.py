"""A store that holds nothing but headers of frames: what the modelled device decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard
from numcodecs import LZ4

from xarray_gpuzarr.fetch import Allocate, Edge, LocalSource, Pending, PendingEdge, Request
from xarray_gpuzarr.plan.byte_range import ByteRange
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec, KeyEncoding
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid
from xarray_gpuzarr.stored.codec_json import parse_codecs
from xarray_gpuzarr.stored.shard_index import ShardIndexSpec

_RATIO = 5.3
"""Of the published array."""
_UNIT = 16
"""Headers are so long, and begin at multiples of it: none writes over a part of another one."""

CODECS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "zstd": ("zstd", zstandard.ZstdCompressor(3).compress),
    "lz4": ("numcodecs.lz4", LZ4().encode),
    "none": ("", lambda _chunk: b""),
}
"""Name of a codec in metadata, and what makes a frame."""


class HeaderStore:
    """Shards of frames, all alike, of which only index and headers exist; an `ObjectSource` of local files' kind.

    Parameters
    ----------
    nbytes : ndarray of int64, shape (n_chunks,)
        Encoded bytes of every chunk.
    chunk_nbytes : int
        Decoded bytes of a chunk.
    codec : str
        One of `CODECS`.
    """

    lookahead = 4
    is_remote = is_local = False
    storage = "posix"
    identity = None

    def __init__(self, nbytes: npt.NDArray[np.int64], chunk_nbytes: int, codec: str = "zstd") -> None:
        self.rule = LocalSource(root="").rule
        self.is_writing = True
        """Turned off once pinned memory holds all headers: what copying takes is not asked here."""
        self._first = np.cumsum(nbytes) - nbytes
        self._end = int(nbytes.sum())
        frame = CODECS[codec][1](bytes(chunk_nbytes))
        self._header = np.frombuffer(frame[:_UNIT], np.uint8)
        entries = np.stack([self._first, nbytes], axis=1).astype("<u8").tobytes()
        self._index = memoryview(entries + google_crc32c.value(entries).to_bytes(4, "little"))

    def for_one_read(self, **_: object) -> HeaderStore:
        """Nothing is kept open."""
        return self

    def give_up(self) -> None:
        """Nothing is under way."""

    def prefetch(self, _key: str, _wanted: ByteRange) -> bool:
        """Everything is there."""
        return False

    def start_edge(self, _key: str, _location: str, _nbytes: int) -> PendingEdge:
        """Return the index."""
        edge = Edge(data=self._index, object_nbytes=self._end + len(self._index))
        return lambda: edge

    def start(self, requests: Sequence[Request], _version: object = None) -> Pending:
        """Write the headers of the wanted frames, or leave those that the last read of the same kind has written."""

        def finish(allocate: Allocate) -> list[memoryview | None]:
            room, views = allocate(sum(wanted.nbytes for _, wanted in requests)), []
            for _, wanted in requests:
                view, room = room[: wanted.nbytes], room[wanted.nbytes :]
                if self.is_writing:
                    self._write(view, wanted)
                views.append(view)
            return views

        return finish

    def _write(self, view: memoryview, wanted: ByteRange) -> None:
        lo, hi = np.searchsorted(self._first, (wanted.offset, wanted.offset + wanted.nbytes))
        at = (self._first[lo:hi] - wanted.offset)[:, None] + np.arange(len(self._header))
        np.frombuffer(view, np.uint8)[at] = self._header


def header_array(
    n_shards: int,
    chunks_per_shard: tuple[int, ...],
    chunk_shape: tuple[int, ...],
    codec: str = "zstd",
    store: type[HeaderStore] = HeaderStore,
) -> StoredArray:
    """Return a float32 array, as short as the published one, whose shards follow each other along the first axis."""
    n_chunks = int(np.prod(chunks_per_shard))
    chunk_nbytes = 4 * int(np.prod(chunk_shape))
    mean = max(2, round(chunk_nbytes / _RATIO / _UNIT))
    nbytes = _UNIT * np.random.default_rng(0).integers(mean - mean // 50, mean + mean // 50, n_chunks, endpoint=True)
    if codec == "none":
        nbytes = np.full(n_chunks, chunk_nbytes)
    shard_shape = np.multiply(chunks_per_shard, chunk_shape).tolist()
    grid = ChunkGrid(
        shape=(n_shards * shard_shape[0], *shard_shape[1:]), chunk_shape=chunk_shape, chunks_per_shard=chunks_per_shard
    )
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codecs += [{"name": name, "configuration": {}} for name in [CODECS[codec][0]] if name]
    spec = ArraySpec(
        path="/t2m",
        dtype="<f4",
        grid=grid,
        codecs=parse_codecs(codecs, np.dtype("<f4")),
        index=ShardIndexSpec(n_chunks=n_chunks, location="end", endian="little", checksum=True),
        fill=bytes(4),
        keys=KeyEncoding(prefix="t2m/", style="default", separator="/"),
        metadata="{}",
    )
    source: Any = store(nbytes, chunk_nbytes, codec)
    return StoredArray(shape=grid.shape, spec=spec, source=source, zarr_array=None, cast=Cast(dtype="<f4"))
