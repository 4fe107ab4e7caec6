"""A device that does nothing and a store that holds nothing but headers: what is left of a read is the host's own work.

The decoder that runs on them is the real one, every call it makes included. Launches, copies and nvCOMP return at once
and every stream of a batch is said to be decoded as it should. Values are never looked at: there are none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard
from numcodecs import LZ4

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, DeviceMemory
from xarray_gpuzarr.cuda.nvcomp import Alignment, zstd_temp_nbytes
from xarray_gpuzarr.fetch import Allocate, Edge, LocalSource, Pending, PendingEdge
from xarray_gpuzarr.plan.byte_range import ByteRange
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec, KeyEncoding
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid
from xarray_gpuzarr.stored.codec_json import parse_codecs
from xarray_gpuzarr.stored.shard_index import ShardIndexSpec

_TOTAL_NBYTES = 80 * 10**9
_RATIO = 5.3
"""Of the published array."""
_UNIT = 16
"""Headers are so long, and begin at multiples of it: none writes over a part of another one."""
_NO_RANGE: AbstractContextManager[object] = nullcontext()


@dataclass(slots=True)
class _Memory:
    address: Address
    nbytes: int

    def free(self) -> None:
        """Nothing was taken."""

    def free_behind(self, consumer: object, on: object) -> None:
        """Nothing was taken."""


class NullDevice:
    """`DeviceApi` without a device. Addresses are numbers that nobody follows."""

    index = 0
    identity = None

    def __init__(self) -> None:
        self._at = itertools.count(1 << 40, 1 << 36)
        self.nvcomp = NullNvcomp()
        self.enter_range: Callable[[str], AbstractContextManager[object]] = lambda _name: _NO_RANGE
        """What profilers would be told; nobody listens, until this is replaced."""

    @property
    def as_api(self) -> DeviceApi:
        """Itself: the members that reads of chunks use."""
        return cast("DeviceApi", self)

    def activate(self) -> AbstractContextManager[object]:
        """There is nothing to activate."""
        return _NO_RANGE

    def range(self, name: str) -> AbstractContextManager[object]:
        """Tell `enter_range`."""
        return self.enter_range(name)

    def memory_nbytes(self) -> tuple[int, int]:
        """Return the memory of a large GPU."""
        return _TOTAL_NBYTES, _TOTAL_NBYTES

    def stream(self) -> Any:
        """Return a stream that nothing runs on."""
        return SimpleNamespace(handle=1)

    consumer_stream = stream

    def event(self, *, timed: bool = False) -> Any:  # noqa: ARG002
        """Return an event that is always reached."""
        return object()

    def elapsed_s(self, _first: Any, _last: Any) -> float:
        """Nothing takes any time."""
        return 0.0

    def record(self, _event: Any, _stream: Any) -> None:
        """Nothing to record."""

    wait = record

    def synchronize(self, _of: Any) -> None:
        """Nothing to wait for."""

    synchronize_event = synchronize

    def allocate(self, nbytes: int, _stream: Any) -> DeviceMemory:
        """Return addresses of nothing."""
        return _Memory(Address(next(self._at)), nbytes)

    def allocate_pinned(self, nbytes: int) -> Any:
        """Return ordinary host memory."""
        return SimpleNamespace(array=np.zeros(nbytes, np.uint8))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], _stream: Any) -> Any:
        """Return an array without elements."""
        return SimpleNamespace(shape=shape, dtype=dtype, address=Address(next(self._at)))

    def array_in(self, memory: Any, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object) -> Any:
        """Return an array without elements, which keeps `owner` alive."""
        return SimpleNamespace(shape=shape, dtype=dtype, address=memory.address, owner=owner)

    def address(self, array: Any) -> Address:
        """Return the address of nothing."""
        return Address(array.address)

    def upload(self, to: Address, data: Bytes, stream: Any) -> None:
        """Nothing is copied."""

    def download(self, into: Bytes, _start: Address, _stream: Any) -> None:
        """Say of every stream that it was decoded: statuses of 0 and, the length that its header declares."""
        _say_all_well(into, self.nvcomp)

    def launch(self, kernel: Any, n_blocks: int, n_threads: int, args: Sequence[int], stream: Any) -> None:
        """Nothing is launched."""

    def why_no_files(self) -> str:
        """Say why no file is read straight into device memory."""
        return "this is no device"

    def build(self, _kernels: object) -> None:
        """Nothing is launched anyway."""

    def trim(self) -> None:
        """Nothing was kept."""


class NullNvcomp:
    """Answers what decoding asks before a batch, and decodes nothing."""

    def __init__(self) -> None:
        self.n_chunks = self.chunk_nbytes = 0
        """Of the last batch."""
        self._alignment = Alignment(source=1, output=1, temp=1)

    def temp_nbytes(self, fmt: str, *, n_chunks: int, max_nbytes: int, total_nbytes: int) -> int:
        """Return what nvCOMP would answer."""
        self.n_chunks, self.chunk_nbytes = n_chunks, max_nbytes
        return zstd_temp_nbytes(n_chunks, total_nbytes) if fmt == "zstd" else 0

    def alignment(self, _fmt: str) -> Alignment:
        """Return that no address matters."""
        return self._alignment

    def decompress(self, fmt: str, batch: Any, *, n_chunks: int, temp: int, temp_nbytes: int, stream: int) -> None:
        """Nothing is decoded."""


def _say_all_well(receipt: Bytes, nvcomp: NullNvcomp) -> None:
    receipt[:] = 0
    receipt[: 8 * nvcomp.n_chunks].view(np.int64)[:] = nvcomp.chunk_nbytes


CODECS: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    "zstd": ("zstd", zstandard.ZstdCompressor(3).compress),
    "lz4": ("numcodecs.lz4", LZ4().encode),
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

    def start(self, _key: str, wanted: ByteRange, _version: object = None) -> Pending:
        """Write the headers of the wanted frames, or leave those that the last read of the same kind has written."""

        def finish(allocate: Allocate) -> memoryview:
            view = allocate(wanted.nbytes)
            if self.is_writing:
                self._write(view, wanted)
            return view

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
    grid = ChunkGrid(
        shape=(
            n_shards * chunks_per_shard[0] * chunk_shape[0],
            *np.multiply(chunks_per_shard, chunk_shape)[1:].tolist(),
        ),
        chunk_shape=chunk_shape,
        chunks_per_shard=chunks_per_shard,
    )
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": CODECS[codec][0], "configuration": {}}]
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
