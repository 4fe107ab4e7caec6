"""What the device says of every stream it decompressed: lengths, statuses and checksums, in one download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Stream
from xarray_gpuzarr.cuda.checksum import finish
from xarray_gpuzarr.cuda.decompress import answer_nbytes
from xarray_gpuzarr.cuda.joint_calls import Part
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
    joint: Sequence[tuple[Group, Part]]
    """Groups that calls have decoded which reads share: these have the first three columns of their rows."""

    @staticmethod
    def add(tables: Tables, n: int, n_flags: int, n_shadows: int) -> tuple[int, int, int, int, int]:
        """Add the memory of a receipt, as it must be before the device writes to it; return where its columns begin."""
        first = tables.add_zeros(answer_nbytes(n) // 8 + n_flags + n_shadows)
        flags = first + answer_nbytes(n)
        return first, first + 8 * n, first + 16 * n, flags, flags + 8 * n_flags

    @classmethod
    def ask(
        cls,
        workspace: Workspace,
        plan: BatchPlan,
        shadows: Shadows,
        address: Address,
        stream: Stream,
        joint: Sequence[tuple[Group, Part]],
    ) -> Self:
        """Enqueue the download of a receipt."""
        n = plan.n_coded
        nbytes = answer_nbytes(n) + 8 * (len(plan.elements) + len(shadows))
        slot = workspace.receipts.lend(nbytes)
        workspace.api.download(slot.array[:nbytes], address, stream)
        slot.give_back(stream)
        return cls(
            slot=slot,
            streams=plan.streams,
            groups=plan.groups,
            n=n,
            elements=plan.elements,
            shadows=shadows,
            joint=joint,
        )

    def _columns(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
        """Return lengths, sums and statuses."""
        columns = _columns(self.slot.array, self.n)
        for group, part in self.joint:
            to = group.first
            for call, first, n in part.given:
                assert call.answer is not None, "a call that has not ended"
                of_call = _columns(call.answer, call.n)
                for k in range(3):
                    columns[k][to : to + n] = of_call[k][first : first + n]
                to += n
        return columns

    def doubtful(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the chunks that were not decoded as they should; only once the download is done."""
        n = self.n
        actual, sums, status = self._columns()
        wrong = (status != 0) | (actual != self.streams.target_nbytes[:n])
        for group in self.groups:
            rows = group.rows
            if group.inflate.checksum is not None:
                wrong[rows] |= finish(group.inflate.checksum, sums[rows]) != self.streams.checksum[rows]
            else:
                wrong[rows] |= sums[rows] != 0  # refused before it was decoded
        flags = self.slot.array[answer_nbytes(n) :][: 8 * len(self.elements)].view(np.uint64)
        if not wrong.any() and not flags.any():
            return NO_ROWS
        return np.unique(np.concatenate([self.streams.chunk[:n][wrong], self.elements[flags != 0]]))

    def different(self) -> npt.NDArray[np.int64]:
        """Return the numbers of the chunks that the host has decoded to other bytes; only once the download is done."""
        first = answer_nbytes(self.n) + 8 * len(self.elements)
        sums = self.slot.array[first:][: 8 * len(self.shadows)].view(np.uint64)
        different: npt.NDArray[np.int64] = self.shadows.rows[finish("crc32", sums) != self.shadows.crc]
        return different


def _columns(
    answer: npt.NDArray[np.uint8], n: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
    """Return lengths, sums and statuses of what `decompress` has written."""
    lengths, sums, statuses = answer[: 8 * n], answer[8 * n : 16 * n], answer[16 * n : 20 * n]
    return lengths.view(np.int64), sums.view(np.uint64), statuses.view(np.int32)
