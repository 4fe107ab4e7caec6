"""Parts that checks are made of: small reads with known values, by the CUDA decoder itself.

A `Check` computes something on the device and compares the result. Most checks use a `Trial`: a made-up array of one
shard in memory, whose chunks begin at any alignment. `Read` reads it like any other array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.read import Read
from xarray_gpuzarr.decoders.cuda.staging.upload import download_pageable
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.fetch.source import Allocate, LocalFile, Pending, Request, Storage
from xarray_gpuzarr.plan.byte_range import ByteRange, CoalesceRule
from xarray_gpuzarr.plan.look_up import plan_read
from xarray_gpuzarr.plan.points import group_points
from xarray_gpuzarr.plan.read_plan import ReadPlan, plan_blocks
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.targets import PointTarget, Target, box_target
from xarray_gpuzarr.stored.array_spec import ArraySpec, KeyEncoding
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.chunk_grid import ChunkGrid
from xarray_gpuzarr.stored.codecs import PipelineSpec
from xarray_gpuzarr.stored.shard_index import MISSING, ShardIndex, ShardIndexSpec

_KEYS = KeyEncoding(prefix="self-check/", style="default", separator="/")


class WrongAnswerError(Exception):
    """A check has failed; the message says how."""


@dataclass(frozen=True, slots=True)
class Check:
    """A computation on a device whose result is known."""

    name: str
    """Unique name, stored together with the outcome."""
    run: Callable[[Workspace], int]
    """Computes on the workspace's device; returns the number of compared bytes.

    Raises `WrongAnswerError` if one is wrong, and any other error if the device fails.
    """


class Trial:
    """A made-up array of one shard.

    Parameters
    ----------
    chunks : sequence of bytes or None
        Encoded chunks in C order; None for a missing one.
    dtype, chunk_shape, codecs, fill
        As in `ArraySpec`. Without `fill`, the fill value is 0.
    shape : tuple of int
        Shape of the array. By default, the array has one dimension, which the chunks fill.
    """

    def __init__(
        self,
        chunks: Sequence[bytes | None],
        *,
        dtype: str,
        chunk_shape: tuple[int, ...],
        codecs: PipelineSpec,
        shape: tuple[int, ...] = (),
        fill: bytes = b"",
    ) -> None:
        shape = shape or (len(chunks) * chunk_shape[0],)
        counts = tuple(-(-n // c) for n, c in zip(shape, chunk_shape, strict=True))
        self.spec = ArraySpec(
            path="/self-check",
            dtype=dtype,
            grid=ChunkGrid(shape=shape, chunk_shape=chunk_shape, chunks_per_shard=counts),
            codecs=codecs,
            index=ShardIndexSpec(n_chunks=len(chunks), location="end", endian="little", checksum=False),
            fill=fill or bytes(np.dtype(dtype).itemsize),
            keys=_KEYS,
            metadata="{}",
        )
        data = bytearray()
        offset = []
        for number, chunk in enumerate(chunks):
            data += bytes(1 + 5 * number % 16)  # so that chunks begin at any alignment
            offset.append(len(data))
            data += chunk or b""
        nbytes = [MISSING if chunk is None else len(chunk) for chunk in chunks]
        self._index = ShardIndex(offset=np.array(offset, np.int64), nbytes=np.array(nbytes, np.int64))
        self._source = KnownBytes(bytes(data))

    def box(self, selection: Any) -> Target:
        """Return the target of an outer selection."""
        return box_target(outer_selection(selection, self.spec.grid.shape), self.spec.grid)

    def points(self, *indices: Sequence[int]) -> Target:
        """Return the target of single elements, given by their indices along each axis."""
        return PointTarget(groups=group_points([np.array(axis) for axis in indices], self.spec.grid))

    def read_by_device(self, workspace: Workspace, target: Target, cast: Cast) -> tuple[npt.NDArray[Any], int]:
        """Read a selection with the device; return it in host memory, and how many chunks the host has decoded."""
        cast = replace(cast, dtype=np.dtype(cast.dtype).newbyteorder("=").str)

        def run(workspace: Workspace) -> tuple[npt.NDArray[Any], int]:
            read = Read(workspace, self._source, self.spec, target=target, cast=cast)
            out = read.run(self._plans(target))  # a name, so that it lives until it has been downloaded
            address = workspace.api.address(out)
            return download(workspace, address, target.shape, np.dtype(cast.dtype)), read.stager.n_by_host

        return workspace.run(run)

    def read_by_host(self, target: Target, cast: Cast) -> npt.NDArray[Any]:
        """Read a selection with the host decoder."""
        plans = self._plans(target)
        return HostDecoder(keeps_chunks=False).decode(plans, self._source, spec=self.spec, target=target, cast=cast)

    def _plans(self, target: Target) -> Iterator[ReadPlan]:
        for block in plan_blocks(self.spec, target):
            yield plan_read(self.spec, target, [block], [self._index])


def download(workspace: Workspace, start: Address, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a copy of device memory as an array in host memory; waits for the workspace's `copy` stream."""
    nbytes = math.prod(shape) * dtype.itemsize
    return download_pageable(workspace, start, nbytes).view(dtype).reshape(shape)


def upload(workspace: Workspace, data: bytes) -> DeviceMemory:
    """Return device memory that the workspace's `copy` stream fills with `data`."""
    slot = workspace.borrow_slot(len(data))
    memory = workspace.device_slots.borrow(len(data), workspace.copy)
    slot.array[: len(data)] = np.frombuffer(data, np.uint8)
    workspace.upload(memory.address, slot.array[: len(data)], workspace.copy)
    slot.release_after(workspace.copy)
    return memory


def compare(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """Raise `WrongAnswerError` unless two arrays have the same bits; NaN with different bits are equal."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    wrong: npt.NDArray[np.bool_] = (_bytes_of_elements(actual) != _bytes_of_elements(expected)).any(axis=1)
    if actual.dtype.kind == "f":
        wrong &= ~(np.isnan(actual) & np.isnan(expected)).reshape(-1)
    if wrong.any():
        first = int(wrong.argmax())
        values = f"{actual.reshape(-1)[first]}, expected {expected.reshape(-1)[first]}"
        raise WrongAnswerError(f"{wrong.sum()} of {wrong.size} elements are wrong, such as {values}")


def _bytes_of_elements(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of each element; uint8, shape (n_elements, itemsize)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize)


class KnownBytes:
    """A `ByteSource` with a single object, which is in memory and answers to every key."""

    rule = CoalesceRule(max_gap_nbytes=64, max_nbytes=2**20, max_raw_nbytes=2**20)
    lookahead = 1
    is_remote = is_local = cuts_objects = False
    storage: Storage = "posix"
    chunk_versions = None

    def __init__(self, data: bytes) -> None:
        self._data = data

    def local_file(self, key: str) -> LocalFile:
        """Raise `FileNotFoundError`: there is no file."""
        raise FileNotFoundError(key)

    def prefetch(self, _key: str, _span: ByteRange) -> bool:
        """Return False: nothing has to be prefetched."""
        return False

    def start(self, requests: Sequence[Request]) -> Pending:
        """Return a function that copies the bytes of one request; decoders start requests of a shard one at a time."""
        ((_, span),) = requests
        data = self._data[span.offset : span.offset + span.nbytes]

        def finish(allocate: Allocate) -> list[memoryview | None]:
            view = allocate(len(data))
            view[:] = data
            return [view]

        return finish
