"""Errors about single chunks of a plan, which all decoders share: damaged chunks, failed codecs, vanished objects."""

from __future__ import annotations

from xarray_gpuzarr.errors import (
    CorruptChunkError,
    GpuZarrError,
    HostMemoryError,
    StoreReadError,
    UnsupportedCodecError,
)
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.stored.array_spec import ArraySpec

_REOPEN_LATER = "something deletes or rewrites the store: open it again once that has ended"


def _headline_and_tried(spec: ArraySpec, chunk: tuple[int, ...], location: str) -> tuple[str, str]:
    """Return the headline of an error about a chunk, and its ``tried``: the object and the codecs."""
    return f"cannot decode chunk {chunk} of array '{spec.path}'", f"object {location}: {spec.codecs}"


def corrupt_chunk_at(spec: ArraySpec, chunk: tuple[int, ...], location: str, found: str) -> CorruptChunkError:
    """Return the error for a damaged chunk.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    chunk : tuple of int
        Coordinate of the chunk in the grid of inner chunks.
    location : str
        Store key of the object, and the bytes of the chunk in it.
    found : str
        Description of the damage.
    """
    headline, tried = _headline_and_tried(spec, chunk, location)
    do = "the stored chunk is damaged: rewrite it, or leave it out of the selection"
    return CorruptChunkError(headline, tried=tried, found=found, do=do)


def too_long_text(spec: ArraySpec, nbytes: int) -> str:
    """Return the ``found`` of an error: a chunk has at least `nbytes` encoded bytes, more than it can have."""
    limit = f"at most {spec.max_encoded_nbytes}, for a chunk of {spec.chunk_nbytes} bytes when decoded"
    return f"at least {nbytes} encoded bytes; expected {limit}"


def chunk_fault(plan: ReadPlan, row: int, err: FrameError) -> GpuZarrError:
    """Return the error for a chunk that was not decoded, because it is damaged or its codec could not run."""
    if not isinstance(err, CodecFailure):
        return corrupt_chunk(plan, row, str(err))
    error_class, do = _codec_failure(err.__cause__)
    headline, tried = _headline_and_tried(plan.spec, *_locate(plan, row))
    return error_class(f"{headline}: a codec could not run", tried=tried, found=str(err), do=do)


def corrupt_chunk(plan: ReadPlan, row: int, found: str) -> CorruptChunkError:
    """Return the error for a damaged chunk, given its row of the plan."""
    return corrupt_chunk_at(plan.spec, *_locate(plan, row), found)


def too_long_chunk(plan: ReadPlan, row: int, nbytes: int) -> CorruptChunkError:
    """Return the error for a chunk that is stored in more bytes than it can have."""
    return corrupt_chunk(plan, row, too_long_text(plan.spec, nbytes))


def _locate(plan: ReadPlan, row: int) -> tuple[tuple[int, ...], str]:
    """Return the coordinate of a chunk, and a description of the object and bytes that hold it."""
    nbytes = int(plan.nbytes[row])
    extent = "whole" if nbytes == WHOLE_OBJECT else f"{nbytes} bytes at {plan.offset[row]}"
    return tuple(plan.chunk[row].tolist()), f"'{plan.key_of(row)}', {extent}"


def _codec_failure(cause: BaseException | None) -> tuple[type[GpuZarrError], str]:
    """Return the class of the error for a codec that could not run, and what to do about it."""
    if isinstance(cause, MemoryError):
        return HostMemoryError, "select less at once, or let fewer threads read: XARRAY_GPUZARR_NUM_THREADS"
    if isinstance(cause, ImportError):
        package = (cause.name or "").partition(".")[0]
        missing = f"the package that has {package!r}" if package else "the package that the codec imports"
        return UnsupportedCodecError, f"install {missing}, or leave the array out: drop_variables=[...]"
    if isinstance(cause, OSError):
        return StoreReadError, "see what the system lacks (open files: ulimit -n), then read again"
    do = "install a newer version of the package that has the codec, or leave the array out: drop_variables=[...]"
    return UnsupportedCodecError, do


def vanished_shard(spec: ArraySpec, key: str) -> StoreReadError:
    """Return the error for a shard that disappeared after its index was read."""
    return StoreReadError(
        f"shard '{key}' of array '{spec.path}' has disappeared",
        tried="to read its chunks, after its index had been read",
        found="no such object",
        do=_REOPEN_LATER,
    )


def vanished_chunk(plan: ReadPlan, row: int) -> StoreReadError:
    """Return the error for a chunk that disappeared before it was read a second time."""
    if plan.spec.index is not None:
        return vanished_shard(plan.spec, plan.key_of(row))
    return StoreReadError(
        f"object '{plan.key_of(row)}' of array '{plan.spec.path}' has disappeared",
        tried=f"to read chunk {tuple(plan.chunk[row].tolist())} once more, for the host to decode it",
        found="no such object",
        do=_REOPEN_LATER,
    )
