"""Encoded chunks from a store into device memory, through pinned slots.

Pieces (rows of a plan that are fetched together) are read side by side into one pinned slot, their headers are checked
there, and the slot crosses to the device in one copy. What the device cannot be trusted with (an unusual frame, a
damaged one) is decoded by the host codec, which also words the error, and crosses decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS, join
from xarray_gpuzarr.decoders.cuda.batches.pieces import ENDLESS, Piece, aligned, cut, row_of
from xarray_gpuzarr.decoders.cuda.batches.streams import Filters, Streams, find_streams, shuffled
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.shadows import NO_SHADOWS, Choice
from xarray_gpuzarr.decoders.cuda.staging.by_host import ByHost
from xarray_gpuzarr.decoders.cuda.staging.requests import Requests
from xarray_gpuzarr.decoders.cuda.staging.staged import Column, Flags, Staged
from xarray_gpuzarr.decoders.cuda.staging.upload import Destination, Upload, upload_pageable
from xarray_gpuzarr.decoders.faults import vanished_chunk, vanished_shard
from xarray_gpuzarr.decoders.host.checksums import strip_checksum
from xarray_gpuzarr.fetch import ByteSource
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.process import threads
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.stored.array_spec import ArraySpec

_REQUESTS_PER_THREAD = 2
"""Of a slot, for each of the threads that fill it: with one, all would wait for the slowest."""


class Stager:
    """Brings the chunks of one array to the device.

    Parameters
    ----------
    workspace : Workspace
    source : ByteSource
    spec : ArraySpec
    chain : Chain
        What the device does to chunks.
    choice : Choice, optional
        Which of them the host decodes as well.
    """

    def __init__(
        self, workspace: Workspace, source: ByteSource, spec: ArraySpec, *, chain: Chain, choice: Choice | None = None
    ) -> None:
        self._workspace = workspace
        self._source = source
        self._chunk_nbytes = spec.chunk_nbytes
        self._chain = chain
        self._rule = source.rule
        self._n_threads = threads.fetching_budget()
        self._most_nbytes = _request_nbytes(source.rule, workspace.options.slot_nbytes // self._n_threads)
        self._requests = Requests(source)
        self._choice = choice
        self._by_host = ByHost(spec)

    @property
    def rule(self) -> CoalesceRule:
        """Which neighbours make a piece, however long: segments and requests cut it."""
        return replace(self._rule, max_nbytes=ENDLESS)

    @property
    def slot_nbytes(self) -> int:
        """Bytes that cross to the device together."""
        return self._workspace.options.slot_nbytes

    @property
    def n_decoded(self) -> int:
        """Chunks that the host has decoded, because the device cannot be trusted with them or could not."""
        return self._by_host.n_decoded

    @property
    def is_busy(self) -> bool:
        """Whether nothing is gained by expecting more before what is expected is staged."""
        return self._requests.are_enough

    def expect(self, piece: Piece) -> None:
        """Take in a piece that will be staged after all that are expected already."""
        self._requests.expect(piece.requests(self._most_nbytes))

    def forget(self) -> None:
        """Expect nothing any more."""
        self._requests.forget()

    def stage(self, pieces: Sequence[Piece]) -> Staged:
        """Fetch pieces, check their headers, and send them to the device on the workspace's `copy` stream.

        Raises
        ------
        CorruptChunkError, StoreReadError
        """
        workspace = self._workspace
        upload = Upload(workspace, sum(aligned(piece.nbytes) for piece in pieces))
        with workspace.stage("fetch"):
            first, length = self._fetch(pieces, upload)
        present = first >= 0
        ready, start, nbytes = self._checked(upload, present, first, length)
        ready, streams, filters = self._find_streams(upload, ready, start, nbytes)
        doubtful = NO_ROWS if streams.one_each else (present & ~ready).nonzero()[0]
        if len(doubtful):
            encoded = [upload.view(int(first[row]), int(length[row])) for row in doubtful]
            start[doubtful] = [upload.append(chunk) for chunk in self._by_host.decode(pieces, doubtful, encoded)]
        chosen = NO_ROWS if self._choice is None else self._choice.of(ready.nonzero()[0])
        shadows = NO_SHADOWS
        if len(chosen):
            both = [upload.view(int(first[row]), int(length[row])) for row in chosen]
            shadows = self._by_host.shadows(pieces, chosen, both)
        with workspace.stage("transfer"):
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

    def stage_decoded(self, pieces: Sequence[Piece], numbers: Column) -> Staged:
        """Fetch some chunks of `pieces` anew, decode them on the host, and send them to the device.

        Raises
        ------
        CorruptChunkError, StoreReadError
        """
        workspace = self._workspace
        chunks = self._by_host.decode(pieces, numbers, self._fetch_again(pieces, numbers))
        spacing = aligned(self._chunk_nbytes)
        memory = workspace.lend_device_slot(spacing * len(chunks))
        upload_pageable(workspace, memory.address, chunks)
        address = memory.address + spacing * np.arange(len(chunks), dtype=np.uint64)
        return Staged.of_decoded([memory], address, np.full(len(chunks), self._chunk_nbytes))

    def _fetch_again(self, pieces: Sequence[Piece], numbers: Column) -> list[memoryview]:
        """Fetch some chunks of pieces to memory of the host."""
        encoded = []
        for plan, row in (row_of(pieces, number) for number in numbers.tolist()):
            data = self._source.start(plan.requests(row, row + 1))(lambda nbytes: memoryview(bytearray(nbytes)))[0]
            if data is None:
                raise vanished_chunk(plan, row)
            encoded.append(data)
        return encoded

    def _fetch(self, pieces: Sequence[Piece], upload: Upload) -> tuple[Column, Column]:
        """Carry out the requests of pieces on free threads.

        Returns
        -------
        start, nbytes : int64, shape (n,)
            Where in the upload each chunk begins, -1 if nowhere, and its length.
        """
        sharded = pieces[0].plan.spec.index is not None
        positions, destinations = self._ranges(pieces, upload) if sharded else ([], _objects(pieces, upload))
        todo = iter(destinations)

        def drain(go_on: Callable[[], bool]) -> None:
            while go_on() and (started := self._requests.next(todo)) is not None:
                (destination, piece), finish = started
                (data,) = finish(destination)
                if data is not None:
                    destination.keep(data)
                elif sharded:
                    raise vanished_shard(piece.plan, piece.lo)

        crew.run(drain, len(destinations), self._n_threads)
        if sharded:
            return _rows(pieces, positions)
        found = [(destination.first, destination.nbytes) for destination, _ in destinations]
        first, nbytes = np.array(found, np.int64).reshape(-1, 2).T.copy()
        return first, nbytes

    def _ranges(self, pieces: Sequence[Piece], upload: Upload) -> tuple[list[int], list[tuple[Destination, Piece]]]:
        """Set memory aside for pieces of shards; return its positions, and the destinations of all requests."""
        positions, destinations = [], []
        for piece in pieces:
            first, view = upload.allocate(piece.nbytes)
            positions.append(first)
            destinations += [
                (Destination(upload, view[at : at + n]), piece) for at, n in cut(piece.nbytes, self._most_nbytes)
            ]
        return positions, destinations

    def _find_streams(
        self, upload: Upload, ready: Flags, start: Column, nbytes: Column
    ) -> tuple[Flags, Streams, Filters]:
        """Return which chunks the device may decode, their streams and filters."""
        ready, streams, filters = self._find_compressed(upload, ready, start, nbytes)
        if self._chain.shuffle is not None:
            filters = shuffled(ready.nonzero()[0], self._chain.inner_nbytes, self._chain.shuffle)
        return ready, streams, filters

    def _checked(self, upload: Upload, present: Flags, start: Column, nbytes: Column) -> tuple[Flags, Column, Column]:
        """Return which chunks have the right checksums, and where they lie without them."""
        if not self._chain.checksums:
            return present, start, nbytes
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

    def _find_compressed(
        self, upload: Upload, ready: Flags, start: Column, nbytes: Column
    ) -> tuple[Flags, Streams, Filters]:
        compressor, inner_nbytes = self._chain.compressor, self._chain.inner_nbytes
        if compressor is None:
            return ready & (nbytes == inner_nbytes), Streams.none(), Filters.none()
        arrays = list(upload.arrays())
        if len(arrays) == 1 and ready.all():
            return find_streams(compressor, arrays[0][0], start, nbytes, inner_nbytes)
        trusted = np.zeros(len(start), bool)
        streams: list[Streams] = []
        filters: list[Filters] = []
        for data, first in arrays:
            rows = np.flatnonzero(ready & (start >= first) & (start < first + len(data)))
            trusted[rows], found, blocks = find_streams(
                compressor, data, start[rows] - first, nbytes[rows], inner_nbytes
            )
            streams.append(found.numbered(rows))
            filters.append(blocks.numbered(rows))
        together = [0] * len(streams)
        return trusted, join(streams, together), join(filters, together)


def _request_nbytes(rule: CoalesceRule, share_nbytes: int) -> int:
    """Return the longest request for bytes that are read to where they stay; `share_nbytes` is a thread's of a slot."""
    return min(rule.max_raw_nbytes, max(rule.max_nbytes, share_nbytes // _REQUESTS_PER_THREAD))


def _objects(pieces: Sequence[Piece], upload: Upload) -> list[tuple[Destination, Piece]]:
    """Return destinations for objects, whose lengths are not known."""
    return [(Destination(upload), piece) for piece in pieces for _ in range(piece.lo, piece.hi)]


def _rows(pieces: Sequence[Piece], positions: Sequence[int]) -> tuple[Column, Column]:
    """Return where in the upload each chunk of pieces of shards begins, and its length."""
    start = [
        plan.offset[lo:hi] + (position - first)
        for (plan, lo, hi, first, _), position in zip(pieces, positions, strict=True)
    ]
    nbytes = [plan.nbytes[lo:hi] for plan, lo, hi, _, _ in pieces]
    return (start[0], nbytes[0]) if len(pieces) == 1 else (np.concatenate(start), np.concatenate(nbytes))
