"""The receipt of a batch: what the device reports of its streams and chunks, in one download.

A receipt is laid out as follows, and every part has a multiple of 8 bytes:

- for each decompressed stream, in columns: uint64 decoded length, uint64 sum, int32 status. The sum is the checksum of
  the decoded bytes if the format stores one. For other formats it is 0, unless a kernel has refused the stream, which
  is then not decoded;
- for each chunk with codecs of elements: uint64 flag, not 0 if one of these codecs leaves the chunk to the host;
- for each chunk that the host has decoded as well: uint64 CRC-32 of the bytes that the device has decoded it to.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Stream
from xarray_gpuzarr.cuda.checksum import final_checksums
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.cuda.workspace_memory import Slot
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS, Rows
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import BatchPlan
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.process.records import record


@record
class Receipt:
    """Report of the device on one batch, in pinned host memory."""

    slot: Slot
    plan: BatchPlan
    shadows: Shadows

    @classmethod
    def download(
        cls, workspace: Workspace, plan: BatchPlan, shadows: Shadows, address: Address, stream: Stream
    ) -> Self | None:
        """Enqueue the download of the receipt at `address`; return None if there is nothing to report.

        Batches must call this in the order in which the host reads their receipts, because the slots are reused in
        turn.
        """
        nbytes = receipt_nbytes(plan, shadows)
        if not nbytes:
            return None
        slot = workspace.receipts.borrow(nbytes)
        workspace.api.download(slot.array[:nbytes], address, stream)
        slot.release_after(stream)
        return cls(slot=slot, plan=plan, shadows=shadows)

    def failed_chunks(self) -> Rows:
        """Return the numbers of the chunks that the device says it has not decoded. The download must have ended."""
        plan = self.plan
        data = self.slot.array
        n = plan.n_compressed
        lengths = data[: 8 * n].view(np.int64)
        sums = data[8 * n : 16 * n].view(np.uint64)
        statuses = data[16 * n : 20 * n].view(np.int32)
        is_wrong = (statuses != 0) | (lengths != plan.streams.target_nbytes[:n])
        for group in plan.groups:
            rows = slice(group.first, group.first + group.n)
            kind = group.stream_format.checksum
            if kind is not None:
                is_wrong[rows] |= final_checksums(kind, sums[rows]) != plan.streams.checksum[rows]
            else:
                is_wrong[rows] |= sums[rows] != 0  # refused before it was decoded
        flags = data[streams_nbytes(n) :][: 8 * len(plan.element_chunks)].view(np.uint64)
        if not is_wrong.any() and not flags.any():
            return NO_ROWS
        return np.unique(np.concatenate([plan.streams.chunk[:n][is_wrong], plan.element_chunks[flags != 0]]))

    def different_chunks(self) -> Rows:
        """Return the numbers of the chunks that the host has decoded to other bytes than the device.

        The download must have ended. Chunks that the device has not decoded may be among them.
        """
        first = streams_nbytes(self.plan.n_compressed) + 8 * len(self.plan.element_chunks)
        sums = self.slot.array[first:][: 8 * len(self.shadows)].view(np.uint64)
        different: Rows = self.shadows.chunk[final_checksums("crc32", sums) != self.shadows.crc]
        return different


def receipt_nbytes(plan: BatchPlan, shadows: Shadows) -> int:
    """Return the length of a receipt in bytes."""
    return streams_nbytes(plan.n_compressed) + 8 * (len(plan.element_chunks) + len(shadows))


def streams_nbytes(n: int) -> int:
    """Return the length in bytes of the columns of `n` streams in a receipt, a multiple of 8."""
    return 16 * n + -(-n // 2) * 8
