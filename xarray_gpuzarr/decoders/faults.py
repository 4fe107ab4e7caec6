"""Errors that both decoders raise about a plan: a chunk that does not decode, a shard or a chunk that is gone."""

from __future__ import annotations

from xarray_gpuzarr.errors import CorruptChunkError, DeviceUnavailableError, StoreReadError
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.read_plan import ReadPlan

_UNSTEADY = "something deletes or rewrites the store: open it again once that has ended"


def corrupt_chunk(plan: ReadPlan, row: int, found: str) -> CorruptChunkError:
    """Return the error for one chunk that does not decode."""
    chunk = tuple(plan.chunk[row].tolist())
    nbytes = int(plan.nbytes[row])
    extent = "whole" if nbytes == WHOLE_OBJECT else f"{nbytes} bytes at {plan.offset[row]}"
    return CorruptChunkError(
        f"cannot decode chunk {chunk} of array '{plan.spec.path}'",
        tried=f"object '{plan.key_of(row)}', {extent}: {plan.spec.codecs}",
        found=found,
        do="the stored chunk is damaged: rewrite it, or leave it out of the selection",
    )


def vanished_shard(plan: ReadPlan) -> StoreReadError:
    """Return the error for a shard whose index was read and whose chunks cannot be found any more."""
    return StoreReadError(
        f"shard '{plan.keys[0]}' of array '{plan.spec.path}' has disappeared",
        tried="to read its chunks, after its index had been read",
        found="no such object",
        do=_UNSTEADY,
    )


def vanished_chunk(plan: ReadPlan, row: int) -> StoreReadError:
    """Return the error for a chunk that was read and cannot be found any more."""
    if plan.spec.index is not None:
        return vanished_shard(plan)
    return StoreReadError(
        f"object '{plan.key_of(row)}' of array '{plan.spec.path}' has disappeared",
        tried=f"to read chunk {tuple(plan.chunk[row].tolist())} once more, for the host to decode it",
        found="no such object",
        do=_UNSTEADY,
    )


def no_direct_files(why: str) -> DeviceUnavailableError:
    """Return the error of a machine where files cannot be read straight into device memory."""
    return DeviceUnavailableError(
        'storage="gds" cannot be used here',
        tried="GPUDirect Storage, with kvikio",
        found=why,
        do='storage="auto", which reads through host memory here; or, on a machine that has GPUDirect Storage, '
        'pip install "xarray-gpuzarr[gds13]" (gds12 for CUDA 12)',
    )
