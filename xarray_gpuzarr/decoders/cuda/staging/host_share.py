"""The chunks of a read that threads of the host decode while the device decodes the others.

They are the last stored rows of every plan, in proportion. Threads fetch and decode them into pinned slots, one slot
after another, those of local files in one call of the compiled loops (`looped`). Each slot crosses to the device in one
copy, to be placed by the same kernels as all other chunks. `split` says how many they are; `read` says when it is their
turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from time import perf_counter
from typing import Literal

import numpy as np

from xarray_gpuzarr.cuda.api import Bytes
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cost.taken import FEW_NBYTES, Taken
from xarray_gpuzarr.decoders.cuda.batches.pieces import ENDLESS, Piece, aligned, parts
from xarray_gpuzarr.decoders.cuda.split import ReadsUnderWay
from xarray_gpuzarr.decoders.cuda.staging.looped import Looped, read_local
from xarray_gpuzarr.decoders.cuda.staging.requests import Requests
from xarray_gpuzarr.decoders.cuda.staging.staged import Flags, Staged
from xarray_gpuzarr.decoders.cuda.staging.upload import Upload
from xarray_gpuzarr.decoders.faults import chunk_fault, vanished_shard
from xarray_gpuzarr.decoders.host.codecs import chunk_codec
from xarray_gpuzarr.decoders.host.native_program import NativeProgram, native_program
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.fetch import ByteSource
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.native import loops
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

_BYTES = np.dtype(np.uint8)
_N_SLOTS = 4
_SLOT_NBYTES = 8 << 20
"""A share is staged in so many turns at least, unless these would be shorter: most crosses while some is decoded."""


def _to_bytes(spec: ArraySpec) -> NativeProgram | None:
    """Return how the loops decode a chunk to one run of bytes; None if elements change only as they are placed."""
    program = native_program(spec.codecs, spec.chunk_nbytes, _BYTES, Cast(dtype=_BYTES.str))
    return None if program is None or program.changes_elements else program


class HostShare:
    """The host's part of one read.

    Parameters
    ----------
    workspace : Workspace
    source : ByteSource
    spec : ArraySpec
    n_host : int
        Chunks that the host decodes.
    n_chunks : int
        Chunks of the read.
    reading : ReadsUnderWay
        Says how many threads may decode them just now.
    taken : Taken, optional
        Is told what threads have taken. As long as it does not know both sides, it is asked again before each plan.
    """

    def __init__(  # noqa: PLR0913  # the knobs of one share
        self,
        workspace: Workspace,
        source: ByteSource,
        spec: ArraySpec,
        *,
        n_host: int,
        n_chunks: int,
        reading: ReadsUnderWay,
        taken: Taken | None = None,
    ) -> None:
        self._workspace = workspace
        self._source = source
        self._chunk_nbytes = spec.chunk_nbytes
        self._codec = chunk_codec(spec.codecs, spec.chunk_nbytes)
        self._program = _to_bytes(spec)
        self._loops = loops() if source.is_local and self._program is not None else None
        """They read and decode what they can of local files."""
        self._reading, self._taken = reading, taken
        self._is_learning = taken is not None and not n_host and not taken.is_known
        self._n_left = n_chunks
        self.n_under_way = 0
        """Chunks that the device has been given and has not decoded."""
        self._due = 0.0
        self._requests: Requests | None = None
        """Of all that waits, once the first of it is taken."""
        self._waiting: deque[Piece] = deque()
        """Each of one request."""
        self._begin(n_chunks, n_host)

    def _begin(self, n_chunks: int, n_host: int) -> None:
        """Let so many of the next chunks be the host's."""
        n_threads = self._n_threads()
        self.n_host, self._n_device = n_host, max(1, n_chunks - n_host)
        self._n_chunks, self._n_seen, self._n_marked = max(1, n_chunks), 0, 0
        rounds = -(-n_host // (n_threads * max(1, FEW_NBYTES // self._chunk_nbytes)))
        self._at_once = max(1, -(-n_host // (n_threads * max(1, rounds))))
        """Chunks that a thread takes: all threads as many."""
        few = max(n_threads * self._at_once, -(-n_host // _N_SLOTS), _SLOT_NBYTES // self._chunk_nbytes)
        self._most = max(1, min(few, self._workspace.options.slot_nbytes // aligned(self._chunk_nbytes)))
        """Chunks that are staged together."""

    def _n_threads(self) -> int:
        return self._reading.n_threads

    def __bool__(self) -> bool:
        """Say whether chunks wait to be decoded."""
        return bool(self._waiting)

    def mark(self, plan: ReadPlan) -> int:
        """Take the host's rows of a plan; return how many rows, the first ones, are the device's."""
        n_rows = len(plan.offset)
        if self._is_learning and self._taken is not None:
            self._is_learning = not self._taken.is_known
            n = n_rows if self._is_learning else self._n_left
            self._begin(n, self._taken.for_host(n, thread_budget(), self._reading.n, self.n_under_way))
        self._n_left -= n_rows
        self._n_seen += n_rows
        n_mine = min(n_rows, self.n_host * self._n_seen // self._n_chunks - self._n_marked)
        self._n_marked += n_mine
        if n_mine:
            pieces = self._pieces(plan, n_rows - n_mine)
            self._waiting.extend(pieces)
            if self._requests is not None:
                _expect(self._requests, pieces)
        self.n_under_way += n_rows - n_mine
        return n_rows - n_mine

    def due(self, n_device: int) -> Iterator[Sequence[Piece]]:
        """Yield what threads should decode while the device decodes so many chunks, slot by slot."""
        self._due += n_device * self.n_host / self._n_device
        while self._waiting and self._due >= min(self._most, self._n_threads()):
            pieces = self.take(int(self._due))
            self._due -= n_rows(pieces)
            yield pieces

    def take(self, most: int = ENDLESS) -> Sequence[Piece]:
        """Take what fits a slot, up to so many chunks, at least a piece; no thread is to idle before all have ended."""
        if self._requests is None and self._loops is None:
            self._requests = Requests(self._source)
            _expect(self._requests, self._waiting)
        n_threads, room = self._n_threads(), min(most, self._most)
        pieces: list[Piece] = []
        while self._waiting and (not pieces or n_rows((*pieces, self._waiting[0])) <= room):
            pieces.append(self._waiting.popleft())
        n_last = len(pieces) % n_threads if len(pieces) > n_threads and self._waiting else 0
        self._waiting.extendleft(pieces.pop() for _ in range(n_last))
        return pieces

    def halve(self, pieces: Sequence[Piece]) -> bool:
        """Let pieces wait again that the device had no memory for, to be taken in halves; say whether they can be."""
        n = n_rows(pieces)
        self._most = max(1, n // 2)
        self._waiting.extendleft(half for piece in reversed(pieces) for half in reversed(_halves(piece)))
        self._requests = None
        return n > 1

    def stage(self, pieces: Sequence[Piece]) -> Staged:
        """Fetch and decode pieces, in the order in which they were taken, and send them to the device.

        Raises
        ------
        CorruptChunkError, StoreReadError
        """
        workspace = self._workspace
        n, spacing, begun_s = n_rows(pieces), aligned(self._chunk_nbytes), perf_counter()
        upload = Upload(workspace, n * spacing)
        first, memory = upload.allocate(n * spacing)
        chunks = np.frombuffer(memory, np.uint8).reshape(n, spacing)[:, : self._chunk_nbytes]
        with workspace.stage("decode"):
            present = self._read(pieces, chunks) if self._loops is None else self._read_local(pieces, chunks)
        with workspace.stage("transfer"):
            memories, address = upload.send(first + spacing * np.arange(n))
        address[~present] = 0
        counters.add(n_by_host=n)
        if self._taken is not None:
            self._taken.by_host(perf_counter() - begun_s, n, self._n_threads())
        return Staged.of_decoded(memories, address, np.full(n, self._chunk_nbytes))

    def _read_local(self, pieces: Sequence[Piece], chunks: Bytes) -> Flags:
        """Let the compiled loops read and decode chunks of local files; return which are there."""
        assert self._loops is not None
        assert self._program is not None
        arguments = self._loops, self._program, self._source, pieces, chunks, self._n_threads()
        found: list[Looped] = []
        crew.run(lambda _: found.append(read_local(*arguments)), 1)
        (looped,), present = found, np.ones(len(chunks), np.bool_)
        present[looped.absent] = False
        for plan, row, number in looped.left:
            piece = Piece.of(plan, row, row + 1)
            (data,) = self._source.start(piece.requests())(_staging)
            if data is None:
                present[number] = _may_be_missing(plan, row)
            else:
                self._decode(piece, data, [memoryview(chunks[number])])
        return present

    def _read(self, pieces: Sequence[Piece], chunks: Bytes) -> Flags:
        """Finish requests on free threads and decode what they bring; return which chunks are there."""
        requests = self._requests
        assert requests is not None
        present = np.ones(len(chunks), np.bool_)
        lows = accumulate((piece.hi - piece.lo for piece in pieces), initial=0)
        todo = iter([(piece, low) for piece, low in zip(pieces, lows, strict=False)])

        def drain(go_on: Callable[[], bool]) -> None:
            while go_on() and (started := requests.next(todo)) is not None:
                (piece, low), finish = started
                (data,) = finish(_staging)
                if data is None:
                    present[low] = _may_be_missing(piece.plan, piece.lo)
                else:
                    self._decode(piece, data, [memoryview(chunk) for chunk in chunks[low : low + piece.hi - piece.lo]])

        crew.run(drain, min(len(pieces), self._n_threads()))
        return present

    def _pieces(self, plan: ReadPlan, first: int) -> list[Piece]:
        """Return the rows of a plan from `first` on, as pieces of one request each."""
        if plan.spec.index is None:
            return [Piece.of(plan, row, row + 1) for row in range(first, len(plan.offset))]
        # How long requests should be that are under way elsewhere, their latency tells.
        at_once = self._most if self._source.is_remote else self._at_once
        return [
            Piece.of(plan, lo, min(lo + at_once, part.hi))
            for part in parts(plan, self._source.rule, first)
            for lo in range(part.lo, part.hi, at_once)
        ]

    def _decode(self, piece: Piece, data: memoryview, views: Sequence[memoryview]) -> None:
        """Decode the chunks of a piece, each to memory of its own."""
        plan = piece.plan
        for row, view in zip(range(piece.lo, piece.hi), views, strict=True):
            first = int(plan.offset[row]) - piece.first
            encoded = data if plan.spec.index is None else data[first : first + int(plan.nbytes[row])]
            try:
                self._codec.into(encoded, view)
            except FrameError as err:
                raise chunk_fault(plan, row, err) from err


def n_rows(pieces: Iterable[Piece]) -> int:
    """Return the chunks of pieces."""
    return sum(piece.hi - piece.lo for piece in pieces)


def _expect(requests: Requests, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        requests.expect(piece.requests())


def _halves(piece: Piece) -> tuple[Piece, ...]:
    first, second = piece.split(max(1, (piece.hi - piece.lo) // 2))
    return (first,) if second is None else (first, second)


def _staging(nbytes: int) -> memoryview:
    """Return memory of this thread for encoded bytes, valid until the next call."""
    return memoryview(buffer("staging", nbytes))


def _may_be_missing(plan: ReadPlan, row: int) -> Literal[False]:
    """Return that a chunk is not there, or raise: a shard must be, since its index was read."""
    if plan.spec.index is not None:
        raise vanished_shard(plan, row)
    return False
