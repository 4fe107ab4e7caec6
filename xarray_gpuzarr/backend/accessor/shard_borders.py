"""Where dask chunks have to end so that each has whole shards, and the errors if they end elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from xarray import Variable

from xarray_gpuzarr.errors import OptionError

_N_LISTED = 5
"""Number of chunk lengths that an error lists."""


def first_unaligned_axis(chunks: Sequence[tuple[int, ...]], whole_shards: Sequence[tuple[int, ...]]) -> int | None:
    """Return the first axis along which a dask chunk ends inside a shard; None if there is no such axis.

    `chunks` are the lengths of the dask chunks along each axis, and `whole_shards` those of chunks of whole shards.
    """
    for axis, (chunk_lengths, shard_lengths) in enumerate(zip(chunks, whole_shards, strict=True)):
        if not set(accumulate(chunk_lengths)) <= set(accumulate(shard_lengths)):
            return axis
    return None


def cut_at_multiples(start: int, n: int, length: int) -> tuple[int, ...]:
    """Return the lengths of the parts of ``range(start, start + n)``, cut at the multiples of `length`."""
    first = min(n, length - start % length)
    lengths = [first, *[length] * ((n - first) // length)]
    remainder = n - sum(lengths)
    return (*lengths, remainder) if remainder else tuple(lengths)


def unaligned_error(
    name: Any, variable: Variable, axis: int, shards: Sequence[int], whole_shards: Sequence[Sequence[int]]
) -> OptionError:
    """Return the error for dask chunks that end inside shards along an axis.

    `shards` is the shape of a shard, and `whole_shards` are the lengths of chunks that would be whole shards.
    """
    assert variable.chunks is not None
    dim = variable.dims[axis]
    length = shards[axis]
    chunks = _chunks_argument(tuple(whole_shards[axis]), length)
    return OptionError(
        f"dask chunks end inside shards of variable {name!r}: two tasks would write parts of one shard",
        tried=f"chunks of {_list_lengths(variable.chunks[axis])} along {dim!r}",
        found=f"shards of {length}; chunks of whole shards are {_list_lengths(whole_shards[axis])}",
        do=f"give rechunk=True, or chunk the dataset before, such as ds.chunk({{{dim!r}: {chunks}}})",
    )


def _chunks_argument(whole_shards: tuple[int, ...], length: int) -> str:
    """Return the argument with which ``ds.chunk`` makes chunks of whole shards, of `length` except at both ends."""
    if whole_shards == cut_at_multiples(0, sum(whole_shards), length):
        return str(length)
    if len(whole_shards) <= _N_LISTED:
        return str(whole_shards)
    return f"({whole_shards[0]}, *[{length}] * {len(whole_shards) - 2}, {whole_shards[-1]})"


def outside_error(name: Any, dim: Any, region: slice, n: int) -> OptionError:
    """Return the error for a region that exceeds the `n` elements of a stored variable along a dimension."""
    return OptionError(
        f"a region that lies outside variable {name!r} in the store",
        tried=f"region={{{dim!r}: slice({region.start}, {region.stop})}}",
        found=f"{n} elements along {dim!r}",
        do=f"write to a region inside, or make the variable longer with append_dim={dim!r}",
    )


def _list_lengths(lengths: Sequence[int]) -> str:
    """Return the first lengths as text."""
    text = ", ".join(map(str, lengths[:_N_LISTED]))
    return f"{text}, ..." if len(lengths) > _N_LISTED else text
