"""nvCOMP alone: compressed streams on the device, one call for all of them, and what it says. No check of ours runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Bytes, DeviceApi, DeviceMemory
from xarray_gpuzarr.cuda.nvcomp import Batch
from xarray_gpuzarr.cuda.nvcomp_formats import Format, fastest_format

FORMATS: dict[str, tuple[Format, int, int]] = {
    "zstd": ("zstd", 0, 0),
    "gzip": ("gzip", 0, 0),
    "lz4": ("lz4", 4, 0),
    "zlib": ("deflate", 2, 4),
}
"""Codec -> what nvCOMP calls it, and the bytes before and behind that it does not take."""

_STAGING_NBYTES = 16 << 20
_EIGHTS = ("sources", "source_nbytes", "capacity", "actual", "outputs")
"""Columns of a batch with entries of eight bytes."""


class Workspace:
    """A stream, and device memory on it that lives as long as this. To be used where the device is active.

    Parameters
    ----------
    api : DeviceApi
    """

    def __init__(self, api: DeviceApi) -> None:
        self.api = api
        self.stream = api.stream()
        self._held: list[DeviceMemory] = []

    def empty(self, nbytes: int) -> Address:
        """Return uninitialised memory."""
        self._held.append(self.api.allocate(max(1, nbytes), self.stream))
        return self._held[-1].address

    def put(self, values: npt.NDArray[Any]) -> Address:
        """Return memory that holds the bytes of an array; blocks until they are there."""
        data: Bytes = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        to = self.empty(data.nbytes)
        staged = self.api.allocate_pinned(max(1, min(data.nbytes, _STAGING_NBYTES))).array
        for first in range(0, data.nbytes, _STAGING_NBYTES):
            part = data[first : first + _STAGING_NBYTES]
            staged[: part.nbytes] = part
            self.api.upload(Address(to + first), staged[: part.nbytes], self.stream)
            self.api.synchronize(self.stream)
        return to

    def get(self, start: Address, dtype: str, n: int) -> npt.NDArray[Any]:
        """Return an array that lies in device memory."""
        staged = self.api.allocate_pinned(max(1, n * np.dtype(dtype).itemsize)).array
        view = staged[: n * np.dtype(dtype).itemsize]
        self.api.download(view, start, self.stream)
        self.api.synchronize(self.stream)
        return view.view(dtype).copy()

    def close(self) -> None:
        """Give the memory back."""
        self.api.synchronize(self.stream)
        for memory in self._held:
            memory.free()
        self._held.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Compressed chunks on the device, ready for one call of nvCOMP."""

    space: Workspace
    fmt: Format
    batch: Batch
    n: int
    nbytes: int
    """Of a decoded chunk."""
    temp: Address
    temp_nbytes: int
    result: Address

    def part(self, space: Workspace, first: int, n: int) -> Resident:
        """Return `n` of the chunks as a batch of its own, on the stream of another `space`, which holds its scratch."""
        eights = {name: Address(getattr(self.batch, name) + 8 * first) for name in _EIGHTS}
        batch = Batch(**eights, statuses=Address(self.batch.statuses + 4 * first))
        temp_nbytes = _scratch_nbytes(space, self.fmt, n, self.nbytes)
        return replace(
            self,
            space=space,
            batch=batch,
            n=n,
            temp=space.empty(temp_nbytes),
            temp_nbytes=temp_nbytes,
            result=Address(self.result + first * self.nbytes),
        )

    def launch(self) -> None:
        """Enqueue the call."""
        self.space.api.nvcomp.decompress(
            self.fmt,
            self.batch,
            n_chunks=self.n,
            temp=self.temp if self.temp_nbytes else 0,
            temp_nbytes=self.temp_nbytes,
            stream=self.space.stream.handle,
        )

    def outcome(self) -> tuple[list[int], list[int]]:
        """Run it once; return the status and the actual length of every chunk."""
        self.launch()
        statuses = self.space.get(self.batch.statuses, "i4", self.n)
        return statuses.tolist(), self.space.get(self.batch.actual, "u8", self.n).tolist()

    def content(self, number: int = 0) -> bytes:
        """Return what was decoded for one chunk."""
        return self.space.get(Address(self.result + number * self.nbytes), "u1", self.nbytes).tobytes()

    def what_is_wrong(self, first: bytes, last: bytes | None = None) -> str:
        """Run it once; say what is wrong with statuses, lengths, the first chunk and the last one, if anything."""
        statuses, actual = self.outcome()
        right = self.content(0) == first and self.content(self.n - 1) == (first if last is None else last)
        if right and not any(statuses) and set(actual) == {self.nbytes}:
            return ""
        return f"statuses {sorted(set(statuses))}, lengths {sorted(set(actual))[:3]}, values right: {right}"


def _scratch_nbytes(space: Workspace, fmt: Format, n: int, nbytes: int) -> int:
    return space.api.nvcomp.temp_nbytes(fmt, n_chunks=n, max_nbytes=nbytes, total_nbytes=n * nbytes)


def resident_streams(
    space: Workspace, fmt: Format, streams: Sequence[bytes], nbytes: int, *, shift: int = 0
) -> Resident:
    """Bring streams to the device, each `shift` bytes behind a multiple of 16, for the algorithm that reads use.

    Parameters
    ----------
    space : Workspace
    fmt : str
        What nvCOMP calls their format.
    streams : sequence of bytes
    nbytes : int
        What each decodes to.
    shift : int
        Below 16.
    """
    n, fmt = len(streams), fastest_format(fmt, nbytes)
    lengths = np.array([len(stream) for stream in streams])
    homes = -(-(lengths + shift) // 16) * 16
    starts = np.cumsum(homes) - homes + shift
    image = np.zeros(int(homes.sum()), np.uint8)
    for start, stream in zip(starts.tolist(), streams, strict=True):
        image[start : start + len(stream)] = np.frombuffer(stream, np.uint8)
    at, result = space.put(image), space.empty(n * nbytes)
    temp_nbytes = _scratch_nbytes(space, fmt, n, nbytes)

    def column(values: Any) -> Address:
        return space.put(np.asarray(values, np.uint64))

    batch = Batch(
        sources=column(starts + at),
        source_nbytes=column(lengths),
        capacity=column(np.full(n, nbytes)),
        actual=column(np.zeros(n)),
        outputs=column(result + nbytes * np.arange(n)),
        statuses=space.put(np.full(n, -1, np.int32)),
    )
    temp = space.empty(temp_nbytes)
    return Resident(
        space=space, fmt=fmt, batch=batch, n=n, nbytes=nbytes, temp=temp, temp_nbytes=temp_nbytes, result=result
    )
