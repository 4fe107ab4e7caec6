"""Chunks and shards of a given size in bytes, and the `encoding` that xarray's own `to_zarr` takes for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numcodecs.abc
import numpy as np
import zarr.abc.codec
from xarray import Dataset, Variable

from xarray_gpuzarr.backend.accessor.codec_names import named_codecs
from xarray_gpuzarr.errors import OptionError, perhaps
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.process.settings import parse_nbytes

Size = int | str | Mapping[Any, int]
"""Size of a chunk or a shard: stored bytes before compression, or lengths along dimensions, -1 for all."""

REPLACED = ("chunks", "shards", "preferred_chunks")
"""Keys of a variable's encoding that a layout replaces."""
PACKING = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
TIMES = ("units", "calendar")
_CODECS = ("filters", "compressors")
_TIME_NBYTES = 8
_DO = 'give bytes (2**20), a text ("1 MiB"), or lengths of dimensions ({"time": 24, "x": -1})'


@record
class Layout:
    """How new variables are cut into chunks and shards."""

    chunks: Size
    shards: Size | None
    """None: no shards."""

    def shapes(self, name: Any, variable: Variable) -> dict[str, tuple[int, ...]]:
        """Return the shape of the chunks of a variable, and of its shards where these have more than one chunk.

        Text and objects get neither. Raises `OptionError` if a shard is no whole number of chunks, or the shape of the
        variable is not known.
        """
        return _layout(name, variable, self.chunks, self.shards)


def layout_of(dims: Iterable[Any], chunks: Size, shards: Size | None, zarr_format: int) -> Layout:
    """Return the layout of a dataset with these dimensions; raises `OptionError` if a size is unusable."""
    if zarr_format not in (2, 3):
        raise OptionError(
            "unknown Zarr format", tried=f"zarr_format={zarr_format!r}", found="neither 2 nor 3", do="give one of these"
        )
    dims = [*dims]
    chunks = _checked(chunks, "chunks", dims)
    shards = None if shards is None or zarr_format == 2 else _checked(shards, "shards", dims)
    if isinstance(chunks, Mapping) and isinstance(shards, Mapping):  # however short the axes are
        both = [dim for dim in chunks if chunks[dim] != -1 and shards.get(dim, -1) != -1]
        _check_whole("shards=", both, [chunks[dim] for dim in both], [shards[dim] for dim in both])
    if isinstance(chunks, int) and isinstance(shards, int) and chunks > shards:
        raise OptionError(
            "chunks that are longer than shards",
            tried=f"chunks of {chunks} bytes, shards of {shards} bytes",
            found="a shard that has no room for a chunk",
            do="give shards of several chunks, or shards=None for none",
        )
    return Layout(chunks=chunks, shards=shards)


def encodings(
    dataset: Dataset, chunks: Size, shards: Size | None, compressors: Any, zarr_format: int
) -> dict[Any, dict[str, Any]]:
    """Return what `Dataset.to_zarr` takes as `encoding`; see `DatasetAccessor.encoding`."""
    layout = layout_of(dataset.dims, chunks, shards, zarr_format)
    kind: Any = zarr.abc.codec.Codec if zarr_format == 3 else numcodecs.abc.Codec
    by_name = {}
    for name, variable in dataset.variables.items():
        keys = [*PACKING, *(TIMES if variable.dtype.kind in "mM" else ())]
        encoding = {key: variable.encoding[key] for key in keys if key in variable.encoding}
        for key in _CODECS:
            codecs = variable.encoding.get(key)
            if isinstance(codecs, tuple | list) and all(isinstance(codec, kind) for codec in codecs):
                encoding[key] = codecs
        if compressors is not None:
            encoding["compressors"] = named_codecs(compressors, zarr_format)
        by_name[name] = encoding | layout.shapes(name, variable)
    return by_name


def _layout(name: Any, variable: Variable, chunks: Size, shards: Size | None) -> dict[str, tuple[int, ...]]:
    """Return the chunks of a variable, and its shards where these have more than one; neither for text and objects."""
    stored = np.dtype(variable.encoding.get("dtype", variable.dtype))
    if not variable.ndim or variable.dtype.kind in "OSUTV" or stored.kind in "OSUTV":
        return {}
    if any(map(math.isnan, variable.shape)):
        raise OptionError(
            f"the shape of variable {name!r} is not known",
            tried=f"chunks of its shape {variable.shape}",
            found="chunks of dask whose lengths are not known",
            do="call compute_chunk_sizes() of its array, or load it",
        )
    itemsize = _TIME_NBYTES if stored.kind in "mM" else stored.itemsize
    shape = [max(1, n) for n in variable.shape]
    if isinstance(chunks, Mapping):
        chunk = _lengths(chunks, variable.dims, shape)
    else:
        assert isinstance(chunks, int)
        within = _lengths(shards, variable.dims, shape) if isinstance(shards, Mapping) else shape
        chunk = _filled(within, chunks // itemsize)
        chunk = tuple([n if whole == m else _divisor(m, n) for whole, m, n in zip(shape, within, chunk, strict=True)])
    if shards is None:
        return {"chunks": chunk}
    n_chunks = [-(-n // length) for n, length in zip(shape, chunk, strict=True)]
    if isinstance(shards, Mapping):
        shard = _lengths(shards, variable.dims, [n * length for n, length in zip(n_chunks, chunk, strict=True)])
        _check_whole(f"shards of variable {name!r}", variable.dims, chunk, shard)
    else:
        assert isinstance(shards, int)
        per_shard = _filled(n_chunks, shards // (itemsize * math.prod(chunk)))
        shard = tuple([n * length for n, length in zip(per_shard, chunk, strict=True)])
    return {"chunks": chunk} if shard == chunk else {"chunks": chunk, "shards": shard}


def _filled(shape: Sequence[int], room: int) -> tuple[int, ...]:
    """Return the shape of a block of at most `room` items, one at least: whole along the last axes, then cut evenly."""
    lengths: list[int] = []
    for n in reversed(shape):
        n_parts = -(-n // max(1, min(n, room)))
        lengths.insert(0, -(-n // n_parts))
        room //= lengths[0]
    return tuple(lengths)


def _divisor(whole: int, most: int) -> int:
    """Return the largest length that divides a whole and is at most as long; `most` if it is much shorter."""
    length = next(n for n in range(most, 0, -1) if whole % n == 0)
    return length if 4 * length >= most else most


def _lengths(by_dim: Mapping[Any, int], dims: Sequence[Any], shape: Sequence[int]) -> tuple[int, ...]:
    """Return lengths along all dimensions: those that are given, however short the axes are now, or whole axes."""
    lengths = [by_dim.get(dim, -1) for dim in dims]
    return tuple([n if length == -1 else length for n, length in zip(shape, lengths, strict=True)])


def _checked(size: Size, name: str, dims: Iterable[Any]) -> Size:
    """Return a valid size, with text converted to bytes."""
    headline, tried = f"unusable size of {name}", f"{name}={size!r}"
    if isinstance(size, str):
        size = parse_nbytes(size, headline, tried=tried, do=_DO)
    if isinstance(size, Mapping):
        unknown = [dim for dim in size if dim not in dims]
        if unknown:
            names = ", ".join(map(repr, dims))
            do = f"name dimensions of the dataset{perhaps(str(unknown[0]), dims)}"
            raise OptionError(headline, tried=tried, found=f"no dimension {unknown[0]!r} among {names}", do=do)
    lengths = list(size.values()) if isinstance(size, Mapping) else [size]
    for n in lengths:
        is_whole = isinstance(n, int | np.integer) and not isinstance(n, bool)
        if not (is_whole and n >= 1) and not (n == -1 and isinstance(size, Mapping)):
            raise OptionError(headline, tried=tried, found="not a whole number of at least 1", do=_DO)
    return size


def _check_whole(which: str, dims: Sequence[Any], chunk: Sequence[int], shard: Sequence[int]) -> None:
    """Raise unless shards have whole numbers of chunks."""
    for dim, length, of_shard in zip(dims, chunk, shard, strict=True):
        if of_shard % length:
            raise OptionError(
                f"{which} with no whole number of chunks",
                tried=f"shards of {of_shard} elements along {dim!r}, chunks of {length}",
                found=f"{of_shard} is no multiple of {length}",
                do=f"give a multiple of {length} for {dim!r}, or -1; or shards of a size in bytes",
            )
