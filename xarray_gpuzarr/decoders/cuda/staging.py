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
from functools import cached_property
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
from xarray_gpuzarr.decoders.faults import corrupt_chunk, vanished_chunk, vanished_shard
from xarray_gpuzarr.decoders.host_checksums import strip_checksum
from xarray_gpuzarr.decoders.host_codecs import ChunkCodec
from xarray_gpuzarr.fetch import ByteSource, MemoryStream, Pending, ReadAhead, Request
from xarray_gpuzarr.frames import FrameError
from xarray_gpuzarr.metadata import ArraySpec

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
        return cls(
            memories=memories,
            address=address,
            nbytes=nbytes,
            streams=Streams.none(),
            filters=Filters.none(),
            encoded=np.zeros(len(address), np.bool_),
        )


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
        self._codecs = spec.codecs

    @cached_property
    def _codec(self) -> ChunkCodec:
        """What decodes chunks that the device cannot be trusted with; most reads have none."""
        return ChunkCodec(self._codecs, self._chunk_nbytes)

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
            first, length = _rows(pieces, self._fetch(pieces, image))
        present = first >= 0
        ready, start, nbytes = self._checked(image, present, first, length)
        ready, streams, filters = self._find_streams(image, ready, start, nbytes)
        doubtful = (present & ~ready).nonzero()[0]
        if len(doubtful):
            encoded = [image.view(int(first[row]), int(length[row])) for row in doubtful]
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
                raise vanished_chunk(plan, row)
            encoded.append(data)
        chunks = self._decode_on_host(pieces, numbers, encoded)
        room = aligned(self._chunk_nbytes)
        memory = lane.allocate(room * len(chunks), lane.copy)
        upload_pageable(lane, memory.address, chunks)
        address = memory.address + room * np.arange(len(chunks), dtype=np.uint64)
        return Staged.of_decoded([memory], address, np.full(len(chunks), self._chunk_nbytes))

    def _fetch(self, pieces: Sequence[Piece], image: Image) -> list[tuple[int, int]]:
        """Carry out the requests of all pieces on free threads; return where in the image each answer lies."""
        wanted = [request for piece in pieces for request in piece.requests()]
        answers = [(-1, 0)] * len(wanted)
        requests = Requests(self._source, wanted)

        def drain(go_on: Callable[[], bool]) -> None:
            while go_on() and (started := requests.next()) is not None:
                number, finish = started
                data = finish(image.reserve)
                if data is not None:
                    answers[number] = image.keep(data), len(data)
                elif pieces[0].plan.spec.index is not None:
                    raise vanished_shard(pieces[number].plan)

        threads.crew.run(drain, len(wanted))
        return answers

    def _find_streams(
        self, image: Image, ready: Flags, start: Column, nbytes: Column
    ) -> tuple[Flags, Streams, Filters]:
        """Return which chunks the device may decode, their streams and filters."""
        ready, streams, filters = self._find_compressed(image, ready, start, nbytes)
        if self._chain.shuffle is not None:
            filters = shuffled(ready.nonzero()[0], self._chain.inner_nbytes, self._chain.shuffle)
        return ready, streams, filters

    def _checked(self, image: Image, present: Flags, start: Column, nbytes: Column) -> tuple[Flags, Column, Column]:
        """Return which chunks have the right checksums, and where they lie without them."""
        if not self._chain.checksums:
            return present, start, nbytes
        ready, start, nbytes = present.copy(), start.copy(), nbytes.copy()
        for row in ready.nonzero()[0].tolist():
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
        return ready, start, nbytes

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

        threads.crew.run(drain, len(encoded))
        return decoded

    def _decode(self, encoded: memoryview, decoded: memoryview) -> None:
        if self._codec.streams:  # the way that also sees whatever follows the frame
            self._codec.from_stream(MemoryStream(encoded), decoded)
        else:
            self._codec.into(encoded, decoded)


def _rows(pieces: Sequence[Piece], answers: Sequence[tuple[int, int]]) -> tuple[Column, Column]:
    """Return where in the image each chunk begins, -1 if nowhere, and its length."""
    if pieces[0].plan.spec.index is None:
        start, nbytes = np.array(answers, np.int64).T.copy()
        return start, nbytes
    columns = [(plan.offset[lo:hi], plan.nbytes[lo:hi]) for plan, lo, hi in runs(pieces)]
    offset, nbytes = columns[0] if len(columns) == 1 else map(np.concatenate, zip(*columns, strict=True))
    moved = [at - piece.first for piece, (at, _) in zip(pieces, answers, strict=True)]
    return offset + np.array(moved).repeat([piece.hi - piece.lo for piece in pieces]), nbytes


class Requests:
    """Requests in order, the next few already under way."""

    def __init__(self, source: ByteSource, wanted: Sequence[Request]) -> None:
        self._source = source
        self._wanted = wanted
        self._ahead = source.lookahead + 1
        self._read_ahead = ReadAhead(source)
        self._lock = threading.Lock()
        self._next = 0
        self._started: deque[Pending] = deque()

    def next(self) -> tuple[int, Pending] | None:
        """Return the number of a request and what was started for it, None if there is none left."""
        with self._lock:
            number = self._next
            if number == len(self._wanted):
                return None
            queued = self._wanted[number + len(self._started) : number + self._ahead]
            for key, byte_range in queued:
                self._started.append(self._source.start(key, byte_range))
            self._next += 1
            started = self._started.popleft()
        self._read_ahead(queued)
        return number, started
