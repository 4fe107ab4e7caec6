"""Warnings that an argument of a write has no effect on variables that exist in the store already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numcodecs.abc
from xarray import Variable

from xarray_gpuzarr.backend.accessor.codec_names import named_codecs
from xarray_gpuzarr.backend.accessor.sharding_arguments import ShardingArguments
from xarray_gpuzarr.process.advice import advise


def advise_of_ignored_sizes(stored: Mapping[Any, Variable], sharding: ShardingArguments) -> None:
    """Warn if the user gives other lengths of chunks and shards than stored variables have.

    Parameters
    ----------
    stored : mapping of hashable to xarray.Variable
        The variables of the write that exist in the store already, by name, and undecoded as the store holds them.
    sharding : ShardingArguments
        The lengths that the user gives.
    """
    names = []
    ignored: dict[str, None] = {}  # in order, each once
    stored_lengths: dict[str, None] = {}
    for name, variable in stored.items():
        lengths = _ignored_lengths(name, variable, sharding)
        if lengths:
            names.append(name)
        for noun, dim, length, stored_length in lengths:
            ignored[f"{noun} of {length} along {dim!r}"] = None
            stored_lengths[f"{noun} of {stored_length} along {dim!r}"] = None
    if names:
        advise(
            f"ignored sizes of {names}",
            f"{' and '.join(ignored)} are ignored for variables that are stored already: {', '.join(map(repr, names))}",
            found=f"{' and '.join(stored_lengths)} in the store",
            do="leave the sizes out, or write a new store, whose variables get them",
        )


def _ignored_lengths(name: Any, stored: Variable, sharding: ShardingArguments) -> list[tuple[str, Any, int, int]]:
    """Return the lengths that a user gives and a stored variable does not have.

    Returns
    -------
    list of tuple
        For each, "chunks" or "shards", the dimension, the length that the user gives, and the one that is stored.
    """
    ignored = []
    chunks = stored.encoding["chunks"]
    by_noun = {"chunks": (chunks, sharding.chunks), "shards": (stored.encoding["shards"] or chunks, sharding.shards)}
    if stored.dims == (name,):  # an index need not have the lengths of chunks that the user gives; see `Layout.shapes`
        del by_noun["chunks"]
    for noun, (stored_shape, size) in by_noun.items():
        lengths = size if isinstance(size, Mapping) else {}  # a size in bytes may be the default: no warning
        for dim, n in zip(stored.dims, stored_shape, strict=True):
            if lengths.get(dim, -1) not in (-1, n):  # -1 stands for the whole dimension, which may become longer
                ignored.append((noun, dim, lengths[dim], n))
    return ignored


def advise_of_ignored_codecs(stored: Mapping[Any, Variable], compressors: Any, zarr_format: int) -> None:
    """Warn if the user gives other compressors than stored variables have.

    Parameters
    ----------
    stored : mapping of hashable to xarray.Variable
        The variables of the write that exist in the store already, by name, and undecoded as the store holds them.
    compressors : str, codec, sequence of codecs, or None
        The compressors that the user gives, or None.
    zarr_format : {2, 3}
        Zarr format of the arrays.
    """
    if compressors is None:
        return
    requested = _methods(named_codecs(compressors, zarr_format))
    others = [name for name, variable in stored.items() if _methods(variable.encoding["compressors"]) != requested]
    if others:
        in_store = [_method_text(method) for method in _methods(stored[others[0]].encoding["compressors"])]
        advise(
            f"ignored compressors of {others}",
            f"compressors are ignored for variables that are stored already: {', '.join(map(repr, others))}",
            found=f"{', '.join(in_store) or 'no compressor'} in the store for {others[0]!r}",
            do="leave compressors out, or write a new store, whose variables get them",
        )


def _methods(codecs: Any) -> list[dict[str, Any]]:
    """Return the methods and levels of codecs, without what zarr-python derives from the dtype, such as shuffling."""
    methods = []
    for codec in codecs if isinstance(codecs, tuple | list) else [codecs]:
        if isinstance(codec, Mapping):
            metadata = codec
        else:
            metadata = codec.get_config() if isinstance(codec, numcodecs.abc.Codec) else codec.to_dict()
        configuration = metadata.get("configuration", metadata)  # in Zarr format 2, parameters stand beside the id
        levels = {key: configuration[key] for key in ("cname", "level", "clevel") if key in configuration}
        methods.append({"codec": metadata.get("name", metadata.get("id"))} | levels)
    return methods


def _method_text(method: Mapping[str, Any]) -> str:
    """Return the method of a codec as text, such as "blosc (cname zstd, clevel 5)"."""
    levels = [f"{key} {value}" for key, value in method.items() if key != "codec"]
    return f"{method['codec']} ({', '.join(levels)})" if levels else str(method["codec"])
