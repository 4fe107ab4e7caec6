"""What the device says of every stream it decompressed: lengths, statuses and checksums, in one download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.api import Address
from xarray_gpuzarr.cuda.checksum import finish
from xarray_gpuzarr.cuda.nvcomp import status_name
from xarray_gpuzarr.cuda.resources import Lane, Slot
from xarray_gpuzarr.decoders.cuda.streams import FORMATS, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Three columns, one row per decompressed stream: uint64 lengths, uint64 checksums, int32 statuses."""

    slot: Slot
    streams: Streams
    """Sorted by format; the first `n` are decompressed."""
    n: int

    @staticmethod
    def offsets(n: int) -> tuple[int, int, int]:
        """Return where lengths, checksums and statuses of `n` streams begin, in bytes."""
        return 0, 8 * n, 16 * n

    @staticmethod
    def blank(n: int) -> npt.NDArray[np.uint64]:
        """Return the memory of a receipt as it must be before the device writes to it."""
        return np.zeros(2 * n + (n + 1) // 2, np.uint64)

    @classmethod
    def ask(cls, lane: Lane, streams: Streams, n: int, address: Address) -> Self:
        """Enqueue the download of a receipt."""
        nbytes = cls.blank(n).nbytes
        slot = lane.receipts.lend(nbytes)
        lane.api.download(slot.array[:nbytes], address, lane.work)
        slot.give_back(lane.work)
        return cls(slot=slot, streams=streams, n=n)

    def complaint(self) -> tuple[int, str] | None:
        """Return the number of a chunk that was not decoded as it should, and what is wrong; None if all is well.

        Only once the download is done.
        """
        n, array = self.n, self.slot.array
        actual, status = array[: 8 * n].view(np.int64), array[16 * n : 20 * n].view(np.int32)
        expected, formats = self.streams.target_nbytes[:n], self.streams.format[:n]
        wrong = np.flatnonzero((status != 0) | (actual != expected))
        if len(wrong):
            at = int(wrong[0])
            says = f"{FORMATS[formats[at]].name} on the device says {status_name(int(status[at]))}"
            return int(self.streams.chunk[at]), f"{says}: {actual[at]} decoded bytes, expected {expected[at]}"
        sums = array[8 * n : 16 * n].view(np.uint64)
        for number, inflate in enumerate(FORMATS):
            if inflate.checksum is None:
                continue
            rows = np.flatnonzero(formats == number)
            found, stored = finish(inflate.checksum, sums[rows]), self.streams.checksum[rows]
            for at in np.flatnonzero(found != stored)[:1].tolist():
                found_text, stored_text = f"{found[at]:#010x}", f"{stored[at]:#010x}"
                return int(self.streams.chunk[rows[at]]), f"{inflate.checksum} {found_text}, stored {stored_text}"
        return None
