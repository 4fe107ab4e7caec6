"""Warnings about writes to stored arrays that xarray carries out, but that are hardly ever meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numcodecs.abc
import numpy as np
import numpy.typing as npt
from xarray import Variable, conventions
from xarray.backends import ZarrStore

from xarray_gpuzarr.backend.accessor.codec_names import named_codecs
from xarray_gpuzarr.backend.accessor.sharding_arguments import ShardingArguments
from xarray_gpuzarr.backend.accessor.time_check import has_times
from xarray_gpuzarr.process.advice import advise


def advise_of_append(
    target: ZarrStore, variables: Mapping[Any, Variable], stored: Mapping[Any, Variable], append_dim: Any
) -> None:
    """Warn of variables that are left out, of coordinates that change, and of an index that does not go on.

    Only dimension coordinates of which the new values are in memory are compared. Nothing else in the store is read.

    Parameters
    ----------
    target : xarray.backends.ZarrStore
        The group that is appended to.
    variables : mapping of hashable to xarray.Variable
        The variables that are written, by name.
    stored : mapping of hashable to xarray.Variable
        Those of them that are stored already, as they are stored.
    append_dim : hashable
        The dimension along which arrays become longer.
    """
    left_out = [
        name
        for name in target.array_keys()
        if name not in variables and append_dim in target.open_store_variable(name).dims
    ]
    if left_out:
        advise(
            f"variables left out of an append {left_out}",
            f"an append leaves out variables that have the dimension {append_dim!r}",
            found=f"{', '.join(map(repr, left_out))} in the store, and not in the dataset",
            do="append these as well: until then the store cannot be opened, since its arrays have different lengths",
        )
    for name, in_store in stored.items():
        variable = variables[name]
        if in_store.dims != (name,) or variable.dims != (name,) or variable.chunks is not None:
            continue
        earlier = conventions.decode_cf_variables({name: in_store}, {})[0][name].values
        if name == append_dim:
            _advise_of_order(name, earlier, variable.values)
        elif not _are_equal(earlier, variable.values):
            advise(
                f"coordinate changed by an append {name!r}",
                f"an append changes the coordinate {name!r} of all that is stored already",
                found=f"{_ends(earlier)} in the store, {_ends(variable.values)} in the dataset",
                do=f"bring the dataset to the stored {name!r}, for example with sortby or reindex, or leave the "
                "coordinate out",
            )


def _are_equal(earlier: npt.NDArray[Any], later: npt.NDArray[Any]) -> bool:
    """Whether values are those that are stored, apart from what the stored dtype rounds off."""
    if earlier.shape == later.shape and earlier.dtype.kind == "f" and later.dtype.kind in "iuf":
        largest = np.fmax.reduce(np.abs(earlier), axis=None, initial=0)
        return np.allclose(earlier, later, atol=1e-6 * largest, equal_nan=True)
    is_equal: bool = Variable("x", earlier).equals(Variable("x", later))
    return is_equal


def _advise_of_order(name: Any, earlier: npt.NDArray[Any], later: npt.NDArray[Any]) -> None:
    """Warn if the values of an index are neither increasing nor decreasing once it has been appended to."""
    is_ordered = earlier.dtype.kind in "iuf" or (has_times(earlier) and has_times(later))
    if earlier.dtype.kind != later.dtype.kind or not is_ordered:  # such as text
        return
    values = np.concatenate([earlier, later])
    try:
        is_up = values[1:] > values[:-1]
        is_down = values[1:] < values[:-1]
    except TypeError:  # dates of two calendars
        return
    if is_up.all() or is_down.all():
        return
    # The order of most values is taken for the intended one, and the first pair in another order is shown.
    is_in_order = is_up if is_up.sum() >= is_down.sum() else is_down
    break_index = int(is_in_order.argmin())
    advise(
        f"order of an index after an append {name!r}",
        f"after the append, the values of {name!r} are neither increasing nor decreasing",
        found=f"{values[break_index]} at index {break_index}, followed by {values[break_index + 1]}",
        do=f"if these are stored already, write them with region={{{name!r}: 'auto'}} in place of an append; if an "
        "earlier append was killed, cut the arrays back with zarr.open_array(path, mode='r+').resize(shape)",
    )


def _ends(values: npt.NDArray[Any]) -> str:
    """Return the number of values, and the first and the last one."""
    return f"{len(values)} values" + (f" from {values[0]} to {values[-1]}" if len(values) else "")


def advise_of_ignored_sizes(
    name: Any, dims: Sequence[Any], stored: Mapping[str, Sequence[int]], sharding: ShardingArguments
) -> None:
    """Warn if the user gives other lengths than a stored variable has.

    Parameters
    ----------
    name : hashable
        Name of the variable.
    dims : sequence of hashable
        Its dimensions.
    stored : mapping of str to sequence of int
        The shapes of its "chunks" and "shards".
    sharding : ShardingArguments
        The lengths that the user gives.
    """
    ignored = []
    stored_lengths = []
    for noun, size in (("chunks", sharding.chunks), ("shards", sharding.shards)):
        lengths = size if isinstance(size, Mapping) else {}  # a size in bytes may be the default: no warning
        # The user's lengths of chunks may not be meant for a dimension coordinate; see `Layout.shapes`.
        if noun == "chunks" and dims == (name,):
            continue
        for dim, n in zip(dims, stored[noun], strict=True):
            if lengths.get(dim, -1) not in (-1, n):  # -1 stands for the whole dimension, which may become longer
                ignored.append(f"{noun} of {lengths[dim]} along {dim!r}")
                stored_lengths.append(f"{noun} of {n} along {dim!r}")
    if ignored:
        advise(
            f"ignored sizes of {name!r}",
            f"{' and '.join(ignored)} are ignored: variable {name!r} is stored already",
            found=f"{' and '.join(stored_lengths)} in the store",
            do="leave the sizes out, or write a new store, whose variables get them",
        )


def advise_of_ignored_codecs(stored: Mapping[Any, Variable], compressors: Any, zarr_format: int) -> None:
    """Warn if the user gives other compressors than stored variables have.

    Parameters
    ----------
    stored : mapping of hashable to xarray.Variable
        The variables that are written and are stored already, as they are stored, by name.
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
        codecs = stored[others[0]].encoding["compressors"]
        advise(
            f"ignored compressors of {others}",
            f"compressors are ignored for variables that are stored already: {', '.join(map(repr, others))}",
            found=f"{', '.join(map(str, codecs)) or 'no compressor'} in the store for {others[0]!r}",
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
        configuration = metadata.get("configuration", metadata)  # Zarr format 2 has one level
        levels = {key: configuration[key] for key in ("cname", "level", "clevel") if key in configuration}
        methods.append({"codec": metadata.get("name", metadata.get("id"))} | levels)
    return methods
