"""How many chunks each batch of a read has, and how many batches may be under way. Pure.

A call that decodes takes as long for one chunk as for a wave: as many as the device decodes at once. Whether calls on
several streams share the device or take turns is up to the hardware. Batches of whole waves waste nothing either way.
What is left over comes first, so that decoding begins while the next bytes are fetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from xarray_gpuzarr.cuda.resources import MAX_BATCHES
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.records import record

N_AT_ONCE = 528
"""Chunks that a large GPU decodes at once: four on each of 132 multiprocessors. Assumed, not measured."""


@record
class BatchLimits:
    """What the batches of one read may have."""

    n_chunks: int
    """Chunks of one: whole waves, or less than one."""
    n_batches: int
    """Batches that take memory at once, from the first byte that is staged until the host has seen their end."""
    wave: int
    """Chunks that are decoded at once."""

    @classmethod
    def of(
        cls, path: str, *, chunk_nbytes: int, needed_nbytes: int, budget_nbytes: int, options: ResourceOptions
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
        wave = options.batch_chunks or N_AT_ONCE
        n_waves = max(1, options.batch_nbytes // max(1, chunk_nbytes) // wave)
        # Rather two batches of a wave than many that each take as long.
        most = max(1, fitting // (MAX_BATCHES + 1), min(wave, fitting // 2))
        n_chunks = most if most < wave else wave * min(n_waves, most // wave)
        return cls(n_chunks=n_chunks, n_batches=min(MAX_BATCHES + 1, fitting // n_chunks), wave=wave)

    def sizes(self, n_chunks: int) -> Iterator[int]:
        """Yield how many chunks each batch of a read of `n_chunks` may have, without an end.

        First what whole waves leave over, then whole waves. A read may turn out to have fewer chunks, or to be cut up
        further.
        """
        left_over = n_chunks % min(self.wave, self.n_chunks)
        if left_over:
            yield left_over
        yield from repeat(self.n_chunks)
