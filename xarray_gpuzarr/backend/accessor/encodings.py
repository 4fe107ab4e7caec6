"""Shapes of chunks and shards for given sizes, and the `encoding` for xarray's own `to_zarr` that has them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numcodecs.abc
import numpy as np
import zarr.abc.codec
from xarray import Dataset, Variable

from xarray_gpuzarr.backend.accessor.codec_names import named_codecs
from xarray_gpuzarr.errors import OptionError, similar_name_hint
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.process.settings import parse_nbytes

Size = int | str | Mapping[Any, int]
"""Size of a chunk or a shard: bytes in the stored dtype before compression, as a number or as text; or lengths along
dimensions, where -1 stands for the whole dimension."""

LAYOUT_KEYS = ("chunks", "shards", "preferred_chunks")
"""Keys of a variable's encoding that a layout replaces."""
PACKING_KEYS = ("dtype", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Keys of an encoding that describe how values are packed."""
TIME_KEYS = ("units", "calendar")
"""Keys of an encoding that describe how times are packed, besides `PACKING_KEYS`."""
_CODEC_KEYS = ("filters", "compressors", "serializer")
"""Keys of an encoding whose values are codecs."""
_TEXT_AND_OBJECTS = "OSUTV"
"""Kinds of dtypes that get no shapes: objects, bytes, text of fixed and of variable length, structures."""
_SIZE_ADVICE = 'give bytes (2**20), a text ("1 MiB"), or lengths of dimensions ({"time": 24, "x": -1})'
"""What an error about an unusable size says to do."""


@record
class Layout:
    """Sizes of the chunks and shards of new variables."""

    chunks: Size
    shards: Size | None
    """None for no shards."""

    def shapes(self, name: Any, variable: Variable) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a variable's chunks and shards.

        Parameters
        ----------
        name : hashable
            Name of the variable, for errors.
        variable : xarray.Variable
            The variable, before it is encoded.

        Returns
        -------
        dict
            "chunks" and, if a shard has more than one chunk, "shards". Empty for text, objects and scalars. If both
            sizes are lengths, the chunks of a dimension coordinate are as long as the shards.

        Raises
        ------
        OptionError
            If a shard does not have a whole number of chunks, or the shape of the variable is unknown.
        """
        stored_dtype = np.dtype(variable.encoding.get("dtype", variable.dtype))
        if not variable.ndim or variable.dtype.kind in _TEXT_AND_OBJECTS or stored_dtype.kind in _TEXT_AND_OBJECTS:
            return {}
        if any(map(math.isnan, variable.shape)):
            raise OptionError(
                f"the shape of variable {name!r} is not known",
                tried=f"chunks of its shape {variable.shape}",
                found="dask chunks whose lengths are not known",
                do="call compute_chunk_sizes() of its array, or load it",
            )
        itemsize = stored_dtype.itemsize  # times without a stored dtype are stored in 8 bytes, like datetime64
        shape = [max(1, n) for n in variable.shape]
        if variable.dims == (name,) and isinstance(self.chunks, Mapping) and isinstance(self.shards, Mapping):
            # With chunks of {"time": 1}, the coordinate "time" would have chunks of eight bytes, and a reader needs all
            # of them. So its chunks are as long as the shards.
            return {"chunks": _lengths(self.shards, variable.dims, shape)}
        chunk = _chunk_shape(variable.dims, shape, itemsize, self.chunks, self.shards)
        if self.shards is None:
            return {"chunks": chunk}
        n_chunks = [-(-n // length) for n, length in zip(shape, chunk, strict=True)]
        if isinstance(self.shards, Mapping):
            padded_shape = [n * length for n, length in zip(n_chunks, chunk, strict=True)]
            shard = _lengths(self.shards, variable.dims, padded_shape)
            _check_multiples(f"shards of variable {name!r}", variable.dims, chunk, shard)
        else:
            assert isinstance(self.shards, int)
            chunks_per_shard = _block_shape(n_chunks, self.shards // (itemsize * math.prod(chunk)))
            shard = tuple([n * length for n, length in zip(chunks_per_shard, chunk, strict=True)])
        return {"chunks": chunk} if shard == chunk else {"chunks": chunk, "shards": shard}


def layout_of(dims: Iterable[Any], chunks: Size, shards: Size | None, zarr_format: int) -> Layout:
    """Return the layout for a dataset with these dimensions. Zarr format 2 has no shards.

    Raises `OptionError` if the format is unknown, a size is unusable, or shards cannot have whole chunks.
    """
    if zarr_format not in (2, 3):
        raise OptionError(
            "unknown Zarr format", tried=f"zarr_format={zarr_format!r}", found="neither 2 nor 3", do="give one of these"
        )
    dims = [*dims]
    chunks = _parse_size(chunks, "chunks", dims)
    shards = None if shards is None or zarr_format == 2 else _parse_size(shards, "shards", dims)
    if isinstance(chunks, Mapping) and isinstance(shards, Mapping):
        # Whether these lengths fit does not depend on a variable, so they are checked even if no variable has the
        # dimensions.
        common = [dim for dim in chunks if chunks[dim] != -1 and shards.get(dim, -1) != -1]
        _check_multiples("shards=", common, [chunks[dim] for dim in common], [shards[dim] for dim in common])
    if isinstance(chunks, int) and isinstance(shards, int) and chunks > shards:
        raise OptionError(
            "chunks that are larger than shards",
            tried=f"chunks of {chunks} bytes, shards of {shards} bytes",
            found="a shard that has no room for a chunk",
            do="give shards of several chunks, or shards=None for none",
        )
    return Layout(chunks=chunks, shards=shards)


def encodings(
    dataset: Dataset, chunks: Size, shards: Size | None, compressors: Any, zarr_format: int
) -> dict[Any, dict[str, Any]]:
    """Return the `encoding` for `xarray.Dataset.to_zarr`; see `DatasetAccessor.encoding`."""
    layout = layout_of(dataset.dims, chunks, shards, zarr_format)
    by_name = {}
    for name, variable in dataset.variables.items():
        keys = [*PACKING_KEYS, *(TIME_KEYS if variable.dtype.kind in "mM" else ())]
        encoding = {key: variable.encoding[key] for key in keys if key in variable.encoding}
        own_codecs = without_foreign_codecs(variable.encoding, zarr_format)
        for key in ("filters", "compressors"):
            # Any other value, such as None, leaves the choice to zarr-python.
            if isinstance(own_codecs.get(key), tuple | list):
                encoding[key] = own_codecs[key]
        if own_codecs.get("serializer") is not None:
            encoding["serializer"] = own_codecs["serializer"]
        if compressors is not None:
            encoding["compressors"] = named_codecs(compressors, zarr_format)
        by_name[name] = encoding | layout.shapes(name, variable)
    return by_name


def without_foreign_codecs(encoding: Mapping[str, Any], zarr_format: int) -> dict[str, Any]:
    """Return the encoding of a variable without codecs of the other Zarr format, which cannot be written.

    A variable has them if it was read from a store of that format.
    """
    foreign_class: Any = numcodecs.abc.Codec if zarr_format == 3 else zarr.abc.codec.Codec
    kept = dict(encoding)
    for key in _CODEC_KEYS:
        codecs = encoding.get(key)
        as_list = codecs if isinstance(codecs, tuple | list) else [codecs]
        foreign_codecs = [codec for codec in as_list if isinstance(codec, foreign_class)]
        if foreign_codecs:
            del kept[key]
    return kept


def _chunk_shape(
    dims: Sequence[Any], shape: Sequence[int], itemsize: int, chunks: Size, shards: Size | None
) -> tuple[int, ...]:
    """Return the shape of a chunk.

    If `chunks` is a number of bytes and `shards` are lengths, the shape divides that of a shard, unless that would need
    chunks that are much shorter; see `_divisor_or_maximum`.
    """
    if isinstance(chunks, Mapping):
        return _lengths(chunks, dims, shape)
    assert isinstance(chunks, int)
    shard_lengths = shards if isinstance(shards, Mapping) else {}
    shard = _lengths(shard_lengths, dims, shape)
    lengths = []
    for dim, shard_length, length in zip(dims, shard, _block_shape(shard, chunks // itemsize), strict=True):
        is_whole_axis = shard_lengths.get(dim, -1) == -1  # such a shard is extended to whole chunks
        lengths.append(length if is_whole_axis else _divisor_or_maximum(shard_length, length))
    return tuple(lengths)


def _block_shape(shape: Sequence[int], max_items: int) -> tuple[int, ...]:
    """Return the shape of a block of at most `max_items` items, and at least one.

    The block has the whole length of the last axes, as far as they fit. The axis before these is cut into nearly equal
    parts, and the block has length 1 along the axes before that.
    """
    lengths: list[int] = []
    for n in reversed(shape):
        n_parts = -(-n // max(1, min(n, max_items)))
        length = -(-n // n_parts)
        lengths.insert(0, length)
        max_items //= length
    return tuple(lengths)


def _divisor_or_maximum(n: int, max_divisor: int) -> int:
    """Return the largest divisor of `n` up to `max_divisor`, or `max_divisor` itself.

    The latter is returned if the largest divisor is less than a quarter of it. It is then no divisor of `n`, so
    `_check_multiples` refuses the chunks later. An error is better than chunks much smaller than requested.
    """
    divisor = next(i for i in range(max_divisor, 0, -1) if n % i == 0)
    return divisor if 4 * divisor >= max_divisor else max_divisor


def _lengths(by_dim: Mapping[Any, int], dims: Sequence[Any], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the length along each dimension: that in `by_dim`, even if the dimension is shorter.

    If there is none, or if it is -1, it is the length of the whole dimension, as in `shape`.
    """
    lengths = [by_dim.get(dim, -1) for dim in dims]
    return tuple([n if length == -1 else length for n, length in zip(shape, lengths, strict=True)])


def _parse_size(size: Size, name: str, dims: Sequence[Any]) -> int | dict[Any, int]:
    """Return a size as bytes or as lengths by dimension, whose numbers are ints, also if NumPy's integers were given.

    Raises `OptionError` if the size is unusable.
    """
    headline = f"unusable size of {name}"
    tried = f"{name}={size!r}"
    if isinstance(size, str):
        size = parse_nbytes(size, headline, tried=tried, do=_SIZE_ADVICE)
    if isinstance(size, Mapping):
        unknown = [dim for dim in size if dim not in dims]
        if unknown:
            names = ", ".join(map(repr, dims))
            do = f"name dimensions of the dataset{similar_name_hint(str(unknown[0]), dims)}"
            raise OptionError(headline, tried=tried, found=f"no dimension {unknown[0]!r} among {names}", do=do)
    lengths = list(size.values()) if isinstance(size, Mapping) else [size]
    for n in lengths:
        is_integer = isinstance(n, int | np.integer) and not isinstance(n, bool)
        is_whole_axis = n == -1 and isinstance(size, Mapping)
        if not is_whole_axis and not (is_integer and n >= 1):
            raise OptionError(headline, tried=tried, found="not a whole number of at least 1", do=_SIZE_ADVICE)
    if isinstance(size, Mapping):
        return {dim: int(n) for dim, n in size.items()}
    return int(size)


def _check_multiples(name: str, dims: Sequence[Any], chunk: Sequence[int], shard: Sequence[int]) -> None:
    """Raise `OptionError` unless a shard has a whole number of chunks along each axis; `name` begins the message."""
    for dim, chunk_length, shard_length in zip(dims, chunk, shard, strict=True):
        if shard_length % chunk_length:
            raise OptionError(
                f"{name} with no whole number of chunks",
                tried=f"shards of {shard_length} elements along {dim!r}, chunks of {chunk_length}",
                found=f"{shard_length} is not a multiple of {chunk_length}",
                do=f"give a multiple of {chunk_length} for {dim!r}, or -1; or shards of a size in bytes",
            )
