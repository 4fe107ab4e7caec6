"""The device memory that one task needs at its peak, computed from metadata.

The same numbers bound the CUDA decoder, which cuts a read into batches by them. Called by the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from xarray_gpuzarr.cuda.resources import TABLE_NBYTES, scratch_nbytes
from xarray_gpuzarr.cuda.workspace_memory import max_allocated_nbytes
from xarray_gpuzarr.decoders.cuda.batches.pieces import BatchLimits
from xarray_gpuzarr.decoders.cuda.chain import chunk_device_nbytes
from xarray_gpuzarr.decoders.cuda.routes import why_not_device
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec

_CUDA_NBYTES = 1024**3
"""Device memory that CUDA, its libraries and this engine's kernels take in one process: an allowance, not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMemory:
    """Bytes of device memory that one task of one thread needs at most."""

    result_nbytes: int
    """Result of the task, on its device."""
    batches_nbytes: int = 0
    """Device memory for the batches under way: encoded chunks, decoded ones, and nvCOMP's scratch."""
    table_nbytes: int = 0
    """Device memory for pointer and size tables."""

    @property
    def device_nbytes(self) -> int:
        """Peak on the GPU."""
        return self.result_nbytes + self.batches_nbytes + self.table_nbytes

    def n_fitting(self, gpu_nbytes: int) -> int:
        """Return how many such tasks fit a GPU at once, beside an allowance of 1 GiB for CUDA."""
        return max(0, gpu_nbytes - _CUDA_NBYTES) // max(1, self.device_nbytes)


def task_memory(
    stored: StoredArray, block_shape: tuple[int, ...], *, options: ResourceOptions, gpu_nbytes: int
) -> TaskMemory:
    """Return the memory that reading one block to a GPU takes; the block's first element is the first one of a chunk.

    If `options` do not set `scratch_nbytes`, a read takes three quarters of the GPU's memory divided by `n_reads`. If
    that is too small for one chunk, that is a `DeviceMemoryError`.
    """
    result = prod(block_shape) * np.dtype(stored.cast.dtype).itemsize
    spec = stored.spec
    if not isinstance(spec, ArraySpec) or why_not_device(spec, stored.cast) is not None:
        return TaskMemory(result_nbytes=result)
    n_chunks = prod(-(-n // chunk) for n, chunk in zip(block_shape, spec.grid.chunk_shape, strict=True))
    needed = chunk_device_nbytes(spec)
    limits = BatchLimits.for_budget(
        spec.path,
        chunk_nbytes=spec.chunk_nbytes,
        chunk_device_nbytes=needed,
        budget_nbytes=scratch_nbytes(options, gpu_nbytes),
        options=options,
    )
    return TaskMemory(
        result_nbytes=result,
        batches_nbytes=max_allocated_nbytes(min(n_chunks, limits.n_batches * limits.n_chunks) * needed),
        table_nbytes=limits.n_batches * TABLE_NBYTES,
    )
