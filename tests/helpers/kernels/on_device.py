"""Runs the kernels' own tests on a device: takes the place of the functions through which those run them on the host.

All that a launch works on lies in one run of device memory. It is laid out on the host, goes up, and comes down whole;
whatever no kernel may write to must come back as it went.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import test_blosc_kernels as blosc_tests
import test_checksum_kernels as checksum_tests
import test_filter_kernels as filter_tests
import test_zstd_kernel as zstd_tests

from helpers.kernels import runs as kernel_runs
from helpers.kernels import zstd_runs
from helpers.kernels.filter_runs import Filtered
from helpers.kernels.runs import Chunk, Stored
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Stream
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle
from xarray_gpuzarr.cuda.checksum import Kind, checksum, finish
from xarray_gpuzarr.cuda.filters import Filter, FilterChunks
from xarray_gpuzarr.cuda.launch import Points, Scatter, move
from xarray_gpuzarr.cuda.zstd import SPARE_FRAME, check_zstd

PATTERN = 0xA5
_GUARD_NBYTES = 256


class Image:
    """A run of device memory, and what it is to hold.

    Parameters
    ----------
    api : DeviceApi
    capacity : int
        Bytes that one launch may need, guards included.
    """

    def __init__(self, api: DeviceApi, capacity: int) -> None:
        self.api = api
        self.stream: Stream = api.stream()
        self._memory = api.allocate(capacity, self.stream)
        self._staged = api.allocate_pinned(capacity).array
        self._down = api.allocate_pinned(capacity).array
        self._written: list[slice] = []
        self._used = 0

    def clear(self) -> None:
        """Start anew."""
        self._used = 0
        self._written = []

    def place(self, content: bytes | npt.NDArray[Any], offset: int = 0) -> Address:
        """Lay down bytes at an address that is `offset` modulo 256; no kernel may change them."""
        data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else np.ascontiguousarray(content)
        at = self._take(data.nbytes, offset)
        self._staged[at] = data.reshape(-1).view(np.uint8)
        return Address(self._memory.address + at.start)

    def reserve(self, nbytes: int, offset: int = 0, *, byte: int = PATTERN) -> Address:
        """Return room for a result."""
        at = self._take(nbytes, offset)
        self._staged[at] = byte
        self._written.append(at)
        return Address(self._memory.address + at.start)

    def run(self, launch: Callable[[DeviceApi, Stream], object]) -> None:
        """Carry out what `launch` enqueues."""
        used = slice(0, self._used)
        self.api.upload(self._memory.address, self._staged[used], self.stream)
        launch(self.api, self.stream)
        self.api.download(self._down[used], self._memory.address, self.stream)
        self.api.synchronize(self.stream)
        differ = self._staged[used] != self._down[used]
        for at in self._written:
            differ[at] = False
        assert not differ.any(), f"{differ.sum()} bytes were changed that do not belong to a result"

    def content(self, address: Address, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return what has come back from an address."""
        first = address - self._memory.address
        return self._down[first : first + nbytes].copy()

    def close(self) -> None:
        self._memory.free()

    def _take(self, nbytes: int, offset: int) -> slice:
        first = -(-self._used // 256) * 256 + offset
        end = first + nbytes + _GUARD_NBYTES
        assert end <= len(self._staged), f"{end} bytes in one launch"
        self._staged[self._used : end] = PATTERN
        self._used = end
        return slice(first, first + nbytes)


def use(image: Image, patch: pytest.MonkeyPatch) -> None:
    """Let the tests of all kernels run them there."""
    patch.setattr(kernel_runs, "Guarded", lambda shape, dtype: Output(image, shape, dtype))
    patch.setattr(kernel_runs, "_run", lambda *placed: run_placing(image, *placed))
    patch.setattr(blosc_tests, "run_unshuffle", lambda blocks: run_unshuffle(image, blocks))
    patch.setattr(blosc_tests, "run_blosclz", lambda rows: run_blosclz(image, rows))
    patch.setattr(zstd_tests, "run_check", lambda frames, expected: run_check(image, frames, expected))
    patch.setattr(filter_tests, "run_filter", lambda *case, **more: run_filter(image, *case, **more))
    patch.setattr(checksum_tests, "placed", lambda content, offset=0: (content, offset))
    patch.setattr(checksum_tests, "checksums", lambda kind, messages: run_checksums(image, kind, messages))


class Output:
    """Memory of an output on the device."""

    def __init__(self, image: Image, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        image.clear()
        self._image, self._shape, self._dtype = image, shape, dtype
        self._nbytes = int(np.prod(shape, dtype=int)) * dtype.itemsize
        self.address = image.reserve(self._nbytes)

    def array(self) -> npt.NDArray[Any]:
        return self._image.content(self.address, self._nbytes).view(self._dtype).reshape(self._shape)


def run_placing(image: Image, kernel: Scatter | Points, stored: Stored, chunk_of: dict[Chunk, Chunk]) -> None:
    """Place the stored chunks, from addresses that are aligned to no more than is asked for, and fill the others."""
    at = image.place(np.zeros(kernel.nbytes, np.uint8))
    table = np.zeros(kernel.nbytes, np.uint8)
    kernel.pack(table, at)
    image._staged[at - image._memory.address :][: kernel.nbytes] = table
    missing = np.array([r for r, c in chunk_of.items() if c in stored.missing], np.int64)
    rows = [r for r, c in chunk_of.items() if c not in stored.missing]
    homes = [image.place(stored.chunk(chunk_of[r]).view(np.uint8), kernel.unit_nbytes) for r in rows]
    src, row, absent = (
        image.place(np.array(homes, np.uint64)),
        image.place(np.array(rows, np.int64)),
        image.place(missing),
    )

    def launch(api: DeviceApi, stream: Stream) -> None:
        kernel.launch(api, stream, at=at, src=src, row=row, n_rows=len(rows))
        kernel.fill(api, stream, at=at, row=absent, n_rows=len(missing))

    image.run(launch)


def run_unshuffle(image: Image, blocks: Sequence[blosc_tests.Block]) -> list[bytes]:
    image.clear()
    targets = [image.reserve(len(b.content), b.offsets[1]) for b in blocks]
    sources = [image.place(b.content, b.offsets[0]) for b in blocks]
    rest = [(len(b.content), b.typesize, b.filter) for b in blocks]
    table = image.place(_columns([(s, t, *r) for s, t, r in zip(sources, targets, rest, strict=True)], 5))
    longest = max((len(b.content) for b in blocks), default=0)
    image.run(lambda api, stream: unshuffle(api, stream, table=table, n=len(blocks), max_nbytes=longest))
    return [image.content(t, len(b.content)).tobytes() for t, b in zip(targets, blocks, strict=True)]


def run_blosclz(image: Image, rows: Sequence[blosc_tests.Coded]) -> list[blosc_tests.Decoded]:
    image.clear()
    n = len(rows)
    targets = [image.reserve(r.nbytes, r.offsets[1]) for r in rows]
    columns = [
        (image.place(r.stream, r.offsets[0]), len(r.stream), t, r.nbytes) for r, t in zip(rows, targets, strict=True)
    ]
    table, actual, status = image.place(_columns(columns, 4)), image.reserve(8 * n), image.reserve(4 * n)
    image.run(lambda api, stream: blosclz(api, stream, table=table, n=n, actual=actual, status=status))
    found = image.content(status, 4 * n).view(np.int32).tolist(), image.content(actual, 8 * n).view(np.uint64).tolist()
    contents = [image.content(t, r.nbytes).tobytes() for r, t in zip(rows, targets, strict=True)]
    return [blosc_tests.Decoded(status=s, actual=a, content=c) for s, a, c in zip(*found, contents, strict=True)]


def run_check(image: Image, frames: Sequence[bytes], expected: int) -> list[bool]:
    image.clear()
    n = len(frames)
    table, refused = image.reserve(32 * n), image.reserve(8 * n, byte=0)
    spare = image.place(SPARE_FRAME)
    before = _columns([(image.place(f, 1), len(f), zstd_runs.TARGET, expected) for f in frames], 4)
    image._staged[table - image._memory.address :][: 32 * n] = before.reshape(-1).view(np.uint8)
    image.run(lambda api, stream: check_zstd(api, stream, table=table, n=n, spare=spare, refused=refused))
    after = image.content(table, 32 * n).view(np.uint64).reshape(4, n)
    return zstd_runs.as_told(before, after, image.content(refused, 8 * n).view(np.uint64), spare)


def run_checksums(image: Image, kind: Kind, messages: Sequence[tuple[bytes, int]]) -> list[int]:
    image.clear()
    n, nbytes = len(messages), [len(content) for content, _ in messages]
    columns = list(zip([image.place(*message) for message in messages], nbytes, strict=True))
    table, result = image.place(_columns(columns, 2)), image.reserve(8 * n, byte=0)
    longest = max(nbytes, default=0)
    image.run(lambda api, stream: checksum(api, stream, kind, table=table, n=n, max_nbytes=longest, result=result))
    return finish(kind, image.content(result, 8 * n).view(np.uint64)).tolist()


def run_filter(
    image: Image, codec: Filter, chunks: Sequence[bytes], n_elements: int, itemsize: int, offsets: Sequence[int] = (0,)
) -> list[Filtered]:
    image.clear()
    n, nbytes = len(chunks), n_elements * itemsize
    targets = [image.reserve(nbytes, offsets[i % len(offsets)]) for i in range(n)]
    sources = [image.place(chunk, offsets[i % len(offsets)]) for i, chunk in enumerate(chunks)]
    table = image.place(_columns(list(zip(sources, targets, strict=True)), 2))
    flags, words = image.reserve(8 * n, byte=0), image.place(codec.words)
    places = FilterChunks(table=table, n=n, n_elements=n_elements, flags=flags, words=words)
    image.run(lambda api, stream: codec.launch(api, stream, places))
    flagged = image.content(flags, 8 * n).view(np.uint64).tolist()
    contents = [image.content(target, nbytes).tobytes() for target in targets]
    return [Filtered(flagged=bool(f), content=c) for f, c in zip(flagged, contents, strict=True)]


def run_moves(image: Image, runs: Sequence[tuple[int, int, int]]) -> None:
    """Move runs of so many bytes, given as offsets of source and target and length; compare."""
    image.clear()
    contents = [np.random.default_rng(n).bytes(n) for *_, n in runs]
    sources = [image.place(content, offset) for content, (offset, *_) in zip(contents, runs, strict=True)]
    targets = [image.reserve(n, offset) for _, offset, n in runs]
    nbytes = [n for *_, n in runs]
    table = image.place(_columns(list(zip(sources, targets, nbytes, strict=True)), 3))
    image.run(lambda api, stream: move(api, stream, table=table, n=len(runs), max_nbytes=max(nbytes, default=0)))
    assert [image.content(t, n).tobytes() for t, n in zip(targets, nbytes, strict=True)] == contents


def _columns(rows: Sequence[tuple[int, ...]], n_columns: int) -> npt.NDArray[np.uint64]:
    return np.array(rows, np.uint64).reshape(-1, n_columns).T.copy()
