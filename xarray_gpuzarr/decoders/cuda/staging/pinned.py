"""Bring encoded chunks from a store into device memory, through pinned slots.

Row ranges (rows of a plan that are fetched together) are read side by side into one pinned slot, their headers are
checked there, and the slot crosses to the device in one copy. Chunks whose frames are unusual or damaged are not given
to the device. The host codec decodes them, and they cross decoded. If it cannot decode one, it raises the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS, Rows
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import ENDLESS, RowRange, aligned, cut_range, row_of
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import Flags, Staged
from xarray_gpuzarr.decoders.cuda.decoding.shadows import ShadowChoice, Shadows
from xarray_gpuzarr.decoders.cuda.staging.host_chunks import decode_chunks, decode_shadows
from xarray_gpuzarr.decoders.cuda.staging.requests import Requests
from xarray_gpuzarr.decoders.cuda.staging.upload import Destination, Upload, upload_pageable
from xarray_gpuzarr.decoders.cuda.staging.upload_checks import check_checksums, check_headers
from xarray_gpuzarr.fetch.source import ByteSource
from xarray_gpuzarr.plan.faults import vanished_chunk, vanished_shard
from xarray_gpuzarr.process import threads
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.stored.array_spec import ArraySpec

_REQUESTS_PER_THREAD = 2
"""Number of requests of a slot for each thread that fills it. With one, all threads would wait for the slowest."""


class Stager:
    """Brings the chunks of one array to the device.

    Parameters
    ----------
    workspace : Workspace
        Lends pinned slots and device memory. Everything is copied on its `copy` stream.
    source : ByteSource
        Store of the array.
    spec : ArraySpec
        Array that is read.
    chain : Chain
        Codecs that the device undoes.
    shadow_choice : ShadowChoice, optional
        Chooses the chunks that the host decodes as well.
    """

    def __init__(
        self,
        workspace: Workspace,
        source: ByteSource,
        spec: ArraySpec,
        *,
        chain: Chain,
        shadow_choice: ShadowChoice | None = None,
    ) -> None:
        self._workspace = workspace
        self._source = source
        self._spec = spec
        self._chain = chain
        self._shadow_choice = shadow_choice
        # By default, each core has a thread, however few threads dask has: a worker with a GPU has one thread but many
        # cores, and these threads copy without holding the GIL.
        self._n_threads = threads.thread_setting() or threads.n_cores()
        share_nbytes = workspace.options.slot_nbytes // self._n_threads // _REQUESTS_PER_THREAD
        # Two answers of a remote store that tells no versions may be of two versions of the object, so a chunk must be
        # one request there. A local file is compared with the version of its shard's index at each request.
        cuts_chunks = source.cuts_objects or not source.is_remote
        max_request_nbytes = min(source.rule.max_raw_nbytes, max(source.rule.max_nbytes, share_nbytes))
        max_range_nbytes = ENDLESS
        if not cuts_chunks:  # then each row range is one request, and is itself limited
            max_range_nbytes = max_request_nbytes
            max_request_nbytes = ENDLESS
        self.max_request_nbytes = max_request_nbytes
        """Largest number of bytes of one request. Longer row ranges are cut, anywhere, into several requests."""
        self.requests: Requests | None = Requests(source)
        """Requests for row ranges that will be staged; None if each is read only when it is staged."""
        self.rule = replace(source.rule, max_nbytes=max_range_nbytes)
        """Rule that decides which neighbouring chunks make a row range."""
        self.segment_nbytes = workspace.options.slot_nbytes
        """Bytes that a segment should have at most: those that fit a slot."""
        self.n_by_host = 0
        """Number of chunks that the host has decoded because the device could not, or was not to be trusted with
        them."""

    def stage(self, row_ranges: Sequence[RowRange]) -> Staged:
        """Fetch row ranges, check their headers, and copy them to the device on the workspace's `copy` stream.

        Raises
        ------
        CorruptChunkError, StoreReadError
            If the host codec cannot decode a chunk that the device is not given, the store fails, or a shard has
            disappeared.
        """
        api = self._workspace.api
        upload = Upload(self._workspace, sum([aligned(row_range.nbytes) for row_range in row_ranges]))
        with api.range("read::fetch"), counters.stage("fetch"):
            stored_start, stored_nbytes = self._fetch(row_ranges, upload)
        present = stored_start >= 0
        ready = present
        start = stored_start
        nbytes = stored_nbytes
        if self._chain.checksums:
            ready, start, nbytes = check_checksums(self._chain, upload, present, stored_start, stored_nbytes)
        ready, streams, shuffled_blocks = check_headers(self._chain, upload, ready, start, nbytes)
        # Only chunks that are ready have streams. So if there is one stream for each chunk, all chunks are ready.
        host_chunks = NO_ROWS if streams.is_one_per_chunk else (present & ~ready).nonzero()[0]
        if len(host_chunks):
            encoded = [upload.view(int(stored_start[row]), int(stored_nbytes[row])) for row in host_chunks]
            decoded = decode_chunks(self._spec, row_ranges, host_chunks, encoded)
            self.n_by_host += len(decoded)
            start = start.copy()  # without checksums, it is the same array as `stored_start`
            start[host_chunks] = [upload.append(chunk) for chunk in decoded]
        shadows = self._shadows(
            row_ranges, ready, lambda row: upload.view(int(stored_start[row]), int(stored_nbytes[row]))
        )
        with api.range("read::transfer"), counters.stage("transfer"):
            memories, address = upload.send(start)
        if not streams.is_one_per_chunk:
            address[~present] = 0
        return Staged(
            memories=memories,
            address=address,
            nbytes=nbytes,
            streams=streams,
            shuffled_blocks=shuffled_blocks,
            encoded=ready,
            shadows=shadows,
        )

    def stage_decoded(self, row_ranges: Sequence[RowRange], numbers: Rows) -> Staged:
        """Fetch some chunks of `row_ranges` again, decode them on the host, and copy them to the device.

        `numbers`, shape (n,), are numbers of chunks, counted through all row ranges. Raises the errors of `stage`, and
        `StoreReadError` also if an unsharded chunk has disappeared.
        """
        encoded = []
        for plan, row in [row_of(row_ranges, number) for number in numbers.tolist()]:
            finish = self._source.start(plan.requests(row, row + 1))
            data = finish(lambda nbytes: memoryview(bytearray(nbytes)))[0]
            if data is None:
                raise vanished_chunk(plan, row)
            encoded.append(data)
        chunks = decode_chunks(self._spec, row_ranges, numbers, encoded)
        self.n_by_host += len(chunks)
        nbytes = self._spec.chunk_nbytes
        memory = self._workspace.device_slots.borrow(aligned(nbytes) * len(chunks), self._workspace.copy)
        upload_pageable(self._workspace, memory.address, chunks)
        address = memory.address + aligned(nbytes) * np.arange(len(chunks), dtype=np.uint64)
        return Staged.from_decoded([memory], address, np.full(len(chunks), nbytes))

    def _shadows(
        self, row_ranges: Sequence[RowRange], ready: Flags, encoded_chunk: Callable[[int], memoryview]
    ) -> Shadows:
        """Let the host also decode some of the chunks that the device may decode; return the checksums of the results.

        `ready` says for each chunk whether the device may decode it, and `encoded_chunk` returns the encoded bytes of a
        chunk, given its number. Raises `CorruptChunkError` if the host cannot decode a chunk.
        """
        if self._shadow_choice is None:
            return Shadows.empty()
        numbers = self._shadow_choice.choose(ready.nonzero()[0])
        if not len(numbers):
            return Shadows.empty()
        encoded = [encoded_chunk(number) for number in numbers.tolist()]
        return decode_shadows(self._spec, row_ranges, numbers, encoded)

    def _fetch(self, row_ranges: Sequence[RowRange], upload: Upload) -> tuple[Rows, Rows]:
        """Fetch row ranges into the memory of an upload; idle threads help.

        Returns two columns: the position of each chunk in the upload, or -1 if it is missing, and its length in bytes.
        """
        if row_ranges[0].plan.spec.index is None:
            return self._fetch_objects(row_ranges, upload)
        destinations: list[tuple[Destination, RowRange]] = []
        starts, lengths = [], []
        for row_range in row_ranges:
            position, view = upload.allocate(row_range.nbytes)
            starts.append(row_range.plan.offset[row_range.lo : row_range.hi] + (position - row_range.first))
            lengths.append(row_range.plan.nbytes[row_range.lo : row_range.hi])
            for offset, nbytes in cut_range(row_range.nbytes, self.max_request_nbytes):
                destinations.append((Destination(upload, view[offset : offset + nbytes]), row_range))
        self._fill(destinations)
        return np.concatenate(starts), np.concatenate(lengths)

    def _fetch_objects(self, row_ranges: Sequence[RowRange], upload: Upload) -> tuple[Rows, Rows]:
        """Do the work of `_fetch` for unsharded chunks, which are objects whose lengths are not known beforehand."""
        destinations: list[tuple[Destination, RowRange]] = []
        for row_range in row_ranges:
            destinations += [(Destination(upload), row_range) for _ in range(row_range.lo, row_range.hi)]
        self._fill(destinations)
        extents = [(destination.first, destination.nbytes) for destination, _ in destinations]
        start, nbytes = np.array(extents, np.int64).reshape(-1, 2).T.copy()
        return start, nbytes

    def _fill(self, destinations: Sequence[tuple[Destination, RowRange]]) -> None:
        """Fill destinations with the answers to the queued requests, which have the same order; idle threads help."""
        requests = self.requests
        assert requests is not None
        remaining = iter(destinations)

        def fill(go_on: Callable[[], bool]) -> None:
            while go_on():
                taken = requests.take(remaining)
                if taken is None:
                    return
                (destination, row_range), finish = taken
                (data,) = finish(destination)  # calls `destination` for the memory of the answer
                if data is not None:
                    destination.keep(data)
                elif row_range.plan.spec.index is not None:  # otherwise a missing object is a missing chunk
                    raise vanished_shard(row_range.plan.spec, row_range.plan.key_of(row_range.lo))

        crew.run(fill, len(destinations), self._n_threads)
