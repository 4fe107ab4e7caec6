"""Errors that both decoders raise about a plan: a chunk that does not decode, a shard or a chunk that is gone."""

from __future__ import annotations

from xarray_gpuzarr.errors import (
    CorruptChunkError,
    DeviceUnavailableError,
    GpuZarrError,
    HostMemoryError,
    StoreReadError,
    UnsupportedCodecError,
)
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError
from xarray_gpuzarr.plan import damage
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.read_plan import ReadPlan

_UNSTEADY = "something deletes or rewrites the store: open it again once that has ended"


def chunk_fault(plan: ReadPlan, row: int, err: FrameError) -> GpuZarrError:
    """Return the error for one chunk that was not decoded: it is damaged, or its codec could not run."""
    if not isinstance(err, CodecFailure):
        return corrupt_chunk(plan, row, str(err))
    kind, do = _failure(err.__cause__)
    headline, tried = damage.name_chunk(plan.spec, *_place(plan, row))
    return kind(f"{headline}: a codec could not run", tried=tried, found=str(err), do=do)


def corrupt_chunk(plan: ReadPlan, row: int, found: str) -> CorruptChunkError:
    """Return the error for one chunk that is damaged."""
    return damage.corrupt_chunk(plan.spec, *_place(plan, row), found)


def too_long_chunk(plan: ReadPlan, row: int, nbytes: int) -> CorruptChunkError:
    """Return the error for one chunk that is stored in more bytes than it can have."""
    return corrupt_chunk(plan, row, damage.too_long(plan.spec, nbytes))


def _place(plan: ReadPlan, row: int) -> tuple[tuple[int, ...], str]:
    """Return the coordinate of a chunk, and where it is stored."""
    nbytes = int(plan.nbytes[row])
    extent = "whole" if nbytes == WHOLE_OBJECT else f"{nbytes} bytes at {plan.offset[row]}"
    return tuple(plan.chunk[row].tolist()), f"'{plan.key_of(row)}', {extent}"


def _failure(cause: BaseException | None) -> tuple[type[GpuZarrError], str]:
    """Return the class of the error of a codec that could not run, and what to do."""
    if isinstance(cause, MemoryError):
        return HostMemoryError, "select less at once, or let fewer threads read: XARRAY_GPUZARR_NUM_THREADS"
    if isinstance(cause, ImportError):
        package = (cause.name or "").partition(".")[0]
        what = f"the package that has {package!r}" if package else "the package that it imports"
        return UnsupportedCodecError, f"install {what}, or leave the array out: drop_variables=[...]"
    if isinstance(cause, OSError):
        return StoreReadError, "see what the system lacks (open files: ulimit -n), then read again"
    return UnsupportedCodecError, "install a newer version of what brings the codec, or leave the array out"


def vanished_shard(plan: ReadPlan, row: int) -> StoreReadError:
    """Return the error for a shard whose index was read and whose chunks cannot be found any more."""
    return StoreReadError(
        f"shard '{plan.key_of(row)}' of array '{plan.spec.path}' has disappeared",
        tried="to read its chunks, after its index had been read",
        found="no such object",
        do=_UNSTEADY,
    )


def vanished_chunk(plan: ReadPlan, row: int) -> StoreReadError:
    """Return the error for a chunk that was read and cannot be found any more."""
    if plan.spec.index is not None:
        return vanished_shard(plan, row)
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
