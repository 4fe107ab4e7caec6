"""How many chunks each batch of a read has, and how many batches may be under way. Pure.

A call that decodes takes as long for one chunk as for a wave: as many as the device decodes at once. Whether calls on
several streams share the device or take turns is up to the hardware. Batches of whole waves waste nothing either way.
What is left over comes first, so that decoding begins while the next bytes are fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Protocol

from xarray_gpuzarr.cuda.resources import MAX_BATCHES
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.records import record

N_AT_ONCE = 528
"""Chunks that a large GPU decodes at once: four on each of 132 multiprocessors. Assumed, not measured."""
SHORTEST = 64
"""Chunks of the first batches, where they may be short."""
_ASKING: tuple[int, ...] = (SHORTEST, SHORTEST)
_GROWING: tuple[int, ...] = (SHORTEST, 2 * SHORTEST, 4 * SHORTEST)


class Learnt(Protocol):
    """What is known of a device; see `learnt.Learnt`."""

    is_wave_full: bool
    overlaps: bool | None


@record
class BatchLimits:
    """What the batches of one read may have."""

    n_chunks: int
    """Chunks of one: whole waves, or less than one."""
    n_under_way: int
    """Chunks of all batches that take memory at once, from the first byte that is staged until the host has seen their
    end."""
    wave: int
    """Chunks that are decoded at once."""
    short: Sequence[int] = ()
    """Of batches before all others, where there are more chunks than twice as many."""

    @classmethod
    def of(
        cls,
        path: str,
        *,
        chunk_nbytes: int,
        needed_nbytes: int,
        budget_nbytes: int,
        options: ResourceOptions,
        wave: int | None = None,
    ) -> BatchLimits:
        """Return limits within which reads stay in a budget.

        Parameters
        ----------
        path : str
            Array path, for the message.
        chunk_nbytes : int
            Bytes of a decoded chunk.
        needed_nbytes : int
            Bytes of device memory that decoding one chunk takes besides the result: encoded, decoded and scratch.
        budget_nbytes : int
            Bytes that all batches may take together.
        options : ResourceOptions
        wave : int, optional
            Chunks that the device is known to decode at once; by default, as many as `options` or an assumption say.
            All batches together take no more memory than by default.

        Raises
        ------
        DeviceMemoryError
            Not even one chunk fits.
        """
        fitting = budget_nbytes // max(1, needed_nbytes)
        if not fitting:
            raise DeviceMemoryError(
                f"a chunk of array '{path}' does not fit the memory set aside for decoding",
                tried=f"one chunk of {chunk_nbytes} decoded bytes, which takes {needed_nbytes} bytes of device memory",
                found=f"scratch_nbytes is {budget_nbytes}",
                do=f"xarray_gpuzarr.configure(scratch_nbytes={needed_nbytes}) or more, or device='host'",
            )
        usual, wanted = options.batch_chunks or N_AT_ONCE, options.batch_nbytes // max(1, chunk_nbytes)
        n_under_way = min(fitting, (MAX_BATCHES + 1) * _whole_waves(wanted, usual))
        wave = wave or usual
        # Rather two batches of a wave than many that each take as long.
        most = max(1, n_under_way // (MAX_BATCHES + 1), min(wave, n_under_way // 2))
        n_chunks = most if most < wave else _whole_waves(min(wanted, most), wave)
        return cls(n_chunks=n_chunks, n_under_way=n_under_way, wave=wave)

    def for_read(self, n_chunks: int, learnt: Learnt, *, is_watched: bool) -> BatchLimits:
        """Return what suits a read and what is known of the device; if the read is watched, what shows more.

        Two short batches show whether calls overlap, and a batch of two waves whether it takes longer than one.
        """
        if n_chunks <= min(self.wave, self.n_under_way) and not learnt.overlaps:
            return replace(self, n_chunks=max(n_chunks, self.n_chunks))
        n_most, short = self.n_chunks, _GROWING if learnt.overlaps else ()
        if is_watched and n_chunks >= 4 * self.wave:
            if learnt.overlaps is None:
                short = _ASKING
            if not learnt.is_wave_full and 4 * self.wave <= self.n_under_way:
                short, n_most = (*short, 2 * self.wave), max(n_most, 2 * self.wave)
        return replace(self, n_chunks=n_most, short=short)

    def sizes(self, n_chunks: int) -> Iterator[int]:
        """Yield how many chunks each batch of a read of `n_chunks` may have, without an end.

        First short ones, if any, and what whole waves leave over; then whole waves. A read may turn out to have fewer
        chunks, or to be cut up further.
        """
        for size in self.short:
            if n_chunks > 2 * size and size < self.n_chunks:
                yield size
                n_chunks -= size
        wave = min(self.wave, self.n_chunks)
        if n_chunks % wave:
            yield n_chunks % wave
        if self.n_chunks == 2 * wave:
            yield wave
        yield from repeat(self.n_chunks)


def _whole_waves(n: int, wave: int) -> int:
    """Round down to whole waves, at least one."""
    return max(wave, n - n % wave)
