"""One read by the CUDA decoder: fetch each batch into pinned slots, upload, decompress, place, and check its receipt.

The host fetches and enqueues the next batch while the device works on earlier ones. Each batch runs on a stream of its
own, behind the copies of its segments. The host waits for pinned slots, for the oldest batch when too many are under
way, and at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.api import DeviceMemory, Event
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS
from xarray_gpuzarr.decoders.cuda.batches.pieces import Batch, Cutter, Piece, aligned, cut_segments, parts, row_of
from xarray_gpuzarr.decoders.cuda.batches.sizes import BatchLimits
from xarray_gpuzarr.decoders.cuda.chain import needed_nbytes, read_chain
from xarray_gpuzarr.decoders.cuda.decoding.decode import BatchDecoder
from xarray_gpuzarr.decoders.cuda.decoding.placing import Placing
from xarray_gpuzarr.decoders.cuda.decoding.receipts import Receipt
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Choice, different_values
from xarray_gpuzarr.decoders.cuda.staging import stager_for
from xarray_gpuzarr.decoders.cuda.staging.staged import Staged, put_together
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.fetch import ByteSource
from xarray_gpuzarr.plan.read_plan import ReadPlan, Target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

Column = npt.NDArray[np.int64]


@record
class _Segment:
    """Pieces that are staged together."""

    pieces: Sequence[Piece]
    missing: Sequence[Column]
    """Chunks that take the fill value, as `ReadPlan.missing_row`."""
    ends_batch: bool


@record
class _Submitted:
    """A batch that the device has been given."""

    batch: Batch
    receipt: Receipt | None
    memories: Sequence[DeviceMemory]
    """All that it uses."""
    done: Event


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
        choice: Choice | None = None,
        out: Any = None,
    ) -> None:
        self._workspace = workspace
        self._api = workspace.api
        self._chunk_nbytes = spec.chunk_nbytes
        self._chain = chain = read_chain(spec)
        self._limits = BatchLimits.of(
            spec.path,
            chunk_nbytes=spec.chunk_nbytes,
            needed_nbytes=needed_nbytes(spec),
            budget_nbytes=workspace.scratch_nbytes,
            options=workspace.options,
        )
        self._n_chunks = target.n_chunks
        self._stager = stager_for(workspace, source, spec, chain=chain, choice=choice)
        self._choice = choice
        if out is None or self._api.address(out) % np.dtype(cast.dtype).itemsize:  # where no kernel writes to
            out = workspace.result(target.shape, np.dtype(cast.dtype), workspace.first)
        else:
            workspace.fill(out, workspace.first)
        self.out = out
        self._placing = Placing(workspace, spec, target, cast=cast, out=self._api.address(self.out))
        self._decoder = BatchDecoder(workspace, self._placing, chain)
        self._gathering: list[Piece] = []
        self._expected: deque[_Segment] = deque()
        """Segments whose requests are under way, as far as the store takes them."""
        self._growing: list[_Segment] = []
        """Segments of the next batch that are staged."""
        self._staged: list[Staged] = []
        self._submitted: deque[_Submitted] = deque()
        self._doubtful: list[tuple[Batch, Column]] = []

    @property
    def n_left_to_host(self) -> int:
        """Chunks that the device was not given encoded, or could not decode."""
        return self._stager.n_decoded

    def run(self, plans: Iterator[ReadPlan]) -> Any:
        """Carry out plans that together cover the target; return the array, ready for any stream."""
        self._workspace.share()
        for segment in self._segments(plans):
            self._stage(segment)
        self._retire_all()
        for batch, numbers in self._doubtful:
            self._decode_again(batch, numbers)
        self._workspace.free(self._placing.memory)
        return self.out

    def _segments(self, plans: Iterator[ReadPlan]) -> Iterator[_Segment]:
        """Cut plans into segments; yield each once the store has as many requests as it takes."""
        stager, rule, missing = self._stager, self._stager.rule, list[Column]()
        most_nbytes = self._limits.n_chunks * aligned(max(self._chain.inner_nbytes, self._chain.chunk_nbytes))
        cutter = Cutter(self._sizes(), most_nbytes=most_nbytes, slot_nbytes=stager.slot_nbytes)
        for plan in self._drawn(plans):
            for piece, full in cutter.cut(parts(plan, rule)):
                if full is not None:
                    segment = _Segment(pieces=self._gathering, missing=missing, ends_batch=full == "batch")
                    self._expected.append(segment)
                    self._gathering, missing = [], []
                self._gathering.append(piece)
                stager.expect(piece)
                while self._expected and stager.is_busy:
                    yield self._expected.popleft()
            if len(plan.missing_row):
                missing.append(plan.missing_row)
        self._expected.append(_Segment(pieces=self._gathering, missing=missing, ends_batch=True))
        self._gathering = []
        while self._expected:
            yield self._expected.popleft()

    def _sizes(self) -> Iterator[int]:
        """Yield how many chunks each batch may have, without an end.

        What full batches leave over comes first, so that decoding begins while the next bytes are fetched.
        """
        if self._n_chunks % self._limits.n_chunks:
            yield self._n_chunks % self._limits.n_chunks
        while True:
            yield self._limits.n_chunks

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
            while len(self._submitted) >= self._limits.n_batches:
                self._retire()
        self._growing.append(segment)
        try:
            if segment.pieces:
                self._staged.append(self._stager.stage(segment.pieces))
            if segment.ends_batch:
                self._submit(_batch(self._growing), self._staged)
                self._growing, self._staged = [], []
        except DeviceMemoryError:
            batch = _batch(self._growing)
            if batch.n_chunks < 2:
                raise
            self._growing, self._staged = [], []
            self._submit_halves(batch)

    def _submit(self, batch: Batch, staged: Sequence[Staged]) -> None:
        """Let the device decode and place a batch, once what was staged of it has crossed."""
        rows = [piece.plan.row[piece.lo : piece.hi] for piece in batch.pieces]
        if rows or batch.missing:
            self._submitted.append(self._enqueue(batch, staged, np.concatenate([*rows, *batch.missing])))

    def _enqueue(self, batch: Batch, staged: Sequence[Staged], rows: Column) -> _Submitted:
        """Decode and place what was staged, on the stream of the next batch; `rows` as for `put_together`."""
        chunks = put_together(staged, rows, has_elements=bool(self._chain.elements))
        work, copied, done = self._workspace.next_work(), self._api.event(), self._api.event()
        self._api.record(copied, self._workspace.copy)
        self._api.wait(work, copied)
        receipt, memories = self._decoder.decode(chunks, work)
        self._api.record(done, work)
        memories += [memory for s in staged for memory in s.memories]
        return _Submitted(batch=batch, receipt=receipt, memories=memories, done=done)

    def _submit_halves(self, batch: Batch) -> None:
        """Submit what has been staged of a batch once more, a half at a time; later batches are as short."""
        self._retire_all()
        self._workspace.settle()
        self._workspace.free_all(but=[self._placing.memory])
        self._limits = BatchLimits(n_chunks=batch.n_chunks // 2, n_batches=1)
        halves = [(half, cut_segments(half.pieces, self._stager.slot_nbytes)) for half in batch.halves()]
        self._stager.forget()
        later = [segment.pieces for segment in self._expected]
        for pieces in (*(pieces for _, segments in halves for pieces in segments), *later, self._gathering):
            for piece in pieces:
                self._stager.expect(piece)
        for half, segments in halves:
            self._submit(half, [self._stager.stage(pieces) for pieces in segments])
            self._retire_all()

    def _retire_all(self) -> None:
        """Wait for all batches that are under way."""
        while self._submitted:
            self._retire()

    def _retire(self) -> None:
        """Wait for the oldest batch, give its memory back, and check what nvCOMP said of its chunks."""
        oldest = self._submitted.popleft()
        self._release(oldest)
        receipt = oldest.receipt
        doubtful = NO_ROWS if receipt is None else receipt.doubtful()
        if len(doubtful):
            self._doubtful.append((oldest.batch, doubtful))
        if receipt is not None and len(receipt.shadows):
            self._compare(oldest.batch, receipt, doubtful)

    def _release(self, submitted: _Submitted) -> None:
        """Wait for a batch, and give its memory back."""
        self._workspace.wait_for(submitted.done)
        for memory in submitted.memories:
            self._workspace.free(memory)

    def _compare(self, batch: Batch, receipt: Receipt, doubtful: Column) -> None:
        """Look at what the host has decoded as well; the host decodes the doubtful chunks again anyway."""
        different = np.setdiff1d(receipt.different(), doubtful)
        counters.add(n_verified=len(receipt.shadows), n_different=len(different))
        if self._choice is not None:
            self._choice.compared()
        if len(different):
            raise different_values(*row_of(batch.pieces, int(different[0])))

    def _decode_again(self, batch: Batch, numbers: Column) -> None:
        """Let the host decode chunks of a batch that the device could not; its word is final."""
        step = max(1, self._workspace.options.slot_nbytes // self._chunk_nbytes)
        for first in range(0, len(numbers), step):
            some = numbers[first : first + step]
            staged = self._stager.stage_decoded(batch.pieces, some)
            rows = np.stack([plan.row[row] for plan, row in (row_of(batch.pieces, n) for n in some.tolist())])
            self._release(self._enqueue(Batch(pieces=()), [staged], rows))


def _batch(segments: Sequence[_Segment]) -> Batch:
    """Return segments that follow each other as a batch."""
    return Batch(
        pieces=tuple(piece for segment in segments for piece in segment.pieces),
        missing=tuple(rows for segment in segments for rows in segment.missing),
    )
