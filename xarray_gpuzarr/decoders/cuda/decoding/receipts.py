"""What the device says of every stream it decompressed: lengths, statuses and checksums, in one download."""

from __future__ import annotations

from typing import Self

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Stream
from xarray_gpuzarr.cuda.checksum import finish
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.cuda.workspace_memory import Slot
from xarray_gpuzarr.decoders.cuda.batches.streams import NO_ROWS, Rows
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import BatchPlan
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.process.records import record


@record
class Receipt:
    """What the device says of a batch, in one download.

    Three columns, one row per decompressed stream: uint64 lengths, uint64 sums, int32 statuses; then uint64 flags. A
    sum is the checksum of the decoded bytes where the format has one, else not 0 where the stream was refused. There is
    a flag for each chunk with codecs of elements, not 0 where one of these leaves the chunk to the host. Then uint64
    CRC-32s, of each chunk that the host has decoded as well.
    """

    slot: Slot
    plan: BatchPlan
    shadows: Shadows

    @classmethod
    def ask(
        cls, workspace: Workspace, plan: BatchPlan, shadows: Shadows, address: Address, stream: Stream
    ) -> Self | None:
        """Enqueue the download of what is said of a batch; None if nothing is.

        Batches are to ask in the order in which the host looks at their receipts.
        """
        nbytes = receipt_nbytes(plan, shadows)
        if not nbytes:
            return None
        slot = workspace.receipts.lend(nbytes)
        workspace.api.download(slot.array[:nbytes], address, stream)
        slot.give_back(stream)
        return cls(slot=slot, plan=plan, shadows=shadows)

    def doubtful(self) -> Rows:
        """Return the numbers of the chunks that were not decoded as they should; only once the download is done."""
        plan, n, answer = self.plan, self.plan.n_coded, self.slot.array
        actual, sums = answer[: 8 * n].view(np.int64), answer[8 * n : 16 * n].view(np.uint64)
        status = answer[16 * n : 20 * n].view(np.int32)
        wrong = (status != 0) | (actual != plan.streams.target_nbytes[:n])
        for group in plan.groups:
            rows = slice(group.first, group.first + group.n)
            if group.inflate.checksum is not None:
                wrong[rows] |= finish(group.inflate.checksum, sums[rows]) != plan.streams.checksum[rows]
            else:
                wrong[rows] |= sums[rows] != 0  # refused before it was decoded
        flags = answer[streams_nbytes(n) :][: 8 * len(plan.elements)].view(np.uint64)
        if not wrong.any() and not flags.any():
            return NO_ROWS
        return np.unique(np.concatenate([plan.streams.chunk[:n][wrong], plan.elements[flags != 0]]))

    def different(self) -> Rows:
        """Return the numbers of the chunks that the host has decoded to other bytes; only once the download is done."""
        first = streams_nbytes(self.plan.n_coded) + 8 * len(self.plan.elements)
        sums = self.slot.array[first:][: 8 * len(self.shadows)].view(np.uint64)
        different: Rows = self.shadows.chunk[finish("crc32", sums) != self.shadows.crc]
        return different


def receipt_nbytes(plan: BatchPlan, shadows: Shadows) -> int:
    """Return the length of a receipt."""
    return streams_nbytes(plan.n_coded) + 8 * (len(plan.elements) + len(shadows))


def streams_nbytes(n: int) -> int:
    """Return the bytes of what is said of `n` streams, a multiple of 8."""
    return 16 * n + -(-n // 2) * 8
