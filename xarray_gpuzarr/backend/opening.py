"""How a store is opened: xarray's zarr backend with this package's arrays in it.

Metadata, groups, attributes and encodings are read by xarray's own `ZarrStore`. Every numeric variable whose CF
decoding is plain arithmetic then gets a `LazyArray` that decodes, masks and scales in one pass; index coordinates,
times, strings and everything else stay with xarray on the host.

References
----------
xarray, "How to add a new backend".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, MutableMapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from xarray import Coordinates, Dataset, Variable, conventions
from xarray.backends import ZarrStore
from xarray.core import indexing
from xarray.core.utils import close_on_error

from xarray_gpuzarr.backend.chunking import ShardVariable
from xarray_gpuzarr.backend.lazy_array import LazyArray, find_lazy_array
from xarray_gpuzarr.backend.metadata_ahead import takes_long
from xarray_gpuzarr.backend.open_options import DecodeOptions, Place
from xarray_gpuzarr.backend.values_ahead import ValuesAhead, is_short
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS
from xarray_gpuzarr.stored.cf import parse_cast
from xarray_gpuzarr.stored.metadata import parse_array

_PACKING = frozenset({"_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned"})
"""Attributes of which xarray may say that they do not fit the values, or each other."""
_LARGE_NBYTES = 64 * 1024 * 1024
"""Decoded bytes from which it matters where a variable is decoded."""


def build_datasets[Path](
    stores: Mapping[Path, ZarrStore],
    options: DecodeOptions,
    drop_variables: str | Iterable[str] | None,
    place: Place,
) -> dict[Path, Dataset]:
    """Turn open groups into Datasets of lazy variables.

    Parameters
    ----------
    stores : mapping to xarray.backends.ZarrStore
    options : DecodeOptions
    drop_variables : str or iterable of str or None
    place : Place

    Raises
    ------
    MetadataError
        The stored metadata of an array are malformed.
    """
    with ExitStack() as closing:
        for store in stores.values():
            closing.enter_context(close_on_error(store))
        if isinstance(drop_variables, str):
            drop_variables = [drop_variables]
        dropped = set([] if drop_variables is None else drop_variables)  # an array may have no truth
        is_slow = any(takes_long(store.zarr_group.store) for store in stores.values())
        ahead, prepared, failure = closing.enter_context(ValuesAhead(is_slow=is_slow)), {}, None
        for path, store in stores.items():
            try:
                prepared[path] = _prepare(store, options, dropped, place, ahead)
                if options.decode_times:
                    ahead.begin()
            except Exception as err:  # noqa: BLE001  # an earlier group's is raised first, as by xarray
                failure = err
                break
        datasets = {path: _decode(stores[path], *found, options, dropped) for path, found in prepared.items()}
        if failure is not None:
            raise failure
        ahead.end_decoding()
        return datasets


def _prepare(
    store: ZarrStore, options: DecodeOptions, dropped: set[str], place: Place, ahead: ValuesAhead
) -> tuple[dict[Hashable, Variable], MutableMapping[Any, Any]]:
    """Return the variables of a group, those of this engine decoded, and its attributes."""
    try:
        stored, attrs = store.load()
    except OverflowError:  # of xarray's arithmetic: the array that is so long is named here
        for _, array in store.zarr_group.arrays():
            parse_array(array)
        raise
    prepared = dict(stored)
    for variable in prepared.values():
        if variable.encoding.get("shards") is not None:
            variable.encoding["preferred_chunks"] = dict(zip(variable.dims, variable.encoding["shards"], strict=True))
    bounds = _time_bounds(stored)
    for name in [name for name in prepared if name not in dropped]:
        variable = prepared[name]
        ours = None if name in bounds else engine_variable(name, variable, options, place)
        if ours is not None:
            prepared[name] = ours
        else:
            _let_wait(variable, name, ahead, is_time=name in bounds or _has_time_units(variable))
    return prepared, attrs


def _let_wait(variable: Variable, name: Hashable, ahead: ValuesAhead, *, is_time: bool) -> None:
    """Let what xarray reads of a variable while it opens be read together with that of others."""
    lazily: Any = variable._data  # noqa: SLF001
    if not variable.size or (not variable.dims and variable.dtype.kind not in NUMERIC_KINDS):
        return
    if variable.dims == (name,) and is_short(lazily.array):
        lazily.array = ahead.index(lazily.array)
    elif is_time:
        lazily.array = ahead.ends(lazily.array)


def _decode(
    store: ZarrStore,
    prepared: dict[Hashable, Variable],
    attrs: MutableMapping[Any, Any],
    options: DecodeOptions,
    dropped: set[str],
) -> Dataset:
    """Let xarray decode a group's other variables and tell coordinates from data."""
    # Variables of this engine are decoded already and pass through unchanged.
    variables, attrs, coord_names = conventions.decode_cf_variables(
        prepared,
        attrs,
        mask_and_scale=options.mask_and_scale,
        decode_times=options.decode_times,
        concat_characters=options.concat_characters,
        decode_coords=options.decode_coords,
        drop_variables=dropped,
        use_cftime=options.use_cftime,
        decode_timedelta=options.decode_timedelta,
    )
    data_vars: dict[Hashable, Variable] = {}
    coords: dict[Hashable, Variable] = {}
    for name, variable in variables.items():
        is_coord = name in coord_names or variable.dims == (name,)
        if is_coord and not variable.dims:
            variable = _on_host(variable)  # noqa: PLW2901
        (coords if is_coord else data_vars)[name] = _self_chunking(variable)
    dataset = Dataset(data_vars, coords=Coordinates(coords, indexes={}), attrs=attrs)
    dataset.set_close(store.close)
    dataset.encoding = store.get_encoding()
    return dataset


def engine_variable(name: Hashable, variable: Variable, options: DecodeOptions, place: Place) -> Variable | None:
    """Return the decoded, lazy form of a stored variable, or None if xarray should decode it.

    Parameters
    ----------
    name : hashable
    variable : xarray.Variable
        As `ZarrStore` opened it, not decoded.
    options : DecodeOptions
    place : Place
    """
    wrapped: Any = variable._data  # noqa: SLF001  # ZarrStore wraps the zarr array twice
    array = wrapped.array.get_array()
    if array.dtype.kind not in NUMERIC_KINDS or variable.dims == (name,):
        return None
    keywords = options.of_variable(name)
    attrs = variable.attrs if keywords["mask_and_scale"] else {"dtype": variable.attrs.get("dtype")}
    if _is_for_xarray(attrs, variable, array.dtype, keywords):
        return None
    decoded = _decoded_stand_in(name, variable, array.dtype, keywords)
    if decoded is None or decoded.dtype.kind not in NUMERIC_KINDS:
        return None
    cast = parse_cast(attrs, stored=array.dtype, decoded=decoded.dtype)
    if cast is None:
        return None
    here = "host" if place.device == "workers" and not array.ndim else place.device  # xarray makes no task of a scalar
    lazy = LazyArray(stored_array(array, cast, place.storage), here, or_host=place.or_host)
    _advise_of_host_decoding(name, lazy)
    data = indexing.LazilyIndexedArray(lazy)
    return Variable(decoded.dims, data, decoded.attrs, decoded.encoding, fastpath=True)


def _advise_of_host_decoding(name: Hashable, lazy: LazyArray) -> None:
    """Say so if a large variable that goes to the GPU cannot be decoded there."""
    if (
        lazy.device in ("host", "workers")
        or lazy.size * lazy.dtype.itemsize < _LARGE_NBYTES
        or lazy.route.where == "cuda"
    ):
        return
    advise(
        lazy.route.why,
        f"'{name}' is decoded on the host, then copied to the GPU",
        found=lazy.route.why,
        do="nothing, if that is fast enough: values are the same. docs/codecs.md names what the GPU decodes; "
        "ds.gpuzarr.explain() shows every variable",
    )


def _is_for_xarray(
    attrs: Mapping[Any, Any], variable: Variable, stored: np.dtype[Any], keywords: dict[str, Any]
) -> bool:
    """Return whether only xarray can decode a variable: a stand-in would give its warnings twice, or wrong ones."""
    if keywords["decode_times"] and isinstance(variable.attrs.get("units"), str) and _has_time_units(variable):
        return True
    if attrs.keys().isdisjoint(_PACKING):
        return False
    try:
        return parse_cast(attrs, stored=stored, decoded=np.result_type(stored, np.float32)) is None
    except (TypeError, ValueError):
        return True


def _decoded_stand_in(
    name: Hashable, variable: Variable, dtype: np.dtype[Any], keywords: dict[str, Any]
) -> Variable | None:
    """Let xarray decode a variable of at most one element, to learn its dtype, attributes and encoding."""
    one = np.zeros(tuple(min(n, 1) for n in variable.shape), dtype)
    stand_in = Variable(variable.dims, one, dict(variable.attrs), dict(variable.encoding))
    try:
        return conventions.decode_cf_variable(name, stand_in, **keywords)
    except Exception:  # noqa: BLE001  # the same error comes again, with its context, when xarray decodes the variable
        return None


def _time_bounds(variables: Mapping[Any, Variable]) -> set[Hashable]:
    """Name the bounds of time coordinates: they take the coordinate's units, which only the whole group shows."""
    return {v.attrs["bounds"] for v in variables.values() if _has_time_units(v) and "bounds" in v.attrs}


def _has_time_units(variable: Variable) -> bool:
    return "since" in str(variable.attrs.get("units", ""))


def _on_host(variable: Variable) -> Variable:
    """Let the host read a lazy variable: xarray's arithmetic of groups gives coordinates of one value to NumPy."""
    lazy = find_lazy_array(variable._data)  # noqa: SLF001
    if lazy is None:
        return variable
    data = indexing.LazilyIndexedArray(LazyArray(lazy.stored, "host"))
    return Variable(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)


def _self_chunking(variable: Variable) -> Variable:
    if find_lazy_array(variable._data) is None:  # noqa: SLF001
        return variable
    return ShardVariable(
        variable.dims,
        variable._data,  # noqa: SLF001
        variable.attrs,
        variable.encoding,
        fastpath=True,
    )
