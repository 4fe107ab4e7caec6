"""Read chunks of local files straight into device memory, so that the host does not see them.

This is for chunks that the device can check by itself: raw ones, and zstd frames. Chunks that turn out to be unusual
are fetched again and decoded by the host, as in `pinned`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceFile, DeviceMemory
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import Rows
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import ENDLESS, RowRange, aligned
from xarray_gpuzarr.decoders.cuda.batches.streams import ShuffledBlocks, Streams, whole_chunk_blocks, zstd_streams
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import Staged
from xarray_gpuzarr.decoders.cuda.decoding.shadows import ShadowChoice
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.decoders.cuda.staging.upload import download_pageable
from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.files import version_and_length
from xarray_gpuzarr.fetch.source import ByteSource, Version
from xarray_gpuzarr.fetch.store_errors import changed_error
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.faults import too_long_chunk
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.waiting import run_uninterrupted
from xarray_gpuzarr.stored.array_spec import ArraySpec

_PAGE_NBYTES = 4096
"""Alignment of the byte ranges of a file that cuFile reads without an extra copy."""
_MEMORY_ALIGN = 256
"""Alignment in device memory of the ranges that are read, the same as that of memory that CUDA allocates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileRange:
    """A range of a file, widened to whole pages, and its place in device memory."""

    path: str
    version: Version
    """Version of the file when its length was looked up. It must still be the same after the range was read."""
    first: int
    """First byte of the file that is read."""
    nbytes: int
    """Number of bytes that are read."""
    position: int
    """Place of the first byte, counted from the start of the device memory of all ranges."""


class DirectStager(Stager):
    """Brings the chunks of one array to the device by reads of files into device memory. See `Stager`."""

    def __init__(
        self,
        workspace: Workspace,
        source: ByteSource,
        spec: ArraySpec,
        *,
        chain: Chain,
        shadow_choice: ShadowChoice | None = None,
    ) -> None:
        super().__init__(workspace, source, spec, chain=chain, shadow_choice=shadow_choice)
        self.requests = None  # nothing is requested before it is staged
        self.rule = replace(source.rule, max_nbytes=self.max_request_nbytes)
        """Neighbours in a row range are read together, so a range is no longer than one request may be."""
        self.segment_nbytes = ENDLESS  # no slot is used

    def stage(self, row_ranges: Sequence[RowRange]) -> Staged:
        """Read row ranges into device memory; let the host fetch and decode the chunks that are unusual."""
        workspace = self._workspace
        with workspace.api.range("read::fetch"), counters.stage("fetch"):
            ranges, position, nbytes = _layout(row_ranges, self._source)
            total_nbytes = max([part.position + aligned(part.nbytes) for part in ranges], default=0)
            memory = workspace.device_slots.borrow(total_nbytes, workspace.copy)
            read_nbytes: list[int] = []
            try:
                # On a thread of its own: a signal between the start of a read and its end would otherwise close the
                # file, or free the memory, while the read is under way.
                run_uninterrupted(lambda: self._read(ranges, memory, read_nbytes))
            finally:
                counters.add(read_nbytes=sum(read_nbytes))
        present = position >= 0
        address = np.where(present, position + memory.address, 0).view(np.uint64)
        chain = self._chain
        if chain.compressor is None:
            ready = present & (nbytes == chain.inner_nbytes)
            streams = Streams.empty()
        else:  # a missing chunk has no bytes, and is too short for a frame
            ready, streams = zstd_streams(chain.compressor, nbytes, chain.inner_nbytes)
        shuffled_blocks = ShuffledBlocks.empty()
        if chain.shuffle is not None:
            shuffled_blocks = whole_chunk_blocks(np.flatnonzero(ready), chain.inner_nbytes, chain.shuffle)

        def download(row: int) -> memoryview:  # not from the file, which may have been replaced since
            return memoryview(download_pageable(workspace, int(address[row]), int(nbytes[row])))

        staged = Staged(
            memories=[memory],
            address=address,
            nbytes=nbytes,
            streams=streams,
            shuffled_blocks=shuffled_blocks,
            encoded=ready,
            shadows=self._shadows(row_ranges, ready, download),
        )
        return self._replace_unusual(staged, row_ranges, np.flatnonzero(present & ~ready))

    def _replace_unusual(self, staged: Staged, row_ranges: Sequence[RowRange], unusual: Rows) -> Staged:
        """Let the host fetch and decode the chunks `unusual`, and put them in place of those that were read."""
        if not len(unusual):
            return staged
        decoded = self.stage_decoded(row_ranges, unusual)
        address, nbytes = staged.address.copy(), staged.nbytes.copy()
        address[unusual] = decoded.address
        nbytes[unusual] = decoded.nbytes
        return replace(staged, memories=[*staged.memories, *decoded.memories], address=address, nbytes=nbytes)

    def _read(self, ranges: Sequence[_FileRange], memory: DeviceMemory, read_nbytes: list[int]) -> None:
        """Read all ranges into `memory`, several at a time, and append the number of bytes of each to `read_nbytes`.

        This waits for all reads even if one fails, because they write to the memory.
        """
        workspace = self._workspace
        files: dict[str, DeviceFile] = {}
        with workspace.api.activate(), ExitStack() as stack:
            reads = []
            for part in ranges:
                if part.path not in files:
                    files[part.path] = stack.enter_context(closing(workspace.api.open_file(part.path)))
                address = Address(memory.address + part.position)
                read = files[part.path].read(address, part.nbytes, part.first, workspace.copy)
                stack.callback(read.finish)  # a second call of it does nothing
                reads.append((part, read))
            for part, read in reads:
                n_read = read.finish()
                read_nbytes.append(n_read)
                _check_read(part, n_read)


def _check_read(part: _FileRange, n_read: int) -> None:
    """Raise if the file has been replaced since its length was looked up, or has ended too early."""
    current = version_and_length(part.path)
    version = None if current is None else current[0]
    if current is None or version != part.version:
        raise changed_error(part.path, part.version, version)
    if n_read != part.nbytes:
        raise StoreReadError(
            f"{part.path} is shorter than its shard index or its size said",
            tried=f"{part.nbytes} bytes at {part.first}, straight into device memory",
            found=f"{n_read} bytes",
            do="the object is truncated or was replaced while it was read: open the store again, or restore the object",
        )


def _find_file(source: ByteSource, key: str) -> tuple[str, Version, int]:
    """Return the path, version and length of the file that holds an object. Without a file, they are the path, None, 0.

    Raises `ObjectChangedError` if a shard no longer has the version from which its index was read.
    """
    path, index_version = source.local_file(key)
    current = version_and_length(path)
    version, nbytes = (None, 0) if current is None else current
    if index_version is not None and version != index_version:
        raise changed_error(path, index_version, version)
    return path, version, nbytes


def _layout(row_ranges: Sequence[RowRange], source: ByteSource) -> tuple[list[_FileRange], Rows, Rows]:
    """Lay the bytes of row ranges out in device memory. Return the ranges, and the position and length of each chunk.

    Positions count from the start of the memory. A chunk whose file is missing has the position -1 and the length 0.

    Raises
    ------
    ObjectChangedError
        See `_find_file`.
    CorruptChunkError
        If a file is too long to be a chunk.
    """
    ranges: list[_FileRange] = []
    starts, lengths = [], []
    used_nbytes = 0
    for row_range in row_ranges:
        for number, (key, span) in enumerate(row_range.requests()):
            path, version, size = _find_file(source, key)
            if version is None:  # an unsharded chunk is missing: a missing shard has raised an error
                starts.append(np.array([-1]))
                lengths.append(np.array([0]))
                continue
            nbytes = span.nbytes
            if span.nbytes == WHOLE_OBJECT:
                nbytes = size
                if size > row_range.plan.spec.max_encoded_nbytes:
                    raise too_long_chunk(row_range.plan, row_range.lo + number, size)
            end = span.offset + nbytes
            first = span.offset // _PAGE_NBYTES * _PAGE_NBYTES
            # To the end of the last page, or of the file. `_check_read` finds out if the file ends before `end`.
            page_end = -(-end // _PAGE_NBYTES) * _PAGE_NBYTES
            read_end = max(end, min(size, page_end))
            part = _FileRange(path=path, version=version, first=first, nbytes=read_end - first, position=used_nbytes)
            ranges.append(part)
            if row_range.plan.spec.index is None:
                starts.append(np.array([used_nbytes]))
                lengths.append(np.array([nbytes]))
            else:
                rows = slice(row_range.lo, row_range.hi)
                starts.append(used_nbytes + row_range.plan.offset[rows] - first)
                lengths.append(row_range.plan.nbytes[rows])
            used_nbytes += -(-part.nbytes // _MEMORY_ALIGN) * _MEMORY_ALIGN
    return ranges, np.concatenate(starts).astype(np.int64), np.concatenate(lengths).astype(np.int64)
