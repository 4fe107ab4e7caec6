"""One read by the CUDA decoder: fetch each batch into pinned slots, upload, decompress, place, and check its receipt.

The host fetches and enqueues the next batch while the device works on earlier ones. Each batch runs on a stream of its
own, behind the copies of its segments. The host waits for pinned slots, for the oldest batch when too many are under
way, and at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import numpy as np

from xarray_gpuzarr.cuda.api import DeviceMemory, Event
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.pieces import (
    BatchLimits,
    Cutter,
    Piece,
    aligned,
    n_chunks,
    parts,
    row_of,
)
from xarray_gpuzarr.decoders.cuda.batches.streams import NO_ROWS, Rows
from xarray_gpuzarr.decoders.cuda.chain import needed_nbytes, read_chain, why_not_direct
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import Receipt, Staged, put_together
from xarray_gpuzarr.decoders.cuda.decoding.decode import BatchDecoder
from xarray_gpuzarr.decoders.cuda.decoding.placing import Placing
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Choice, different_values
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.fetch.source import ByteSource
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast


class _Segment(NamedTuple):
    """Pieces that are staged together."""

    pieces: list[Piece]
    ends_batch: bool


@record
class _Submitted:
    """A batch that the device has been given."""

    pieces: Sequence[Piece]
    receipt: Receipt | None
    memories: Sequence[DeviceMemory]
    """All that it uses."""
    done: Event


class Read:
    """One read by the CUDA decoder, of an array that the device decodes; `choice` says what the host decodes as well.

    What is filled is `out`, a device array in C order, with the shape of the target and the dtype of the cast. None
    makes one, and so does an array that is not aligned to its elements.
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
        self._spec = spec
        self._chain = read_chain(spec)
        self._needed_nbytes = needed_nbytes(spec)
        self._limits = BatchLimits.of(
            spec.path,
            chunk_nbytes=spec.chunk_nbytes,
            needed_nbytes=self._needed_nbytes,
            budget_nbytes=workspace.scratch_nbytes,
            options=workspace.options,
        )
        most_nbytes = workspace.shortage.most_nbytes()
        if most_nbytes is not None and most_nbytes < self._limits.n_chunks * self._needed_nbytes:
            self._limits = self._limits.at_most(most_nbytes // self._needed_nbytes)
        new_stager = Stager
        if source.storage == "gds" and why_not_direct(self._chain) is None:
            from xarray_gpuzarr.cuda.gds_files import no_direct_files  # noqa: PLC0415  # where it is asked for
            from xarray_gpuzarr.decoders.cuda.staging.direct import DirectStager  # noqa: PLC0415  # likewise

            why_not = self._api.why_no_files()
            if why_not is not None:
                raise no_direct_files(why_not)
            new_stager = DirectStager
        self.stager = new_stager(workspace, source, spec, chain=self._chain, choice=choice)
        self._choice = choice
        if out is None or self._api.address(out) % np.dtype(cast.dtype).itemsize:  # where no kernel writes to
            out = workspace.result(target.shape, np.dtype(cast.dtype), workspace.works)
        else:
            workspace.fill(out, workspace.works)
        self.out = out
        self._placing = Placing(workspace, spec, target, cast=cast, out=self._api.address(out))
        self._decoder = BatchDecoder(workspace, self._placing, self._chain)
        self._uncut: deque[Piece] = deque()
        """Pieces whose rows belong to no segment yet."""
        self._gathering: list[Piece] = []
        """Pieces of the segment that is not full yet."""
        self._expected: deque[_Segment] = deque()
        """Segments whose requests are under way, as far as the store takes them."""
        self._missing: list[Rows] = []
        """Chunks that take the fill value with the next batch, as `ReadPlan.missing_row`."""
        self._submitted: deque[_Submitted] = deque()
        self._n_submitted = 0
        self._is_shortened = False
        """Whether memory was short for a batch, and nothing was submitted since."""
        # What full batches leave over comes first, so that decoding begins while the next bytes are fetched.
        n_over = target.n_chunks % self._limits.n_chunks
        self._cutter = self._new_cutter(*([n_over] if n_over else []))
        self._doubtful: list[tuple[Sequence[Piece], Rows]] = []

    def run(self, plans: Iterator[ReadPlan]) -> Any:
        """Carry out plans that together cover the target; return the array, ready for any stream."""
        pieces, staged = list[Piece](), list[Staged]()  # of the batch that is being staged
        for segment in self._segments(plans):
            while not pieces and len(self._submitted) >= self._limits.n_batches:
                self._retire()
            pieces += segment.pieces
            try:
                if segment.pieces:
                    staged.append(self.stager.stage(segment.pieces))
                if segment.ends_batch:
                    self._submit(pieces, staged)
                    pieces, staged = [], []
            except DeviceMemoryError:
                if not self._begin_again(pieces):
                    raise
                pieces, staged = [], []
        while self._submitted:
            self._retire()
        for batch, numbers in self._doubtful:  # the host decodes chunks that the device could not; its word is final
            step = max(1, self._workspace.options.slot_nbytes // self._spec.chunk_nbytes)
            for first in range(0, len(numbers), step):
                some = numbers[first : first + step]
                decoded = self.stager.stage_decoded(batch, some)
                rows = [row_of(batch, number) for number in some.tolist()]
                self._submit([Piece.of(plan, row, row + 1) for plan, row in rows], [decoded])
                self._retire()
        self._workspace.free(self._placing.memory)
        return self.out

    def _segments(self, plans: Iterator[ReadPlan]) -> Iterator[_Segment]:
        """Cut plans into segments; yield each once the store has as many requests as it takes.

        Pieces are cut when their turn comes: those behind a batch that had to be shortened become as short.
        """
        stager, requests = self.stager, self.stager.requests
        while True:
            while self._draw(plans):
                piece, full, remaining = self._cutter.cut(self._uncut.popleft())
                if remaining is not None:
                    self._uncut.appendleft(remaining)
                if full is not None:
                    self._expected.append(_Segment(self._gathering, full == "batch"))
                    self._gathering = []
                self._gathering.append(piece)
                if requests is not None:
                    requests.expect(piece.requests(stager.most_nbytes))
                while self._expected and (requests is None or requests.are_enough):
                    yield self._expected.popleft()
            self._expected.append(_Segment(self._gathering, ends_batch=True))
            self._gathering = []
            while self._expected:
                yield self._expected.popleft()
            if not self._uncut:  # else memory was short for what came last
                return

    def _draw(self, plans: Iterator[ReadPlan]) -> bool:
        """Whether there are pieces to be cut, after drawing the next plan that has some."""
        while not self._uncut:
            with self._api.range("read::index"):  # drawing a plan reads indexes; who plans counts the seconds
                plan = next(plans, None)
            if plan is None:
                return False
            if len(plan.missing_row):
                self._missing.append(plan.missing_row)
            self._uncut.extend(parts(plan, self.stager.rule))
        return True

    def _new_cutter(self, *first_sizes: int) -> Cutter:
        """Return what cuts batches of the limits in force; the first ones may have fewer chunks."""
        most_nbytes = self._limits.n_chunks * aligned(max(self._chain.inner_nbytes, self._chain.chunk_nbytes))
        sizes = chain(first_sizes, repeat(self._limits.n_chunks))
        return Cutter(sizes, most_nbytes=most_nbytes, slot_nbytes=self.stager.slot_nbytes)

    def _submit(self, pieces: Sequence[Piece], staged: Sequence[Staged]) -> None:
        """Let the device decode and place a batch, on a stream of its own, once what was staged of it has crossed."""
        rows = [piece.plan.row[piece.lo : piece.hi] for piece in pieces] + self._missing
        if not rows:
            return
        api, works = self._api, self._workspace.works
        work, done = works[self._n_submitted % len(works)], api.event()
        self._n_submitted += 1
        receipt, memories = self._decoder.decode(put_together(staged), np.concatenate(rows), work)
        api.record(done, work)
        self._missing = []
        memories += [memory for part in staged for memory in part.memories]
        self._submitted.append(_Submitted(pieces=pieces, receipt=receipt, memories=memories, done=done))
        self._is_shortened = False

    def _begin_again(self, pieces: Sequence[Piece]) -> bool:
        """Stage a batch anew for which there was no memory, and what comes after it, in batches half as long.

        Returns whether that was done: not for a single chunk, nor if half a batch has just found no memory either.
        """
        n_half = -(-n_chunks(pieces) // 2)
        self._workspace.shortage.note(n_half * self._needed_nbytes)
        if n_chunks(pieces) < 2 or self._is_shortened:
            return False
        while self._submitted:
            self._retire()
        self._workspace.settle()
        self._workspace.free_all(but=[self._placing.memory])
        self._is_shortened = True
        self._limits = self._limits.at_most(n_half)
        self._cutter = self._new_cutter()
        for segment in reversed(self._expected):
            self._gathering[:0] = segment.pieces
        self._uncut.extendleft(reversed([*pieces, *self._gathering]))
        self._expected.clear()
        self._gathering = []
        if self.stager.requests is not None:
            self.stager.requests.forget()
        return True

    def _retire(self) -> None:
        """Wait for the oldest batch, give its memory back, and check what nvCOMP said of its chunks."""
        oldest = self._submitted.popleft()
        self._workspace.wait_for(oldest.done)
        for memory in oldest.memories:
            self._workspace.free(memory)
        receipt = oldest.receipt
        doubtful = NO_ROWS if receipt is None else receipt.doubtful()
        if len(doubtful):
            self._doubtful.append((oldest.pieces, doubtful))
        if receipt is not None and len(receipt.shadows):  # the host has decoded these as well
            different = np.setdiff1d(receipt.different(), doubtful)  # the doubtful ones it decodes again anyway
            counters.add(n_verified=len(receipt.shadows), n_different=len(different))
            if self._choice is not None:
                self._choice.compared()
            if len(different):
                raise different_values(*row_of(oldest.pieces, int(different[0])))
