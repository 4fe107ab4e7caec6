"""Encoded chunks from a store into device memory, through pinned slots.

Pieces (rows of a plan that are fetched together) are read side by side into one pinned slot, their headers are checked
there, and the slot crosses to the device in one copy. What the device cannot be trusted with (an unusual frame, a
damaged one) is decoded by the host codec, which also words the error, and crosses decoded.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.pieces import ENDLESS, Piece, aligned, cut, row_of
from xarray_gpuzarr.decoders.cuda.batches.streams import NO_ROWS, Filters, Rows, Streams, find_streams, join, shuffled
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import Flags, Staged
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Choice, Shadows
from xarray_gpuzarr.decoders.cuda.staging.upload import Destination, Upload, upload_pageable
from xarray_gpuzarr.decoders.host.chunk_codec import chunk_codec, strip_checksum
from xarray_gpuzarr.fetch.source import ByteSource, FetchedBytes, Pending, ReadAhead, Request
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.faults import chunk_fault, vanished_chunk, vanished_shard
from xarray_gpuzarr.process import threads
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.host_memory import buffer
from xarray_gpuzarr.stored.array_spec import ArraySpec


class Requests:
    """Requests in order, the next few already under way: stores do not rest between segments. Threads take turns."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._ahead = max(1, source.lookahead)
        self._read_ahead = ReadAhead(source)
        self._lock = threading.Lock()
        self._expected: deque[Request] = deque()
        self._started: deque[Pending] = deque()
        self._n_under_way = 0
        """Number of started requests, except those whose bytes were at hand."""

    @property
    def are_enough(self) -> bool:
        """Whether no more would be under way if more were expected, or bytes that are at hand take memory."""
        return bool(self._expected) or self._n_under_way < len(self._started)

    def expect(self, requests: Iterable[Request]) -> None:
        """Take in what will be wanted after all that is wanted already."""
        with self._lock:
            self._expected.extend(requests)
            queued = self._start()
        self._read_ahead(queued)

    def forget(self) -> None:
        """Want nothing any more."""
        self._expected.clear()
        self._started.clear()
        self._n_under_way = 0

    def next[Place](self, places: Iterator[Place]) -> tuple[Place, Pending] | None:
        """Return the next place and what was started to fill it; None if there is no place left."""
        with self._lock:
            place = next(places, None)
            if place is None:
                return None
            started = self._started.popleft()
            self._n_under_way -= not isinstance(started, FetchedBytes)
            queued = self._start()
        self._read_ahead(queued)
        return place, started

    def _start(self) -> list[Request]:
        """Start what may be under way; return it."""
        queued = []
        while self._expected and self._n_under_way < self._ahead:
            request = self._expected.popleft()
            pending = self._source.start([request])
            self._started.append(pending)
            self._n_under_way += not isinstance(pending, FetchedBytes)
            queued.append(request)
        return queued


_REQUESTS_PER_THREAD = 2
"""Number of requests of a slot for each thread that fills it: with one, all would wait for the slowest."""


class Stager:
    """Brings the chunks of one array to the device; `choice` says which the host decodes as well."""

    def __init__(
        self, workspace: Workspace, source: ByteSource, spec: ArraySpec, *, chain: Chain, choice: Choice | None = None
    ) -> None:
        self._workspace = workspace
        self._source = source
        self._spec = spec
        self._chain = chain
        self._choice = choice
        # However few threads dask has: they copy and hold no lock, and a GPU's worker has one thread but many cores.
        self._n_threads = threads.thread_setting() or threads.n_cores()
        share_nbytes = workspace.options.slot_nbytes // self._n_threads // _REQUESTS_PER_THREAD
        # Two answers that bear no version may be of two versions: then requests end where chunks do.
        cuts_chunks = source.cuts_objects or not source.is_remote
        longest_nbytes = min(source.rule.max_raw_nbytes, max(source.rule.max_nbytes, share_nbytes))
        self.most_nbytes = longest_nbytes if cuts_chunks else ENDLESS
        """Longest request for bytes that are read to where they stay."""
        self.requests: Requests | None = Requests(source)
        """Under way for pieces that will be staged; None if pieces are read when they are staged."""
        self.rule = replace(source.rule, max_nbytes=ENDLESS if cuts_chunks else longest_nbytes)
        """Which neighbours make a piece, however long: segments and requests cut it."""
        self.slot_nbytes = workspace.options.slot_nbytes
        """Bytes that cross to the device together."""
        self.n_by_host = 0
        """Chunks that the host has decoded, because the device cannot be trusted with them or could not."""

    def stage(self, pieces: Sequence[Piece]) -> Staged:
        """Fetch pieces, check their headers, and send them to the device on the workspace's `copy` stream."""
        api = self._workspace.api
        upload = Upload(self._workspace, sum([aligned(piece.nbytes) for piece in pieces]))
        with api.range("read::fetch"), counters.stage("fetch"):
            first, length = self._fetch(pieces, upload)
        present = first >= 0
        ready, start, nbytes = present, first, length
        if self._chain.checksums:
            ready, start, nbytes = self._checked(upload, present, first, length)
        ready, streams, filters = self._find_streams(upload, ready, start, nbytes)
        doubtful = NO_ROWS if streams.one_each else (present & ~ready).nonzero()[0]
        if len(doubtful):
            encoded = [upload.view(int(first[row]), int(length[row])) for row in doubtful]
            start[doubtful] = [upload.append(chunk) for chunk in self._decode(pieces, doubtful, encoded)]
        shadows = self._shadows(pieces, ready, lambda row: upload.view(int(first[row]), int(length[row])))
        with api.range("read::transfer"), counters.stage("transfer"):
            memories, address = upload.send(start)
        if not streams.one_each:
            address[~present] = 0
        return Staged(
            memories=memories,
            address=address,
            nbytes=nbytes,
            streams=streams,
            filters=filters,
            encoded=ready,
            shadows=shadows,
        )

    def stage_decoded(self, pieces: Sequence[Piece], numbers: Rows) -> Staged:
        """Fetch some chunks of `pieces` anew, decode them on the host, and send them to the device."""
        encoded = []
        for plan, row in [row_of(pieces, number) for number in numbers.tolist()]:
            data = self._source.start(plan.requests(row, row + 1))(lambda nbytes: memoryview(bytearray(nbytes)))[0]
            if data is None:
                raise vanished_chunk(plan, row)
            encoded.append(data)
        chunks, nbytes = self._decode(pieces, numbers, encoded), self._spec.chunk_nbytes
        memory = self._workspace.device_slots.lend(aligned(nbytes) * len(chunks), self._workspace.copy)
        upload_pageable(self._workspace, memory.address, chunks)
        address = memory.address + aligned(nbytes) * np.arange(len(chunks), dtype=np.uint64)
        return Staged.of_decoded([memory], address, np.full(len(chunks), nbytes))

    def _decode(self, pieces: Sequence[Piece], rows: Rows, encoded: Sequence[memoryview]) -> list[memoryview]:
        """Let the host decode chunks that are unusual or damaged, and count them; the host codec's word is final.

        `rows` are the numbers of the chunks, counted through all pieces; one that is damaged is a `CorruptChunkError`.
        """
        codec = chunk_codec(self._spec.codecs, self._spec.chunk_nbytes)
        decoded = [memoryview(bytearray(self._spec.chunk_nbytes)) for _ in encoded]
        _each(pieces, rows, lambda number: codec.into(encoded[number], decoded[number]))
        self.n_by_host += len(decoded)
        return decoded

    def _shadows(self, pieces: Sequence[Piece], ready: Flags, encoded: Callable[[int], memoryview]) -> Shadows:
        """Decode those of the chunks that are ready which are chosen to be decoded by the host as well.

        `encoded` returns the bytes of a row. Errors as for `_decode`.
        """
        rows = NO_ROWS if self._choice is None else self._choice.of(ready.nonzero()[0])
        if not len(rows):
            return Shadows.none()
        codec, both = chunk_codec(self._spec.codecs, self._spec.chunk_nbytes), [encoded(row) for row in rows.tolist()]
        shadows = Shadows.of(len(rows), chunk=rows)

        def decode(number: int) -> None:
            decoded = memoryview(buffer("shadow", self._spec.chunk_nbytes))
            codec.into(both[number], decoded)
            shadows.crc[number] = zlib.crc32(decoded)

        _each(pieces, rows, decode)
        return shadows

    def _fetch(self, pieces: Sequence[Piece], upload: Upload) -> tuple[Rows, Rows]:
        """Carry out the requests of pieces on free threads.

        Returns where in the upload each chunk begins, -1 if nowhere, and its length.
        """
        requests, sharded = self.requests, pieces[0].plan.spec.index is not None
        assert requests is not None
        destinations: list[tuple[Destination, Piece]] = []
        starts, lengths = [], []
        for piece in pieces:
            if not sharded:  # objects, whose lengths are not known
                destinations += [(Destination(upload), piece) for _ in range(piece.lo, piece.hi)]
                continue
            position, view = upload.allocate(piece.nbytes)
            starts.append(piece.plan.offset[piece.lo : piece.hi] + (position - piece.first))
            lengths.append(piece.plan.nbytes[piece.lo : piece.hi])
            parts = cut(piece.nbytes, self.most_nbytes)
            destinations += [(Destination(upload, view[at : at + n]), piece) for at, n in parts]
        todo = iter(destinations)

        def drain(go_on: Callable[[], bool]) -> None:
            while go_on() and (started := requests.next(todo)) is not None:
                (destination, piece), finish = started
                (data,) = finish(destination)
                if data is not None:
                    destination.keep(data)
                elif sharded:
                    raise vanished_shard(piece.plan.spec, piece.plan.key_of(piece.lo))

        crew.run(drain, len(destinations), self._n_threads)
        if sharded:
            return np.concatenate(starts), np.concatenate(lengths)
        extents = [(destination.first, destination.nbytes) for destination, _ in destinations]
        start, nbytes = np.array(extents, np.int64).reshape(-1, 2).T.copy()
        return start, nbytes

    def _checked(self, upload: Upload, present: Flags, start: Rows, nbytes: Rows) -> tuple[Flags, Rows, Rows]:
        """Return which chunks have the right checksums, and where they lie without them."""
        ready, start, nbytes = present.copy(), start.copy(), nbytes.copy()
        for row in ready.nonzero()[0].tolist():
            payload = upload.view(int(start[row]), int(nbytes[row]))
            first = 0
            try:
                for checksum in self._chain.checksums:
                    before, payload = len(payload), strip_checksum(checksum, payload)
                    first += (before - len(payload)) * checksum.at_start
            except FrameError:
                ready[row] = False
            else:
                start[row] += first
                nbytes[row] = len(payload)
        return ready, start, nbytes

    def _find_streams(self, upload: Upload, ready: Flags, start: Rows, nbytes: Rows) -> tuple[Flags, Streams, Filters]:
        """Return which chunks the device may decode, their streams and filters."""
        chain, inner_nbytes, arrays = self._chain, self._chain.inner_nbytes, list(upload.arrays())
        if chain.compressor is None:
            ready, streams, filters = ready & (nbytes == inner_nbytes), Streams.none(), Filters.none()
        elif len(arrays) == 1 and ready.all():
            ready, streams, filters = find_streams(chain.compressor, arrays[0][0], start, nbytes, inner_nbytes)
        else:
            trusted = np.zeros(len(start), np.bool_)
            parts: list[tuple[Streams, Filters]] = []
            for data, first in arrays:
                rows = np.flatnonzero(ready & (start >= first) & (start < first + len(data)))
                at = start[rows] - first
                trusted[rows], part_streams, blocks = find_streams(
                    chain.compressor, data, at, nbytes[rows], inner_nbytes
                )
                parts.append((part_streams.numbered(rows), blocks.numbered(rows)))
            together = [0] * len(parts)
            ready, streams = trusted, join([part_streams for part_streams, _ in parts], together)
            filters = join([blocks for _, blocks in parts], together)
        if chain.shuffle is not None:
            filters = shuffled(ready.nonzero()[0], inner_nbytes, chain.shuffle)
        return ready, streams, filters


def _each(pieces: Sequence[Piece], rows: Rows, decode: Callable[[int], None]) -> None:
    """Decode chunks by their places in `rows`, on free threads."""
    todo = deque(range(len(rows)))

    def drain(go_on: Callable[[], bool]) -> None:
        while go_on():
            try:
                number = todo.popleft()
            except IndexError:
                return
            try:
                decode(number)
            except FrameError as err:
                todo.clear()
                raise chunk_fault(*row_of(pieces, int(rows[number])), err) from err

    crew.run(drain, len(rows))
