"""Encoded chunks from a store into device memory, through pinned slots.

Pieces (rows of a plan that are fetched together) are read side by side into one pinned slot, their headers are checked
there, and the slot crosses to the device in one copy. What the device cannot be trusted with (an unusual frame, a
damaged one) is decoded by the host codec, which also words the error, and crosses decoded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.api import DeviceMemory
from xarray_gpuzarr.cuda.resources import Lane
from xarray_gpuzarr.decoders import threads
from xarray_gpuzarr.decoders.cuda.batches import Piece, aligned, row_of, runs
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.image import Image, upload_pageable
from xarray_gpuzarr.decoders.cuda.streams import Filters, Streams, find_streams, join, shuffled
from xarray_gpuzarr.decoders.faults import corrupt_chunk, vanished_shard
from xarray_gpuzarr.decoders.host_checksums import strip_checksum
from xarray_gpuzarr.decoders.host_codecs import ChunkCodec
from xarray_gpuzarr.fetch import ByteSource, MemoryStream, Pending, ReadAhead, Request
from xarray_gpuzarr.frames import FrameError
from xarray_gpuzarr.metadata import ArraySpec
from xarray_gpuzarr.plan import ReadPlan

Column = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Chunks on their way to the device. Columns have one row per chunk of the pieces that were staged, in order."""

    memories: Sequence[DeviceMemory]
    """Where the chunks lie; belong to the lane's `copy` stream."""
    address: Addresses
    """shape (n,): device address of the chunk; 0 if its object does not exist."""
    nbytes: Column
    """shape (n,): length in bytes, without checksums that have been checked."""
    streams: Streams
    """Of the chunks that crossed encoded, numbered as the rows."""
    filters: Filters
    """Likewise."""
    encoded: Flags
    """shape (n,): whether codecs of elements are still to be undone."""

    @classmethod
    def of_decoded(cls, memories: Sequence[DeviceMemory], address: Addresses, nbytes: Column) -> Self:
        """Return chunks that cross decoded."""
        none, encoded = (Streams.none(), Filters.none()), np.zeros(len(address), np.bool_)
        return cls(memories=memories, address=address, nbytes=nbytes, streams=none[0], filters=none[1], encoded=encoded)


class Stager:
    """Brings the chunks of one array to the device.

    Parameters
    ----------
    lane : Lane
    source : ByteSource
    spec : ArraySpec
    chain : Chain
        What the device does to chunks.
    """

    def __init__(self, lane: Lane, source: ByteSource, spec: ArraySpec, *, chain: Chain) -> None:
        self._lane = lane
        self._source = source
        self._chunk_nbytes = spec.chunk_nbytes
        self._chain = chain
        self._codec = ChunkCodec(spec.codecs, spec.chunk_nbytes)

    def segments(self, pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
        """Cut pieces into runs that are expected to fit a slot."""
        run: list[Piece] = []
        room = self._lane.options.slot_nbytes
        for piece in pieces:
            nbytes = aligned(piece.nbytes)
            if run and nbytes > room:
                yield run
                run, room = [], self._lane.options.slot_nbytes
            run.append(piece)
            room -= nbytes
        if run:
            yield run

    def stage(self, pieces: Sequence[Piece]) -> Staged:
        """Fetch pieces, check their headers, and send them to the device on the lane's `copy` stream.

        Raises
        ------
        CorruptChunkError, StoreReadError
        """
        lane = self._lane
        image = Image(lane)
        with lane.stage("fetch"):
            start, nbytes = _rows(pieces, self._fetch(pieces, image))
        present = start >= 0
        full_start, full_nbytes = start.copy(), nbytes.copy()
        ready, streams, filters = self._find_streams(image, start, nbytes)
        doubtful = np.flatnonzero(~ready & present)
        if len(doubtful):
            encoded = [image.view(int(full_start[row]), int(full_nbytes[row])) for row in doubtful]
            start[doubtful] = [image.append(chunk) for chunk in self._decode_on_host(pieces, doubtful, encoded)]
        with lane.stage("transfer"):
            memories, address = image.send(start)
        address[~present] = 0
        return Staged(
            memories=memories,
            address=address,
            nbytes=nbytes,
            streams=streams,
            filters=filters,
            encoded=ready & bool(self._chain.elements),
        )

    def stage_decoded(self, pieces: Sequence[Piece], numbers: Column) -> Staged:
        """Fetch some chunks of `pieces` anew, decode them on the host, and send them to the device.

        Raises
        ------
        CorruptChunkError, StoreReadError
        """
        lane = self._lane
        encoded = []
        for plan, row in (row_of(pieces, number) for number in numbers.tolist()):
            data = self._source.start(*plan.requests(row, row + 1)[0])(lambda nbytes: memoryview(bytearray(nbytes)))
            if data is None:
                raise vanished_shard(plan)
            encoded.append(data)
        chunks = self._decode_on_host(pieces, numbers, encoded)
        room = aligned(self._chunk_nbytes)
        memory = lane.allocate(room * len(chunks), lane.copy)
        upload_pageable(lane, memory.address, chunks)
        address = memory.address + room * np.arange(len(chunks), dtype=np.uint64)
        return Staged.of_decoded([memory], address, np.full(len(chunks), self._chunk_nbytes))

    def _fetch(self, pieces: Sequence[Piece], image: Image) -> list[list[tuple[int, int]]]:
        """Carry out the requests of all pieces on free threads; return per piece where in the image answers lie."""
        answers: list[list[tuple[int, int]]] = []
        requests = Requests(self._source)
        for piece in pieces:
            wanted = piece.requests()
            answers.append([(-1, 0)] * len(wanted))
            requests.todo += [(answers[-1], k, piece.plan, request) for k, request in enumerate(wanted)]

        def drain(go_on: Callable[[], bool]) -> None:
            while go_on() and (item := requests.next()) is not None:
                (places, k, plan, _), finish = item
                data = finish(image.reserve)
                if data is not None:
                    places[k] = image.keep(data), len(data)
                elif plan.spec.index is not None:
                    raise vanished_shard(plan)

        threads.crew.run(drain, min(len(requests.todo), threads.thread_budget()))
        return answers

    def _find_streams(self, image: Image, start: Column, nbytes: Column) -> tuple[Flags, Streams, Filters]:
        """Return which chunks the device may decode, their streams and filters.

        `start` and `nbytes` lose checksums that were right.
        """
        ready, streams, filters = self._find_compressed(image, self._checked(image, start, nbytes), start, nbytes)
        if self._chain.shuffle is not None:
            filters = shuffled(np.flatnonzero(ready), self._chain.inner_nbytes, self._chain.shuffle)
        return ready, streams, filters

    def _checked(self, image: Image, start: Column, nbytes: Column) -> Flags:
        """Return which chunks are there and have the right checksums, and take these off."""
        ready = start >= 0
        for row in np.flatnonzero(ready).tolist() if self._chain.checksums else ():
            payload = image.view(int(start[row]), int(nbytes[row]))
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
        return ready

    def _find_compressed(
        self, image: Image, ready: Flags, start: Column, nbytes: Column
    ) -> tuple[Flags, Streams, Filters]:
        compressor, inner_nbytes = self._chain.compressor, self._chain.inner_nbytes
        if compressor is None:
            return ready & (nbytes == inner_nbytes), Streams.none(), Filters.none()
        arrays = list(image.arrays())
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

    def _decode_on_host(
        self, pieces: Sequence[Piece], rows: Column, encoded: Sequence[memoryview]
    ) -> Sequence[memoryview]:
        """Decode chunks that are unusual or damaged, on free threads; the codec's word is final."""
        decoded = [memoryview(bytearray(self._chunk_nbytes)) for _ in encoded]
        todo = deque(range(len(encoded)))

        def drain(go_on: Callable[[], bool]) -> None:
            while go_on():
                try:
                    number = todo.popleft()
                except IndexError:
                    return
                try:
                    self._decode(encoded[number], decoded[number])
                except FrameError as err:
                    todo.clear()
                    raise corrupt_chunk(*row_of(pieces, int(rows[number])), str(err)) from err

        threads.crew.run(drain, min(len(encoded), threads.thread_budget()))
        return decoded

    def _decode(self, encoded: memoryview, decoded: memoryview) -> None:
        if self._codec.streams:  # the way that also sees whatever follows the frame
            self._codec.from_stream(MemoryStream(encoded), decoded)
        else:
            self._codec.into(encoded, decoded)


def _rows(pieces: Sequence[Piece], answers: list[list[tuple[int, int]]]) -> tuple[Column, Column]:
    """Return where in the image each chunk begins, -1 if nowhere, and its length."""
    if pieces[0].plan.spec.index is None:
        at = np.array([place for places in answers for place in places], np.int64)
        return at[:, 0].copy(), at[:, 1].copy()
    columns = [(plan.offset[lo:hi], plan.nbytes[lo:hi]) for plan, lo, hi in runs(pieces)]
    offset, nbytes = columns[0] if len(columns) == 1 else map(np.concatenate, zip(*columns, strict=True))
    moved = [places[0][0] - piece.first for piece, places in zip(pieces, answers, strict=True)]
    return offset + np.repeat(moved, [piece.hi - piece.lo for piece in pieces]), nbytes.copy()


_Item = tuple[list[tuple[int, int]], int, ReadPlan, Request]


class Requests:
    """Requests in order, the next few already under way."""

    def __init__(self, source: ByteSource) -> None:
        self.todo: list[_Item] = []
        self._source = source
        self._read_ahead = ReadAhead(source)
        self._lock = threading.Lock()
        self._n_started = 0
        self._started: deque[tuple[_Item, Pending]] = deque()

    def next(self) -> tuple[_Item, Pending] | None:
        """Return a request that was started, None if there is none left."""
        with self._lock:
            first = self._n_started
            while self._n_started < len(self.todo) and len(self._started) <= self._source.lookahead:
                item = self.todo[self._n_started]
                self._started.append((item, self._source.start(*item[3])))
                self._n_started += 1
            queued = self.todo[first : self._n_started]
            following = self._started.popleft() if self._started else None
        self._read_ahead(request for *_, request in queued)
        return following
