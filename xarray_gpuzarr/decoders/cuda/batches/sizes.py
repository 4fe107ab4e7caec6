"""How many chunks a batch has, and how many batches of a read take memory at once. Pure.

nvCOMP gives each chunk to a few threads of the device, so a call takes about as long for one chunk as for as many as
the device decodes at once: batches have so many, or a multiple if chunks are short.
"""

from __future__ import annotations

from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.records import record


class ChunkDoesNotFitError(DeviceMemoryError):
    """A chunk is larger than what reads may use, however much memory there is."""


@record
class BatchLimits:
    """What the batches of one read may have."""

    n_chunks: int
    """Chunks of one batch."""
    n_batches: int
    """Batches that take memory at once, the one that is being staged included."""

    @classmethod
    def of(
        cls, path: str, *, chunk_nbytes: int, needed_nbytes: int, budget_nbytes: int, options: ResourceOptions
    ) -> BatchLimits:
        """Return limits within which a read stays in a budget.

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
        ChunkDoesNotFitError
            Not even one chunk fits.
        """
        fitting = budget_nbytes // max(1, needed_nbytes)
        if not fitting:
            raise ChunkDoesNotFitError(
                f"a chunk of array '{path}' does not fit the memory set aside for decoding",
                tried=f"one chunk of {chunk_nbytes} decoded bytes, which takes {needed_nbytes} bytes of device memory",
                found=f"scratch_nbytes is {budget_nbytes}",
                do=f"xarray_gpuzarr.configure(scratch_nbytes={needed_nbytes}) or more, or device='host'",
            )
        at_once = options.batch_chunks
        wanted = at_once * max(1, options.batch_nbytes // max(1, chunk_nbytes) // at_once)
        n_chunks = max(1, min(wanted, fitting // 2))  # rather two full batches than several that are not
        return cls(n_chunks=n_chunks, n_batches=min(options.n_batches + 1, fitting // n_chunks))
