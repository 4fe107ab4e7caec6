"""Builds Datasets from open groups. Their variables are xarray's, and numeric ones hold arrays of this package.

xarray's own `ZarrStore` reads metadata, attributes and encodings, and xarray decodes the variables lazily. Each numeric
variable whose CF decoding is plain arithmetic then gets a `LazyArray` that decodes, masks and scales in one pass. All
others, such as index coordinates, times and strings, are decoded by xarray on the host.

References
----------
xarray, "How to add a new backend".
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, MutableMapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

from xarray import Coordinates, Dataset, Variable, conventions
from xarray.backends import ZarrStore
from xarray.core import indexing
from xarray.core.utils import close_on_error

from xarray_gpuzarr.backend.caching_store import takes_long
from xarray_gpuzarr.backend.checked_array import CheckedArray
from xarray_gpuzarr.backend.groups import closing_function
from xarray_gpuzarr.backend.lazy_array import LazyArray, find_wrapped
from xarray_gpuzarr.backend.open_errors import explaining_misfits
from xarray_gpuzarr.backend.open_options import DecodeOptions, Place, applies_to
from xarray_gpuzarr.backend.shard_variable import ShardVariable
from xarray_gpuzarr.backend.values_ahead import ValuesAhead, is_short
from xarray_gpuzarr.frames.zarr_codecs import checked_metadata
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS
from xarray_gpuzarr.stored.cf import parse_cast
from xarray_gpuzarr.stored.metadata import parse_metadata

_LARGE_NBYTES = 64 * 1024 * 1024
"""Smallest size, in decoded bytes, of a variable for which the user is advised that the GPU does not decode it."""
_TEXT_OR_TIME_KEYS = {"_Encoding", "units"}
"""Keys of the encoding of variables that xarray decodes to text or times.

The dtype of a decoded variable does not always tell: with an attribute ``dtype="bool"``, even times become bool.
"""


def build_datasets(
    stores: Mapping[str, ZarrStore], options: DecodeOptions, drop_variables: str | Iterable[str] | None, place: Place
) -> dict[str, Dataset]:
    """Turn open groups into Datasets of lazy variables.

    Parameters
    ----------
    stores : mapping of str to ZarrStore
        Path -> group, all of one store. They are closed if an error is raised.
    options : DecodeOptions
        How values are decoded.
    drop_variables : str or iterable of str, optional
        Names of variables that are left out of every group.
    place : Place
        Device on which values are decoded, and how their bytes get there.

    Returns
    -------
    dict of str to Dataset
        Path -> dataset.

    Raises
    ------
    MetadataError
        The stored metadata of an array is malformed.
    NoGroupError
        The arrays of a group form no dataset.
    """
    with ExitStack() as exit_stack:
        for store in stores.values():
            exit_stack.enter_context(close_on_error(store))
        if isinstance(drop_variables, str):
            drop_variables = [drop_variables]
        dropped = set() if drop_variables is None else set(drop_variables)
        zarr_store = next(iter(stores.values())).zarr_group.store
        ahead = exit_stack.enter_context(ValuesAhead(zarr_store)) if takes_long(zarr_store) else None
        prepared: dict[str, tuple[dict[Hashable, Variable], MutableMapping[Any, Any]]] = {}
        failure = None
        for path, store in stores.items():
            try:
                with explaining_misfits(store):
                    prepared[path] = _prepare(store, options, dropped, ahead, place)
                if ahead is not None:
                    # The requests for one group of a tree are answered while the next groups are prepared. In a single
                    # group, requests for indexes can wait until xarray reads one: with `create_default_indexes=False`,
                    # it reads none.
                    ahead.request_added(indexes_can_wait=len(stores) == 1)
            except Exception as err:  # noqa: BLE001
                # As in xarray, an error in decoding an earlier group is raised before this one.
                failure = err
                break
        datasets = {}
        for path, (variables, attrs) in prepared.items():
            datasets[path] = _decode(stores[path], variables, attrs, options, dropped, place)
        if failure is not None:
            raise failure
        return datasets


def _prepare(
    store: ZarrStore, options: DecodeOptions, dropped: set[str], ahead: ValuesAhead | None, place: Place
) -> tuple[dict[Hashable, Variable], MutableMapping[Any, Any]]:
    """Return the undecoded variables of a group, and its attributes.

    Numeric variables hold a `LazyArray` on the host. For a slow store, variables whose values xarray will read are
    added to `ahead`; it is None for other stores.
    """
    try:
        stored, attrs = store.load()
    except OverflowError:
        # An array is too long for xarray. `parse_metadata` raises an error that names the array.
        for _, array in store.zarr_group.arrays():
            parse_metadata(array.metadata, array.path)
        raise
    # xarray gives the bounds of time coordinates the units of the coordinate, so they are times as well.
    bounds_names = [variable.attrs.get("bounds") for variable in stored.values() if _has_time_units(variable)]
    time_bounds = {name for name in bounds_names if isinstance(name, str)}
    for name, variable in stored.items():
        shards = variable.encoding.get("shards")
        if shards is not None:
            variable.encoding["preferred_chunks"] = dict(zip(variable.dims, shards, strict=True))
        if name in dropped:
            continue
        data: Any = variable._data  # noqa: SLF001  # `data` would read the values
        array = data.array.get_array()
        is_numeric = array.dtype.kind in NUMERIC_KINDS
        if is_numeric:
            data.array = LazyArray(stored_array(array, storage=place.storage), "host")
        elif checked_metadata(array.metadata) is not array.metadata:  # it has codecs whose frames are checked
            data.array = CheckedArray(array)  # type: ignore[no-untyped-call]  # xarray has not annotated it
        # An empty array has no chunks to request. A scalar that is no number is neither an index nor a time.
        if ahead is None or not variable.size or not (variable.dims or is_numeric):
            continue
        is_short_index = variable.dims == (name,) and is_short(array)
        has_times = name in time_bounds or _has_time_units(variable)
        if is_short_index or (has_times and applies_to(name, options.decode_times)):
            data.array = ahead.add(data.array, array, is_short_index=is_short_index)
    return dict(stored), attrs


def _decode(
    store: ZarrStore,
    stored: dict[Hashable, Variable],
    attrs: MutableMapping[Any, Any],
    options: DecodeOptions,
    dropped: set[str],
    place: Place,
) -> Dataset:
    """Return the Dataset of a group, from what `_prepare` has returned for it.

    xarray decodes all variables. The data of those that this package can decode are then replaced.
    """
    # The attributes are copied because xarray may remove some from the variables that it is given.
    stored_attrs = {name: dict(variable.attrs) for name, variable in stored.items()}
    variables, attrs, coord_names = conventions.decode_cf_variables(
        stored, attrs, drop_variables=dropped, **options.xarray_keywords
    )
    data_vars: dict[Hashable, Variable] = {}
    coords: dict[Hashable, Variable] = {}
    for name, variable in variables.items():
        is_coord = name in coord_names or variable.dims == (name,)
        lazy = _find_replacement(name, stored[name], stored_attrs[name], variable, options, place)
        if lazy is not None:
            if not is_coord and options.wants_float32(name):
                lazy = lazy.in_float32()
            if is_coord and not variable.dims:
                # xarray passes scalar coordinates to NumPy, for example in arithmetic with groups (`groupby`).
                lazy = LazyArray(lazy.stored, "host")
            variable = _replace_data(variable, lazy)  # noqa: PLW2901
        if is_coord:
            coords[name] = variable
        else:
            data_vars[name] = variable
    with explaining_misfits(store):
        dataset = Dataset(data_vars, coords=Coordinates(coords, indexes={}), attrs=attrs)
    dataset.set_close(closing_function(store))
    dataset.encoding = store.get_encoding()
    return dataset


def _replace_data(variable: Variable, lazy: LazyArray) -> ShardVariable:
    """Return a `ShardVariable` that reads a lazy array, with the dimensions, attributes and encoding of a variable."""
    data = indexing.LazilyIndexedArray(lazy)
    # xarray warns of each variable in which a dimension occurs twice. It has warned of this one already.
    repeats_dims = len({*variable.dims}) < variable.ndim
    with warnings.catch_warnings(action="ignore", category=UserWarning) if repeats_dims else nullcontext():
        return ShardVariable(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)


def _find_replacement(
    name: Hashable,
    stored: Variable,
    attrs: Mapping[Any, Any],
    decoded: Variable,
    options: DecodeOptions,
    place: Place,
) -> LazyArray | None:
    """Return the array that replaces the data of a decoded variable. None if xarray has to decode it.

    Parameters
    ----------
    name : hashable
        Name of the variable.
    stored : Variable
        The variable that `_prepare` has returned.
    attrs : mapping
        Its stored attributes.
    decoded : Variable
        The variable that xarray has decoded.
    options, place
        As for `build_datasets`.
    """
    lazy = find_wrapped(stored._data, LazyArray)  # noqa: SLF001  # `data` would read the values
    is_index = stored.dims == (name,)
    if lazy is None or decoded.dtype.kind not in NUMERIC_KINDS or is_index:
        return None
    if _TEXT_OR_TIME_KEYS & decoded.encoding.keys():
        return None
    if not applies_to(name, options.mask_and_scale):
        attrs = {"dtype": attrs.get("dtype")}  # the one attribute that xarray applies nevertheless
    cast = parse_cast(attrs, stored=lazy.dtype, decoded=decoded.dtype)
    if cast is None:
        return None
    # xarray makes no task of a scalar, so no worker can read it.
    device = "host" if place.device == "workers" and not lazy.ndim else place.device
    lazy = LazyArray(replace(lazy.stored, cast=cast), device, or_host=place.or_host)
    is_large = lazy.size * lazy.dtype.itemsize >= _LARGE_NBYTES
    # What the GPUs of workers cannot decode is not known here.
    if lazy.device not in ("host", "workers") and is_large and lazy.route.where != "cuda":
        advise(
            lazy.route.why,
            f"'{name}' is decoded on the host, then copied to the GPU",
            found=lazy.route.why,
            do='nothing, if that is fast enough: values are the same. "Codecs" in the documentation says what the GPU '
            "decodes; ds.gpuzarr.explain() shows every variable",
        )
    return lazy


def _has_time_units(variable: Variable) -> bool:
    """Return whether an undecoded variable has units such as "days since 2000-01-01"."""
    return "since" in str(variable.attrs.get("units", ""))
