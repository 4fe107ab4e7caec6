"""Write a dataset by `Dataset.to_zarr` with dask chunks of whole shards, so that no two tasks write to one shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr
import zarr
from dask.delayed import delayed
from dask.diagnostics.progress import ProgressBar
from rich.filesize import decimal
from xarray import Dataset, Variable, conventions
from xarray.backends import ZarrStore

from xarray_gpuzarr.backend.accessor.packing import packed
from xarray_gpuzarr.codec_pipeline import zarr_pipeline
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.progress_bar import client_of_dask
from xarray_gpuzarr.process.records import record

_SMALL_NBYTES = 2**24
"""Variables in memory of at most this size are written at once."""
_SHOWN = 5


@record
class Placed:
    """The shards of a variable, and its position in the stored array."""

    shards: tuple[int, ...]
    """Shape of a shard, or of a chunk if there are no shards."""
    starts: tuple[int, ...]
    """First element along each dimension in the stored array."""


def write_dataset(
    dataset: Dataset,
    store: Any,
    stored: Mapping[Any, zarr.Array[Any]],
    encoding: Mapping[Any, Mapping[str, Any]],
    *,
    rechunk: bool,
    progress: bool,
    **options: Any,
) -> Any:
    """Write a dataset, all of whose arrays are on the host; see `DatasetAccessor.to_zarr`.

    `stored` are the arrays that are in the store and stay, `encoding` is that of new variables, and the options are
    those of `xarray.Dataset.to_zarr`.
    """
    region, append_dim = _region(dataset, store, options), options.get("append_dim")
    dataset, places = _cut(dataset, stored, encoding, region, append_dim, rechunk=rechunk)
    # What xarray would check is so: each task writes whole chunks and shards, but for the ends of what is written.
    options.setdefault("safe_chunks", False)
    is_later = options.pop("compute", True) is False
    with zarr_pipeline():
        writes = dataset.to_zarr(store, encoding=encoding, compute=False, **options)
        there = ZarrStore.open_group(
            store,
            mode="r+",
            group=options.get("group"),
            consolidated=False,
            storage_options=options.get("storage_options"),
        )
        blocks = {name: each for name, each in dataset.variables.items() if each.chunks is not None}
        # Numbers and times are packed one by one. Text in chunks is left to xarray, and all else with it.
        if blocks and all(name in places and each.dtype.kind in "biufcmM" for name, each in blocks.items()):
            if options.get("mode") == "a-":  # variables without `append_dim` stay as they are stored
                blocks = {n: v for n, v in blocks.items() if n not in stored or append_dim in v.dims}
            writes = _writes(blocks, there, places, encoding, options)
    if is_later:
        return writes
    if progress and blocks:
        n = sum(prod(v.data.numblocks) for v in blocks.values())
        nbytes = max(
            prod(map(max, v.data.chunks)) * (v.dtype.itemsize + int(there.zarr_group[name].dtype.itemsize))
            for name, v in blocks.items()
        )
        print(f"{n} tasks, each of at most {decimal(nbytes)}: a block of dask, and the same as it is stored")  # noqa: T201  # above the bar of dask
    if not progress:
        writes.compute()
    elif client_of_dask() is None:
        with ProgressBar():
            writes.compute()
    else:
        from distributed import progress as show  # noqa: PLC0415  # takes long

        writes = writes.persist()
        show(writes, notebook=False)  # type: ignore[no-untyped-call]
        writes.compute()
    return there


def _cut(
    dataset: Dataset,
    stored: Mapping[Any, zarr.Array[Any]],
    encoding: Mapping[Any, Mapping[str, Any]],
    region: Mapping[Any, slice],
    append_dim: Any,
    *,
    rechunk: bool,
) -> tuple[Dataset, dict[Any, Placed]]:
    """Return the dataset in chunks of whole shards, dimensions ordered as stored, and the place of each variable."""
    places, cut = {}, {}
    for name, each in dataset.variables.items():
        variable = _in_order(each, stored[name]) if name in stored else each
        place = _place(variable, stored.get(name), encoding.get(name, {}), region, append_dim)
        if place is not None:
            places[name] = place
            chunks = _chunks(name, variable, place, rechunk=rechunk)
        else:  # such as text: chunks of one length are all that is asked for
            chunks = tuple(map(max, variable.chunks)) if rechunk and variable.chunks else None
        if chunks is not None:
            variable = variable.chunk(dict(zip(variable.dims, chunks, strict=True)))
        if variable is not each:
            cut[name] = variable
    data = {name: cut[name] for name in dataset.data_vars if name in cut}
    return dataset.assign(data).assign_coords({name: cut[name] for name in cut if name not in data}), places


def _writes(
    blocks: Mapping[Any, Variable],
    there: ZarrStore,
    places: Mapping[Any, Placed],
    encoding: Mapping[Any, Mapping[str, Any]],
    options: Mapping[str, Any],
) -> Any:
    """Return the tasks that pack and write blocks of variables to arrays that xarray has created or resized."""
    targets, sources, regions = [], [], []
    for name, variable in blocks.items():
        array, start = there.zarr_group[name], places[name].starts
        writes_empty = encoding.get(name, {}).get("write_empty_chunks", options.get("write_empty_chunks"))
        targets.append(array if writes_empty is None else array.with_config({"write_empty_chunks": writes_empty}))
        stored = conventions.decode_cf_variable(name, there.open_store_variable(name), decode_times=False)
        sources.append(packed(name, variable, stored))
        regions.append(tuple(slice(at, at + n) for at, n in zip(start, variable.shape, strict=True)))
    keywords = options.get("chunkmanager_store_kwargs") or {}
    return delayed(_end)(da.store(sources, targets, regions=regions, lock=False, compute=False, **keywords))


def _end(_: Any) -> None:
    """Return None after all tasks have run."""


def stored_group(store: Any, options: Mapping[str, Any]) -> zarr.Group | None:
    """Return the group that a dataset is added to; None if the group is new."""
    is_added = options.get("mode") in ("a", "a-", "r+")
    if options.get("append_dim") is None and options.get("region") is None and not is_added:
        return None
    path, storage_options = options.get("group") or "", options.get("storage_options")
    try:
        return zarr.open_group(store, path=path, mode="r", storage_options=storage_options)
    except FileNotFoundError:  # which xarray makes, or complains of
        return None


def _in_order(variable: Variable, stored: zarr.Array[Any]) -> Variable:
    """Return a variable with its dimensions in the order in which they are stored, as xarray writes them."""
    dims: Any = getattr(stored.metadata, "dimension_names", None) or stored.attrs.get("_ARRAY_DIMENSIONS", ())
    return variable.transpose(*dims) if set(dims) == set(variable.dims) else variable


def _region(dataset: Dataset, store: Any, options: dict[str, Any]) -> Mapping[Any, slice]:
    """Return the region as slices, and put it into `options`. xarray raises the error for an invalid region."""
    region = options.get("region")
    if isinstance(region, str) and region == "auto":
        region = dict.fromkeys(dataset.dims, "auto")
    if not isinstance(region, Mapping) or not all(isinstance(r, slice) or r == "auto" for r in region.values()):
        return {}
    if all(map(_is_plain, region.values())):
        return region
    group, storage_options = options.get("group"), options.get("storage_options")
    with xr.open_zarr(store, group, chunks=None, storage_options=storage_options) as there:
        region = {dim: _slice_of(dim, each, dataset, there) for dim, each in region.items()}
    options["region"] = region
    return region


def _is_plain(where: Any) -> bool:
    """Whether a slice has a start and an end that do not depend on the length of the axis."""
    ends = (where.start or 0, where.stop) if isinstance(where, slice) and where.step in (None, 1) else ()
    return len(ends) > 0 and all(isinstance(end, int) and end >= 0 for end in ends)


def _slice_of(dim: Any, where: Any, dataset: Dataset, there: Dataset) -> slice:
    """Return the position of the labels of a dimension in the store."""
    if isinstance(where, slice):
        start, stop, step = where.indices(there.sizes.get(dim, 0))
        return slice(start, stop, None if step == 1 else step)
    if dim not in there.indexes or dim not in dataset.indexes:
        return slice(0, there.sizes.get(dim, 0))
    at = there.indexes[dim].get_indexer(dataset.indexes[dim])
    if len(at) and (at[0] < 0 or (np.diff(at) != 1).any()):
        raise OptionError(
            f"the labels of {dim!r} are no region of the store",
            tried=f"region={{{dim!r}: 'auto'}}",
            found="labels that the store lacks, or has in another order",
            do="write labels that follow each other in the store, or give a slice",
        )
    return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 0)


def _place(
    variable: Variable,
    stored: zarr.Array[Any] | None,
    encoding: Mapping[str, Any],
    region: Mapping[Any, slice],
    append_dim: Any,
) -> Placed | None:
    """Return the place of a variable; None if xarray or zarr-python chooses its chunks."""
    if stored is None:
        shards = encoding.get("shards") or encoding.get("chunks")
        return None if shards is None else Placed(shards=tuple(shards), starts=(0,) * variable.ndim)
    if stored.ndim != variable.ndim:
        return None
    starts = [region[dim].start or 0 if dim in region else 0 for dim in variable.dims]
    if append_dim in variable.dims:
        axis = variable.dims.index(append_dim)
        starts[axis] = stored.shape[axis]
    return Placed(shards=stored.shards or stored.chunks, starts=tuple(starts))


def _chunks(name: Any, variable: Variable, place: Placed, *, rechunk: bool) -> tuple[Any, ...] | None:
    """Return chunks that end where shards end; None if the variable needs no other chunks, or is small.

    Without `rechunk`, chunks of dask that end inside of shards raise an `OptionError`.
    """
    if not variable.ndim or not all(variable.shape):
        return None
    borders = list(map(cut_at_multiples, place.starts, variable.shape, place.shards))
    if variable.chunks is None:
        is_small = variable.size <= prod(place.shards) and variable.nbytes <= _SMALL_NBYTES
        is_left = variable.dtype.kind in "OmM"  # of which xarray finds the units, where it sees all values
        return None if is_small or is_left else tuple(borders)
    ends = zip(*(map(set, map(accumulate, lengths)) for lengths in (variable.chunks, borders)), strict=True)
    within = [axis for axis, (of_chunks, of_shards) in enumerate(ends) if not of_chunks <= of_shards]
    if not within:
        return None
    if rechunk:
        return tuple(borders)
    axis = within[0]
    dim, length = variable.dims[axis], place.shards[axis]
    raise OptionError(
        f"chunks of dask end inside of shards of variable {name!r}: two tasks would write parts of one shard",
        tried=f"chunks of {_few(variable.chunks[axis])} along {dim!r}",
        found=f"shards of {length}, so {_few(borders[axis])} are whole ones",
        do=f"give rechunk=True, or chunk before, such as ds.chunk({{{dim!r}: {length}}}), or other shards",
    )


def cut_at_multiples(start: int, n: int, length: int) -> tuple[int, ...]:
    """Cut `n` elements from `start` on at the multiples of a length."""
    first = min(n, length - start % length)
    lengths = [first, *[length] * ((n - first) // length)]
    return tuple(lengths if sum(lengths) == n else [*lengths, n - sum(lengths)])


def _few(lengths: Sequence[int]) -> str:
    """Write the first lengths."""
    return ", ".join(map(str, lengths[:_SHOWN])) + (", ..." if len(lengths) > _SHOWN else "")
