"""What the device says of every stream it decompressed: lengths, statuses and checksums, in one download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Stream
from xarray_gpuzarr.cuda.checksum import finish
from xarray_gpuzarr.cuda.decompress import answer_nbytes
from xarray_gpuzarr.cuda.pinned import Slot
from xarray_gpuzarr.cuda.resources import Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS
from xarray_gpuzarr.decoders.cuda.batches.streams import Streams
from xarray_gpuzarr.decoders.cuda.batches.tables import Tables
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import BatchPlan, Group
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.process.records import record


@record
class Receipt:
    """Three columns, one row per decompressed stream: uint64 lengths, uint64 sums, int32 statuses; then uint64 flags.

    A sum is the checksum of the decoded bytes where the format has one, else not 0 where the stream was refused. There
    is a flag for each chunk with codecs of elements, not 0 where one of these leaves the chunk to the host. Then uint64
    CRC-32s, of each chunk that the host has decoded as well.
    """

    slot: Slot
    streams: Streams
    """Sorted by format; the first `n` are decompressed."""
    groups: Sequence[Group]
    n: int
    elements: npt.NDArray[np.int64]
    """Numbers of the chunks that the flags belong to."""
    shadows: Shadows

    @staticmethod
    def add(tables: Tables, n: int, n_flags: int, n_shadows: int) -> tuple[int, int, int, int, int]:
        """Add the memory of a receipt, as it must be before the device writes to it; return where its columns begin."""
        first = tables.add_zeros(answer_nbytes(n) // 8 + n_flags + n_shadows)
        flags = first + answer_nbytes(n)
        return first, first + 8 * n, first + 16 * n, flags, flags + 8 * n_flags

    @classmethod
    def lend(cls, workspace: Workspace, plan: BatchPlan, shadows: Shadows) -> Self | None:
        """Return the receipt of a batch, None if it has none. Batches are to ask in the order in which they retire."""
        if not (plan.groups or len(plan.elements) or len(shadows)):
            return None
        return cls(
            slot=workspace.receipts.lend(answer_nbytes(plan.n_coded) + 8 * (len(plan.elements) + len(shadows))),
            streams=plan.streams,
            groups=plan.groups,
            n=plan.n_coded,
            elements=plan.elements,
            shadows=shadows,
        )

    def ask(self, api: DeviceApi, address: Address, stream: Stream) -> None:
        """Enqueue the download."""
        nbytes = answer_nbytes(self.n) + 8 * (len(self.elements) + len(self.shadows))
        api.download(self.slot.array[:nbytes], address, stream)
        self.slot.give_back(stream)

    def doubtful(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the chunks that were not decoded as they should; only once the download is done."""
        n = self.n
        answer = self.slot.array
        actual, sums = answer[: 8 * n].view(np.int64), answer[8 * n : 16 * n].view(np.uint64)
        status = answer[16 * n : 20 * n].view(np.int32)
        wrong = (status != 0) | (actual != self.streams.target_nbytes[:n])
        for group in self.groups:
            rows = group.rows
            if group.inflate.checksum is not None:
                wrong[rows] |= finish(group.inflate.checksum, sums[rows]) != self.streams.checksum[rows]
            else:
                wrong[rows] |= sums[rows] != 0  # refused before it was decoded
        flags = answer[answer_nbytes(n) :][: 8 * len(self.elements)].view(np.uint64)
        if not wrong.any() and not flags.any():
            return NO_ROWS
        return np.unique(np.concatenate([self.streams.chunk[:n][wrong], self.elements[flags != 0]]))

    def different(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the chunks that the host has decoded to other bytes; only once the download is done."""
        first = answer_nbytes(self.n) + 8 * len(self.elements)
        sums = self.slot.array[first:][: 8 * len(self.shadows)].view(np.uint64)
        different: npt.NDArray[np.int64] = self.shadows.rows[finish("crc32", sums) != self.shadows.crc]
        return different
