"""The largest amount of GPU memory that one task needs, computed from metadata.

The CUDA decoder uses the same numbers as limits when it cuts a read into batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from xarray_gpuzarr.cuda.workspace import TABLE_NBYTES, scratch_nbytes
from xarray_gpuzarr.cuda.workspace_memory import max_allocated_nbytes
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import BatchLimits
from xarray_gpuzarr.decoders.cuda.chain import chunk_device_nbytes
from xarray_gpuzarr.decoders.cuda.routes import why_not_device
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.stored.array_spec import ArraySpec

_CUDA_NBYTES = 1024**3
"""Allowance for the device memory that CUDA, its libraries and the kernels take in one process. It is not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMemory:
    """Device memory that one task, on one thread, needs at most, in bytes."""

    result_nbytes: int
    """Result of the task. If the host decodes the array, it is copied to the device, where nothing else is needed."""
    batches_nbytes: int = 0
    """Batches that are decoded at once: encoded chunks, decoded chunks, and scratch memory of nvCOMP."""
    table_nbytes: int = 0
    """Tables of pointers and sizes."""

    @property
    def device_nbytes(self) -> int:
        """Peak of the task's device memory, in bytes."""
        return self.result_nbytes + self.batches_nbytes + self.table_nbytes

    def n_fitting(self, gpu_nbytes: int) -> int:
        """Return how many such tasks fit on a GPU of `gpu_nbytes` bytes at once, less 1 GiB that is left to CUDA."""
        return max(0, gpu_nbytes - _CUDA_NBYTES) // max(1, self.device_nbytes)


def task_memory(
    stored: StoredArray, block_shape: tuple[int, ...], *, options: ResourceOptions, gpu_nbytes: int
) -> TaskMemory:
    """Return the device memory that reading one block takes.

    Parameters
    ----------
    stored : StoredArray
        The array.
    block_shape : tuple of int
        Shape of a block that begins at the border of a chunk along each axis.
    options : ResourceOptions
        Limits of a read. If they do not set `scratch_nbytes`, a read takes three quarters of the GPU's memory divided
        by `n_reads`.
    gpu_nbytes : int
        Memory of the GPU in bytes.

    Raises
    ------
    DeviceMemoryError
        If the limits have no room for one chunk.
    """
    result_nbytes = prod(block_shape) * np.dtype(stored.cast.dtype).itemsize
    spec = stored.spec
    if not isinstance(spec, ArraySpec) or why_not_device(spec, stored.cast) is not None:
        return TaskMemory(result_nbytes=result_nbytes)
    n_chunks = prod(-(-n // chunk) for n, chunk in zip(block_shape, spec.grid.chunk_shape, strict=True))
    device_nbytes_per_chunk = chunk_device_nbytes(spec)
    limits = BatchLimits.for_budget(
        spec.path,
        chunk_nbytes=spec.chunk_nbytes,
        chunk_device_nbytes=device_nbytes_per_chunk,
        budget_nbytes=scratch_nbytes(options, gpu_nbytes),
        options=options,
    )
    n_at_once = min(n_chunks, limits.n_batches * limits.n_chunks)
    return TaskMemory(
        result_nbytes=result_nbytes,
        batches_nbytes=max_allocated_nbytes(n_at_once * device_nbytes_per_chunk),
        table_nbytes=limits.n_batches * TABLE_NBYTES,
    )
