"""One read by the CUDA decoder: segments are staged as they come, batches of them decoded and placed, receipts checked.

The host fetches and enqueues the next batches while the device works on earlier ones, which overlap there as well:
each runs on a stream of its own, behind the copies of its segments. The host waits for pinned slots, for the oldest
batch when too many are under way, and at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.api import DeviceMemory, Event, Stream
from xarray_gpuzarr.cuda.resources import MAX_BATCHES, Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS
from xarray_gpuzarr.decoders.cuda.batches.learnt import Lesson
from xarray_gpuzarr.decoders.cuda.batches.pieces import (
    ENDLESS,
    Batch,
    Cutter,
    Piece,
    aligned,
    cut_segments,
    parts,
    row_of,
)
from xarray_gpuzarr.decoders.cuda.batches.sizes import BatchLimits
from xarray_gpuzarr.decoders.cuda.chain import needed_nbytes, read_chain
from xarray_gpuzarr.decoders.cuda.decoding.decode import BatchDecoder, Decoding
from xarray_gpuzarr.decoders.cuda.decoding.placing import Placing
from xarray_gpuzarr.decoders.cuda.decoding.receipts import Receipt
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Choice, different_values
from xarray_gpuzarr.decoders.cuda.staging.direct import stager_for
from xarray_gpuzarr.decoders.cuda.staging.host_share import HostShare, n_rows
from xarray_gpuzarr.decoders.cuda.staging.staged import Staged, put_together
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.fetch import ByteSource
from xarray_gpuzarr.plan.read_plan import ReadPlan, Target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

Column = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False, kw_only=True)
class Submitted:
    """A batch that the device has been given, and what the host still owes it."""

    batch: Batch
    decoding: Decoding
    memories: Sequence[DeviceMemory]
    """All that it uses."""
    begun: Event | None
    """Where all was there that it needs, if somebody asks when that was."""
    done: Event
    is_finished: bool = False
    """Whether the device has been given all of it."""

    @property
    def receipt(self) -> Receipt | None:
        """What tells how it went, once it is done."""
        return self.decoding.receipt


@record
class _Segment:
    """Pieces that are staged together."""

    pieces: Sequence[Piece]
    missing: Sequence[Column]
    """Chunks that take the fill value, as `ReadPlan.missing_row`."""
    ends_batch: bool


class Read:
    """One read by the CUDA decoder.

    Parameters
    ----------
    workspace : Workspace
        Lent to this read.
    source : ByteSource
    spec : ArraySpec
        One that the device decodes.
    target : BoxTarget, PointTarget or StackTarget
    cast : Cast
    lesson : Lesson
        Says how long batches should be, and learns it.
    choice : Choice, optional
        Which chunks of the device's the host decodes as well.
    out : device array, shape of the target, dtype of the cast, C order, or None
        What to fill; None makes an array, and so does one that is not aligned to its elements.
    """

    def __init__(  # noqa: PLR0913  # the knobs of one read
        self,
        workspace: Workspace,
        source: ByteSource,
        spec: ArraySpec,
        *,
        target: Target,
        cast: Cast,
        lesson: Lesson,
        choice: Choice | None = None,
        out: Any = None,
    ) -> None:
        self._workspace = workspace
        self._api = workspace.api
        self._chunk_nbytes = spec.chunk_nbytes
        chain = read_chain(spec)
        self._limits = BatchLimits.of(
            spec.path,
            chunk_nbytes=self._chunk_nbytes,
            needed_nbytes=needed_nbytes(spec),
            budget_nbytes=workspace.scratch_nbytes,
            options=workspace.options,
            wave=lesson.learnt.wave,
        )
        self._lesson = lesson
        self._n_chunks = target.n_chunks
        self._stager = stager_for(workspace, source, spec, chain=chain, choice=choice)
        self._choice = choice
        self._share: HostShare | None = None
        if out is None or self._api.address(out) % np.dtype(cast.dtype).itemsize:  # where no kernel writes to
            out = workspace.result(target.shape, np.dtype(cast.dtype), workspace.first)
        else:
            workspace.fill(out, workspace.first)
        self.out = out
        self._placing = Placing(workspace, spec, target, cast=cast, out=self._api.address(self.out))
        self._decoder = BatchDecoder(workspace, self._placing, chain)
        self._decompresses = chain.compressor is not None
        self._has_elements = bool(chain.elements)
        self._requested_nbytes = aligned(max(chain.inner_nbytes, chain.chunk_nbytes))
        self._gathering: list[Piece] = []
        self._missing: list[Column] = []
        self._expected: deque[_Segment] = deque()
        """Segments whose requests are under way, as far as the store takes them."""
        self._growing: list[_Segment] = []
        """Segments of the next batch that are staged."""
        self._staged: list[Staged] = []
        self._submitted: deque[Submitted] = deque()
        self._beside: deque[Submitted] = deque()
        """Chunks that the host has decoded."""
        self._doubtful: list[tuple[Batch, Column]] = []

    @property
    def n_left_to_host(self) -> int:
        """Chunks that the device was not given encoded, or could not decode."""
        return self._stager.n_decoded

    def run(self, plans: Iterator[ReadPlan], share: HostShare | None = None) -> Any:
        """Carry out plans that together cover the target; return the array, ready for any stream.

        Parameters
        ----------
        plans : iterator of ReadPlan
        share : HostShare or None
            Has the chunks that threads of the host decode while the device decodes the others.
        """
        if share is not None:
            self._share, self._n_chunks = share, self._n_chunks - share.n_host
        self._workspace.share(with_beside=share is not None)
        stager, rule = self._stager, self._stager.rule
        lesson = self._lesson
        self._limits = self._limits.for_read(self._n_chunks, lesson.learnt, is_watched=lesson.is_on)
        if self._decompresses:
            lesson.expect(self._workspace)
        lesson.n_chunks = min(self._limits.n_chunks, self._n_chunks)
        sizes, most_nbytes = self._limits.sizes(self._n_chunks), self._limits.n_chunks * self._requested_nbytes
        cutter = Cutter(sizes, most_nbytes=most_nbytes, slot_nbytes=stager.slot_nbytes)
        for plan in self._drawn(plans):
            last = ENDLESS if self._share is None else self._share.mark(plan)
            for piece, full in cutter.cut(parts(plan, rule, last=last)):
                if full is not None:
                    self._gathered(ends_batch=full == "batch")
                self._gathering.append(piece)
                stager.expect(piece)
                while self._expected and stager.is_busy:
                    self._stage(self._expected.popleft())
            if len(plan.missing_row):
                self._missing.append(plan.missing_row)
        self._gathered(ends_batch=True)
        while self._expected:
            self._stage(self._expected.popleft())
        self._end_staging()
        self._retire_all()
        lesson.end()
        for batch_and_numbers in self._doubtful:
            self._decode_again(*batch_and_numbers)
        self._workspace.free(self._placing.memory)
        return self.out

    def _end_staging(self) -> None:
        """Say that nothing more comes, and place what the host decodes."""
        if self._workspace.calls is not None:
            self._workspace.calls.staging.pop(self._workspace, None)
        while self._share:
            self._place_decoded(self._share, self._share.take())

    def _gathered(self, *, ends_batch: bool) -> None:
        """Let what was gathered be a segment."""
        self._expected.append(_Segment(pieces=self._gathering, missing=self._missing, ends_batch=ends_batch))
        self._gathering, self._missing = [], []

    def _drawn(self, plans: Iterator[ReadPlan]) -> Iterator[ReadPlan]:
        """Draw plans, which reads shard indexes."""
        while True:
            with self._api.range("read::index"):  # its seconds are counted by who plans
                plan = next(plans, None)
            if plan is None:
                return
            yield plan

    def _stage(self, segment: _Segment) -> None:
        """Stage a segment; submit the batch that ends with it. If memory runs out, try once more in halves."""
        if not self._growing:
            self._make_room()
        self._growing.append(segment)
        try:
            if segment.pieces:
                n = n_rows(segment.pieces)
                self._staged.append(self._lesson.staged(n, lambda: self._stager.stage(segment.pieces)))
            if segment.ends_batch:
                self._submit(_batch(self._growing), self._staged)
                self._growing, self._staged = [], []
        except DeviceMemoryError:
            batch = _batch(self._growing)
            if batch.n_chunks < 2:
                raise
            self._growing, self._staged = [], []
            self._submit_halves(batch)

    def _submit_halves(self, batch: Batch) -> None:
        """Wait until the device is at rest; then submit what has been staged of a batch once more, a half at a time."""
        self._rest()
        halves = [(half, cut_segments(half.pieces, self._stager.slot_nbytes)) for half in batch.halves()]
        self._stager.forget()
        later = [segment.pieces for segment in self._expected]
        for pieces in (*(pieces for _, segments in halves for pieces in segments), *later, self._gathering):
            for piece in pieces:
                self._stager.expect(piece)
        for half, segments in halves:
            self._submit(half, [self._stager.stage(pieces) for pieces in segments])
            self._retire_all()

    def _rest(self) -> None:
        """Wait until the device is at rest, and give all memory back that batches had."""
        self._retire_all()
        self._workspace.settle()
        self._workspace.free_all(but=[self._placing.memory])

    def _submit(self, batch: Batch, staged: Sequence[Staged]) -> None:
        rows = [piece.plan.row[piece.lo : piece.hi] for piece in batch.pieces]
        if not rows and not batch.missing:
            return
        stored_and_missing = np.concatenate([*rows, *batch.missing])
        self._submitted.append(self._enqueue(batch, staged, stored_and_missing, self._workspace.next_work()))

    def _make_room(self) -> None:
        """Wait until another batch may take memory; the host decodes what it should meanwhile."""
        while self._is_full:
            if self._share is not None:
                for pieces in self._share.due(self._submitted[0].batch.n_chunks):
                    self._place_decoded(self._share, pieces)
            if self._submitted:
                self._retire()

    @property
    def _is_full(self) -> bool:
        """Whether the batches under way leave no room for the longest one."""
        n_chunks = sum(submitted.batch.n_chunks for submitted in self._submitted) + self._limits.n_chunks
        return len(self._submitted) > MAX_BATCHES or (bool(self._submitted) and n_chunks > self._limits.n_under_way)

    def _place_decoded(self, share: HostShare, pieces: Sequence[Piece]) -> None:
        """Let the host decode pieces, and the device place them beside its batches; later in halves if memory is short.

        As many slots of them are under way as there are pinned ones.
        """
        if len(self._beside) >= self._workspace.options.n_slots:
            self._release(self._beside.popleft())
        if self._submitted and self._submitted[0].decoding.calls is not None:
            self._submitted[0].decoding.calls.look()
        try:
            staged = share.stage(pieces)
            rows = np.concatenate([piece.plan.row[piece.lo : piece.hi] for piece in pieces])
            self._beside.append(self._enqueue(Batch(pieces=()), [staged], rows, self._workspace.beside))
        except DeviceMemoryError:
            if not share.halve(pieces):
                raise
            self._rest()

    def _enqueue(self, batch: Batch, staged: Sequence[Staged], rows: Column, work: Stream) -> Submitted:
        """Decode and place what was staged, once it has crossed; `rows` as for `put_together`."""
        chunks = put_together(staged, rows, has_elements=self._has_elements)
        copied, done = self._api.event(), self._lesson.event()
        self._api.record(copied, self._workspace.copy)
        self._api.wait(work, copied)
        begun = self._lesson.begin(work)
        decoding = self._decoder.decode(chunks, work, self._lesson.joins(self._workspace))
        memories = [*decoding.memories, *(memory for s in staged for memory in s.memories)]
        submitted = Submitted(batch=batch, decoding=decoding, memories=memories, begun=begun, done=done)
        if decoding.is_given:
            self._finish(submitted)
        return submitted

    def _finish(self, submitted: Submitted) -> None:
        """Give the device what is left of a batch, once what decompresses has been given."""
        self._decoder.finish(submitted.decoding)
        self._api.record(submitted.done, submitted.decoding.stream)
        submitted.is_finished = True

    def _retire(self) -> None:
        """Wait for the oldest batch, give its memory back, and check what nvCOMP said of its chunks."""
        oldest = self._submitted.popleft()
        self._release(oldest)
        if self._share is not None:
            self._share.n_under_way -= oldest.batch.n_chunks
        if oldest.receipt is not None and oldest.decoding.joint:
            self._lesson.note_joint(oldest.batch.n_chunks, oldest.receipt.n, oldest.decoding.joint)
        elif oldest.receipt is not None:
            self._lesson.note(oldest.batch.n_chunks, oldest.receipt.n, oldest.begun, oldest.done)
        doubtful = oldest.receipt.doubtful() if oldest.receipt is not None else NO_ROWS
        if len(doubtful):
            self._doubtful.append((oldest.batch, doubtful))
        if oldest.receipt is not None and len(oldest.receipt.shadows):
            self._compare(oldest.batch, oldest.receipt, doubtful)

    def _compare(self, batch: Batch, receipt: Receipt, doubtful: Column) -> None:
        """Look at what the host has decoded as well; the host decodes the doubtful chunks again anyway."""
        different = np.setdiff1d(receipt.different(), doubtful)
        counters.add(n_verified=len(receipt.shadows), n_different=len(different))
        if self._choice is not None:
            self._choice.compared()
        if len(different):
            raise different_values(*row_of(batch.pieces, int(different[0])))

    def _retire_all(self) -> None:
        """Wait for all that is under way."""
        while self._beside:
            self._release(self._beside.pop())  # the last one ends last
        while self._submitted:
            self._retire()

    def _release(self, submitted: Submitted) -> None:
        """Wait for a batch, and give its memory back."""
        if not submitted.is_finished:
            self._finish(submitted)
        self._workspace.wait_for(submitted.done)
        submitted.decoding.finish_calls()
        for memory in submitted.memories:
            self._workspace.free(memory)

    def _decode_again(self, batch: Batch, numbers: Column) -> None:
        """Let the host decode chunks of a batch that the device could not; its word is final."""
        step = max(1, self._workspace.options.slot_nbytes // self._chunk_nbytes)
        for first in range(0, len(numbers), step):
            some = numbers[first : first + step]
            staged = self._stager.stage_decoded(batch.pieces, some)
            rows = np.stack([plan.row[row] for plan, row in (row_of(batch.pieces, n) for n in some.tolist())])
            self._release(self._enqueue(Batch(pieces=()), [staged], rows, self._workspace.next_work()))


def _batch(segments: Sequence[_Segment]) -> Batch:
    """Return segments that follow each other as a batch."""
    return Batch(
        pieces=tuple(piece for segment in segments for piece in segment.pieces),
        missing=tuple(rows for segment in segments for rows in segment.missing),
    )
