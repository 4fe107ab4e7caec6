"""How many chunks each batch of a read has, and how many batches may be under way. Pure.

Batches overlap on the device, so that none has to fill it alone: what is under way together does. The first ones are
short, for decoding to begin while the next bytes are fetched.
"""

from __future__ import annotations

from collections.abc import Iterator

from xarray_gpuzarr.cuda.resources import MAX_BATCHES
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.records import record

N_AT_ONCE = 512
"""Chunks that a large GPU decodes at once: four on each of some 130 multiprocessors. Assumed, not measured."""
_SHORTEST = 64
"""Chunks of the first batch, where later ones are longer."""
_GROWTH = 2
"""Each batch is so many times as long as the one before, until they are as long as they may be."""


@record
class BatchLimits:
    """What the batches of one read may have."""

    n_chunks: int
    """Chunks of one."""
    n_batches: int
    """Batches that take memory at once, from the first byte that is staged until the host has seen their end."""

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
        wanted = max(options.batch_chunks, options.batch_nbytes // max(1, chunk_nbytes))
        n_chunks = max(1, min(wanted, fitting // (MAX_BATCHES + 1)))
        return cls(n_chunks=n_chunks, n_batches=min(MAX_BATCHES + 1, fitting // n_chunks))

    def sizes(self, n_chunks: int) -> Iterator[int]:
        """Yield how many chunks each batch of a read of `n_chunks` may have: growing, then even; without an end.

        A read may turn out to have fewer chunks, or to be cut up further.
        """
        size, left = min(_SHORTEST, self.n_chunks), n_chunks
        while left > size * _GROWTH and size < self.n_chunks:
            yield size
            left -= size
            size = min(size * _GROWTH, self.n_chunks)
        n_even = max(1, -(-left // self.n_chunks))
        even = max(1, -(-left // n_even))
        while True:
            yield even
