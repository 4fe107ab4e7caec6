"""Chunks of local files straight into device memory: the host does not see them.

For chunks that the device can judge by itself: raw ones, and zstd frames. What turns out to be unusual is fetched
again, by the host, as everything else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceFile, DeviceMemory
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.pieces import ENDLESS, Piece, aligned
from xarray_gpuzarr.decoders.cuda.batches.streams import Filters, Rows, Streams, shuffled, zstd_streams
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import Staged
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Choice
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.decoders.cuda.staging.upload import download_pageable
from xarray_gpuzarr.errors import StoreReadError
from xarray_gpuzarr.fetch.files import version_and_length
from xarray_gpuzarr.fetch.source import ByteSource, Version
from xarray_gpuzarr.fetch.store_errors import changed_error
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.faults import too_long_chunk
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.waiting import apart
from xarray_gpuzarr.stored.array_spec import ArraySpec

_PAGE_NBYTES = 4096
"""Alignment of the byte ranges of a file that cuFile reads without a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """A range of a file, widened to pages, and where it goes."""

    path: str
    version: Version
    """Version of the file that its length is of; before the file is opened, and after it is read."""
    first: int
    """First byte that is read."""
    nbytes: int
    at: int
    """Where it goes, counted from the start of the memory that is taken for all ranges."""


class DirectStager(Stager):
    """Brings the chunks of one array to the device; files are read by the device itself."""

    def __init__(
        self, workspace: Workspace, source: ByteSource, spec: ArraySpec, *, chain: Chain, choice: Choice | None = None
    ) -> None:
        super().__init__(workspace, source, spec, chain=chain, choice=choice)
        self.requests = None
        self.rule = replace(source.rule, max_nbytes=self.most_nbytes)
        self.slot_nbytes = ENDLESS

    def stage(self, pieces: Sequence[Piece]) -> Staged:
        """Read pieces into device memory, and fetch again what is unusual."""
        workspace = self._workspace
        with workspace.api.range("read::fetch"), counters.stage("fetch"):
            ranges, at, nbytes = _layout(pieces, self._source)
            nbytes_of_all = max([r.at + aligned(r.nbytes) for r in ranges], default=0)
            memory = workspace.device_slots.lend(nbytes_of_all, workspace.copy)
            # A file must not be closed, nor memory freed, because a signal came between a read's start and its notice.
            n_read: list[int] = []
            try:
                apart(lambda: self._read(ranges, memory, n_read))
            finally:
                counters.add(read_nbytes=sum(n_read))
        present = at >= 0
        address = np.where(present, at, 0).astype(np.uint64) + np.uint64(memory.address) * present
        chain, filters = self._chain, Filters.none()
        if chain.compressor is None:
            ready, streams = present & (nbytes == chain.inner_nbytes), Streams.none()
        else:
            ready, streams = zstd_streams(chain.compressor, nbytes, chain.inner_nbytes)
        if chain.shuffle is not None:
            filters = shuffled(np.flatnonzero(ready), chain.inner_nbytes, chain.shuffle)

        def fetched(row: int) -> memoryview:  # from the device: files may be other ones by now
            return memoryview(download_pageable(workspace, int(address[row]), int(nbytes[row])))

        staged = Staged(
            memories=[memory],
            address=address,
            nbytes=nbytes,
            streams=streams,
            filters=filters,
            encoded=ready,
            shadows=self._shadows(pieces, ready, fetched),
        )
        doubtful = np.flatnonzero(present & ~ready)
        if not len(doubtful):
            return staged
        decoded = self.stage_decoded(pieces, doubtful)  # to be put in place of those that were read
        address, nbytes = address.copy(), nbytes.copy()
        address[doubtful], nbytes[doubtful] = decoded.address, decoded.nbytes
        return replace(staged, memories=[memory, *decoded.memories], address=address, nbytes=nbytes)

    def _read(self, ranges: Sequence[_Range], memory: DeviceMemory, done: list[int]) -> None:
        """Carry out all reads, several at a time, and wait for them even if one fails: they write to `memory`.

        The bytes that each has read are added to `done`.
        """
        workspace, files = self._workspace, dict[str, DeviceFile]()
        with workspace.api.activate(), ExitStack() as stack:
            reads = []
            for part in ranges:
                if part.path not in files:
                    files[part.path] = stack.enter_context(closing(workspace.api.open_file(part.path)))
                to = Address(memory.address + part.at)
                read = files[part.path].read(to, part.nbytes, part.first, workspace.copy)
                stack.callback(read.finish)
                reads.append((part, read))
            for part, read in reads:
                n_read = read.finish()
                done.append(n_read)
                found = version_and_length(part.path)
                if found is None or found[0] != part.version:
                    raise changed_error(part.path, part.version, None if found is None else found[0])
                if n_read != part.nbytes:
                    raise StoreReadError(
                        f"{part.path} is shorter than its shard index or its size said",
                        tried=f"{part.nbytes} bytes at {part.first}, straight into device memory",
                        found=f"{n_read} bytes",
                        do="the object is truncated or was replaced while it was read: open the store again, or "
                        "restore the object",
                    )


def _layout(pieces: Sequence[Piece], source: ByteSource) -> tuple[list[_Range], Rows, Rows]:
    """Return what is to be read, and per row where the chunk begins in memory, -1 if nowhere, and its length."""
    ranges: list[_Range] = []
    starts, lengths, used = [], [], 0
    for piece in pieces:
        for number, (key, span) in enumerate(piece.requests()):
            path, index_version = source.local_file(key)
            found = version_and_length(path)
            version, size = (None, 0) if found is None else found
            if index_version is not None and version != index_version:
                raise changed_error(path, index_version, version)
            if found is None:
                starts.append(np.array([-1]))
                lengths.append(np.array([0]))
                continue
            offset = span.offset
            nbytes = size if span.nbytes == WHOLE_OBJECT else span.nbytes
            if span.nbytes == WHOLE_OBJECT and size > piece.plan.spec.most_nbytes:
                raise too_long_chunk(piece.plan, piece.lo + number, size)
            first = offset // _PAGE_NBYTES * _PAGE_NBYTES
            end = max(offset + nbytes, min(size, -(-(offset + nbytes) // _PAGE_NBYTES) * _PAGE_NBYTES))
            ranges.append(_Range(path=path, version=version, first=first, nbytes=end - first, at=used))
            if piece.plan.spec.index is None:
                starts.append(np.array([used]))
                lengths.append(np.array([nbytes]))
            else:
                rows = slice(piece.lo, piece.hi)
                starts.append(used + piece.plan.offset[rows] - first)
                lengths.append(piece.plan.nbytes[rows])
            used += -(-(end - first) // 256) * 256
    return ranges, np.concatenate(starts).astype(np.int64), np.concatenate(lengths).astype(np.int64)
