"""One read by the CUDA decoder: fetch each batch into pinned slots, upload, decompress, place, and check its receipt.

The host fetches and enqueues the next batch while the device works on earlier ones. Each batch runs on one of the
workspace's streams, behind the copies of its segments. The host waits for pinned slots, for the oldest batch when too
many are under way, and at the end of the read.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xarray_gpuzarr.cuda.api import DeviceMemory, Event
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS, Rows
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import (
    BatchLimits,
    Cutter,
    RowRange,
    aligned,
    count_chunks,
    row_of,
)
from xarray_gpuzarr.decoders.cuda.chain import Chain, chunk_device_nbytes, require_chain, why_host_checks
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import Staged, join_segments
from xarray_gpuzarr.decoders.cuda.decoding.decode import BatchDecoder
from xarray_gpuzarr.decoders.cuda.decoding.placing import Placing
from xarray_gpuzarr.decoders.cuda.decoding.receipt import Receipt
from xarray_gpuzarr.decoders.cuda.decoding.shadows import ShadowChoice, different_values
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.decoders.cuda.staging.segments import SegmentQueue
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.fetch.source import ByteSource
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast


@record
class _Submitted:
    """A batch of which all work has been enqueued."""

    row_ranges: Sequence[RowRange]
    receipt: Receipt | None
    memories: Sequence[DeviceMemory]
    """Device memory that was borrowed for the batch."""
    done: Event
    """Reached when the device has done the batch's work."""


class Read:
    """One read by the CUDA decoder, of an array that the device decodes.

    Parameters
    ----------
    workspace : Workspace
        Streams and memory, used by this read alone.
    source : ByteSource
        Store of the array.
    spec : ArraySpec
        Array that is read.
    target : Target
        Selection, and shape of the result.
    cast : Cast
        Its dtype is that of the result, in the machine's byte order.
    shadow_choice : ShadowChoice, optional
        Chooses the chunks that the host decodes as well.
    out : device array in C order, optional
        Array of the target's shape and the cast's dtype that receives the result. The result is a new array if this is
        None, or if its address is not a multiple of its itemsize, which the kernels require.
    """

    def __init__(  # noqa: PLR0913  # everything that makes up one read
        self,
        workspace: Workspace,
        source: ByteSource,
        spec: ArraySpec,
        *,
        target: Target,
        cast: Cast,
        shadow_choice: ShadowChoice | None = None,
        out: Any = None,
    ) -> None:
        self._workspace = workspace
        self._api = workspace.api
        self._spec = spec
        self._chain = require_chain(spec)
        self._chunk_device_nbytes = chunk_device_nbytes(spec)
        self._limits = self._initial_limits()
        self._shadow_choice = shadow_choice
        self.stager = _new_stager(workspace, source, spec, chain=self._chain, shadow_choice=shadow_choice)
        dtype = np.dtype(cast.dtype)
        if out is None or self._api.address(out) % dtype.itemsize:
            out = workspace.new_result(target.shape, dtype, workspace.batch_streams)
        else:
            workspace.accept_output(out, workspace.batch_streams)
        self.out = out
        self._placing = Placing(workspace, spec, target, cast=cast, out=self._api.address(out))
        self._decoder = BatchDecoder(workspace, self._placing, self._chain)
        self._submitted: deque[_Submitted] = deque()
        """Batches that are under way, the oldest first."""
        self._n_submitted = 0
        self._is_shortened = False
        """Whether memory was short for a batch, and no batch was submitted since."""
        self._failed: list[tuple[Sequence[RowRange], Rows]] = []
        """Row ranges of a batch, and the numbers of its chunks that the device could not decode."""
        # The first batch takes the chunks that full batches leave over, so that decoding begins while the others are
        # fetched.
        n_leftover = target.n_chunks % self._limits.n_chunks
        first_sizes = [n_leftover] if n_leftover else []
        self._segments = SegmentQueue(self._api, self.stager, self._new_cutter(first_sizes))

    def run(self, plans: Iterator[ReadPlan]) -> Any:
        """Carry out plans that together cover the target; return the result, which every stream may use without a wait.

        Raises
        ------
        CorruptChunkError, StoreReadError
            See `Stager.stage`.
        DifferentValuesError
            If the host has decoded a chunk to other bytes than the device.
        DeviceMemoryError
            If memory does not suffice even for shorter batches.
        """
        # The batch that is being staged.
        row_ranges: list[RowRange] = []
        staged: list[Staged] = []
        for segment in self._segments.cut(plans):
            # Begin a batch only when fewer than `n_batches` hold memory.
            while not row_ranges and len(self._submitted) >= self._limits.n_batches:
                self._retire()
            row_ranges += segment.row_ranges
            try:
                if segment.row_ranges:  # there are none if all chunks of the read are missing
                    staged.append(self.stager.stage(segment.row_ranges))
                if segment.ends_batch:
                    self._submit(row_ranges, staged)
                    row_ranges = []
                    staged = []
            except DeviceMemoryError:
                if not self._restart_shorter(row_ranges):
                    raise
                row_ranges = []
                staged = []
        while self._submitted:
            self._retire()
        for batch, numbers in self._failed:
            self._decode_on_host(batch, numbers)
        self._workspace.take_back(self._placing.memory)
        return self.out

    def _decode_on_host(self, row_ranges: Sequence[RowRange], numbers: Rows) -> None:
        """Let the host decode chunks that the device could not, as many at a time as fit a slot, and place them.

        `numbers` count the chunks of `row_ranges`. Raises `CorruptChunkError` for a chunk that the host cannot decode.
        """
        n_per_slot = max(1, self._workspace.options.slot_nbytes // self._spec.chunk_nbytes)
        for first in range(0, len(numbers), n_per_slot):
            part = numbers[first : first + n_per_slot]
            decoded = self.stager.stage_decoded(row_ranges, part)
            rows = [row_of(row_ranges, number) for number in part.tolist()]
            self._submit([RowRange.from_rows(plan, row, row + 1) for plan, row in rows], [decoded])
            self._retire()

    def _initial_limits(self) -> BatchLimits:
        """Return the limits that the options allow, or shorter ones if memory was short for earlier reads."""
        workspace = self._workspace
        limits = BatchLimits.for_budget(
            self._spec.path,
            chunk_nbytes=self._spec.chunk_nbytes,
            chunk_device_nbytes=self._chunk_device_nbytes,
            budget_nbytes=workspace.scratch_nbytes,
            options=workspace.options,
        )
        max_nbytes = workspace.shortage.next_limit_nbytes()
        if max_nbytes is None or max_nbytes >= limits.n_chunks * self._chunk_device_nbytes:
            return limits
        return limits.shortened(max_nbytes // self._chunk_device_nbytes)

    def _new_cutter(self, first_sizes: Sequence[int] = ()) -> Cutter:
        """Return a cutter for batches within the current limits.

        `first_sizes` are the largest numbers of chunks of the first batches, if these are to be shorter.
        """
        # The encoded chunks of a batch hardly reach this length. The limit is for the gaps between them, which are
        # fetched, too.
        max_range_nbytes = self._limits.n_chunks * aligned(max(self._chain.inner_nbytes, self._chain.chunk_nbytes))
        sizes = itertools.chain(first_sizes, itertools.repeat(self._limits.n_chunks))
        return Cutter(sizes, max_range_nbytes=max_range_nbytes, segment_nbytes=self.stager.segment_nbytes)

    def _submit(self, row_ranges: Sequence[RowRange], staged: Sequence[Staged]) -> None:
        """Let the device decode and place a batch, on the next stream, after the copies of what was staged for it."""
        rows = [row_range.plan.piece_numbers[row_range.lo : row_range.hi] for row_range in row_ranges]
        rows += self._segments.missing
        if not rows:  # no plan had a chunk
            return
        api = self._api
        streams = self._workspace.batch_streams
        stream = streams[self._n_submitted % len(streams)]
        done = api.event()
        self._n_submitted += 1
        receipt, memories = self._decoder.decode(join_segments(staged), np.concatenate(rows), stream)
        api.record(done, stream)
        self._segments.missing.clear()  # only now: if memory had been short, the next batch would have to fill them
        memories += [memory for segment in staged for memory in segment.memories]
        self._submitted.append(_Submitted(row_ranges=row_ranges, receipt=receipt, memories=memories, done=done))
        self._is_shortened = False

    def _restart_shorter(self, row_ranges: Sequence[RowRange]) -> bool:
        """Queue a batch for which memory was short, and all after it, to be cut into batches of half its length.

        Returns False, and queues nothing, if the batch has a single chunk or has just been shortened: the read is then
        repeated by `CudaDecoder.alone`, while no other thread reads. In any case, later reads have shorter batches.
        """
        n_half = -(-count_chunks(row_ranges) // 2)
        self._workspace.shortage.set_limit(n_half * self._chunk_device_nbytes)
        if count_chunks(row_ranges) < 2 or self._is_shortened:
            return False
        while self._submitted:
            self._retire()
        self._workspace.wait_until_idle()
        self._workspace.free_all(keep=[self._placing.memory])
        self._is_shortened = True
        self._limits = self._limits.shortened(n_half)
        self._segments.restart(row_ranges, self._new_cutter())
        return True

    def _retire(self) -> None:
        """Wait for the oldest batch, take back its memory, and check what its receipt says about the chunks.

        Chunks that the device could not decode are added to `_failed`. Raises `DifferentValuesError` if the host has
        decoded a chunk to other bytes.
        """
        oldest = self._submitted.popleft()
        self._workspace.wait_for(oldest.done)
        for memory in oldest.memories:
            self._workspace.take_back(memory)
        receipt = oldest.receipt
        failed = NO_ROWS if receipt is None else receipt.failed_chunks()
        if len(failed):
            self._failed.append((oldest.row_ranges, failed))
        if receipt is not None and len(receipt.shadows):
            # A failed chunk, which the host decodes later, is no difference.
            different = np.setdiff1d(receipt.different_chunks(), failed)
            counters.add(n_verified=len(receipt.shadows), n_different=len(different))
            if self._shadow_choice is not None:
                self._shadow_choice.mark_compared()
            if len(different):
                raise different_values(*row_of(oldest.row_ranges, int(different[0])))


def _new_stager(
    workspace: Workspace, source: ByteSource, spec: ArraySpec, *, chain: Chain, shadow_choice: ShadowChoice | None
) -> Stager:
    """Return a `DirectStager` if GPUDirect Storage is requested and the chain allows it, otherwise a `Stager`.

    Raises
    ------
    DeviceUnavailableError
        If GPUDirect Storage is requested, the chain allows it, and this machine does not have it.
    """
    if source.storage != "gds" or why_host_checks(chain) is not None:
        return Stager(workspace, source, spec, chain=chain, shadow_choice=shadow_choice)
    from xarray_gpuzarr.cuda.gds_files import no_gds_error  # noqa: PLC0415  # only if storage="gds"
    from xarray_gpuzarr.decoders.cuda.staging.direct import DirectStager  # noqa: PLC0415  # only if storage="gds"

    why_not = workspace.api.why_no_gds()
    if why_not is not None:
        raise no_gds_error(why_not)
    return DirectStager(workspace, source, spec, chain=chain, shadow_choice=shadow_choice)
