"""The error for a chunk that is damaged, with the same words from every decoder."""

from __future__ import annotations

from xarray_gpuzarr.errors import CorruptChunkError
from xarray_gpuzarr.stored.array_spec import ArraySpec


def name_chunk(spec: ArraySpec, chunk: tuple[int, ...], where: str) -> tuple[str, str]:
    """Name a chunk that cannot be decoded, and where and how it is stored."""
    return f"cannot decode chunk {chunk} of array '{spec.path}'", f"object {where}: {spec.codecs}"


def corrupt_chunk(spec: ArraySpec, chunk: tuple[int, ...], where: str, found: str) -> CorruptChunkError:
    """Return the error for a chunk that is damaged.

    Parameters
    ----------
    spec : ArraySpec
    chunk : tuple of int
        Its coordinate in the grid of inner chunks.
    where : str
        Key of its object, and which of the object's bytes it is.
    found : str
    """
    headline, tried = name_chunk(spec, chunk, where)
    do = "the stored chunk is damaged: rewrite it, or leave it out of the selection"
    return CorruptChunkError(headline, tried=tried, found=found, do=do)


def too_long(spec: ArraySpec, nbytes: int) -> str:
    """Say that a chunk is stored in more bytes than it can have; `nbytes` is what was seen of it."""
    most = f"{spec.most_nbytes} at most, of a chunk of {spec.chunk_nbytes} bytes"
    return f"{nbytes} encoded bytes or more; expected {most}"
