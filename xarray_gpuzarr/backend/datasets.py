"""Build Datasets from open groups: xarray's variables, with this package's arrays in the numeric ones.

xarray's own `ZarrStore` reads metadata, attributes and encodings, and xarray decodes them, lazily. Each numeric
variable whose CF decoding is plain arithmetic then gets a `LazyArray` that decodes, masks and scales in one pass. Index
coordinates, times, strings and everything else stay with xarray on the host.

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
from xarray_gpuzarr.backend.lazy_array import LazyArray, find_below
from xarray_gpuzarr.backend.open_errors import naming_arrays_apart
from xarray_gpuzarr.backend.open_options import DecodeOptions, Place, applies_to
from xarray_gpuzarr.backend.shard_variable import ShardVariable
from xarray_gpuzarr.backend.values_ahead import ValuesAhead, is_short
from xarray_gpuzarr.frames.zarr_codecs import checked_metadata
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS
from xarray_gpuzarr.stored.cf import parse_cast
from xarray_gpuzarr.stored.metadata import parse_array

_LARGE_NBYTES = 64 * 1024 * 1024
"""Decoded bytes from which it matters where a variable is decoded."""
_AS_TEXT_OR_TIME = {"_Encoding", "units"}
"""Encoding that xarray sets on variables that it decodes to text or times, though their dtype may be bool."""


def build_datasets[Path](
    stores: Mapping[Path, ZarrStore], options: DecodeOptions, drop_variables: str | Iterable[str] | None, place: Place
) -> dict[Path, Dataset]:
    """Turn open groups into Datasets of lazy variables; malformed metadata of an array raise a `MetadataError`."""
    with ExitStack() as closing:
        for store in stores.values():
            closing.enter_context(close_on_error(store))
        if isinstance(drop_variables, str):
            drop_variables = [drop_variables]
        dropped = set([] if drop_variables is None else drop_variables)  # an array may have no truth
        where = next(iter(stores.values())).zarr_group.store
        ahead = closing.enter_context(ValuesAhead(where)) if takes_long(where) else None
        prepared, failure = {}, None
        for path, store in stores.items():
            try:
                with naming_arrays_apart(store):
                    prepared[path] = _prepare(store, options, dropped, ahead, place)
                if ahead is not None:
                    ahead.begin(is_tree=len(stores) > 1)
            except Exception as err:  # noqa: BLE001  # an earlier group's is raised first, as by xarray
                failure = err
                break
        datasets = {path: _decode(stores[path], *parts, options, dropped, place) for path, parts in prepared.items()}
        if failure is not None:
            raise failure
        return datasets


def _prepare(
    store: ZarrStore, options: DecodeOptions, dropped: set[str], ahead: ValuesAhead | None, place: Place
) -> tuple[dict[Hashable, Variable], MutableMapping[Any, Any]]:
    """Return the undecoded variables of a group and its attributes; numeric variables hold a `LazyArray`."""
    try:
        stored, attrs = store.load()
    except OverflowError:  # of xarray's arithmetic: the array that is so long is named here
        for _, array in store.zarr_group.arrays():
            parse_array(array)
        raise
    # The bounds of time coordinates have the units of the coordinate.
    named = (v.attrs.get("bounds") for v in stored.values() if _has_time_units(v))
    bounds = {name for name in named if isinstance(name, str)}
    for name, variable in stored.items():
        if variable.encoding.get("shards") is not None:
            variable.encoding["preferred_chunks"] = dict(zip(variable.dims, variable.encoding["shards"], strict=True))
        if name not in dropped:
            lazily: Any = variable._data  # noqa: SLF001
            array = lazily.array.get_array()
            if array.dtype.kind in NUMERIC_KINDS:
                lazily.array = LazyArray(stored_array(array, storage=place.storage), "host")
            elif checked_metadata(array.metadata) is not array.metadata:
                lazily.array = CheckedArray(array)  # type: ignore[no-untyped-call]  # as xarray's is
            if ahead is None or not variable.size or not (variable.dims or array.dtype.kind in NUMERIC_KINDS):
                continue
            is_index = variable.dims == (name,) and is_short(array)
            if is_index or ((name in bounds or _has_time_units(variable)) and applies_to(name, options.decode_times)):
                lazily.array = ahead.add(lazily.array, array, is_index=is_index)
    return dict(stored), attrs


def _decode(
    store: ZarrStore,
    stored: dict[Hashable, Variable],
    attrs: MutableMapping[Any, Any],
    options: DecodeOptions,
    dropped: set[str],
    place: Place,
) -> Dataset:
    """Decode a group by xarray, then replace lazy arrays that this engine can decode."""
    as_stored = {name: dict(variable.attrs) for name, variable in stored.items()}  # xarray may take some away
    variables, attrs, coord_names = conventions.decode_cf_variables(
        stored, attrs, drop_variables=dropped, **options.xarray_keywords
    )
    data_vars: dict[Hashable, Variable] = {}
    coords: dict[Hashable, Variable] = {}
    for name, variable in variables.items():
        is_coord = name in coord_names or variable.dims == (name,)
        lazy = _engine_array(name, stored[name], as_stored[name], variable, options, place)
        if lazy is not None:
            if options.wants_float32(name) and not is_coord:
                lazy = lazy.in_float32()
            # xarray's arithmetic of groups gives coordinates of one value to NumPy.
            lazy = LazyArray(lazy.stored, "host") if is_coord and not variable.dims else lazy
            data, has_twins = indexing.LazilyIndexedArray(lazy), len({*variable.dims}) < variable.ndim
            # Of dimensions that occur twice, xarray has warned already.
            with warnings.catch_warnings(action="ignore", category=UserWarning) if has_twins else nullcontext():
                variable = ShardVariable(variable.dims, data, variable.attrs, variable.encoding, fastpath=True)  # noqa: PLW2901
        (coords if is_coord else data_vars)[name] = variable
    with naming_arrays_apart(store):
        dataset = Dataset(data_vars, coords=Coordinates(coords, indexes={}), attrs=attrs)
    dataset.set_close(closing_function(store))
    dataset.encoding = store.get_encoding()
    return dataset


def _engine_array(
    name: Hashable,
    variable: Variable,
    attrs: Mapping[Any, Any],
    decoded: Variable,
    options: DecodeOptions,
    place: Place,
) -> LazyArray | None:
    """Return the array that replaces a decoded variable's data; None if xarray has to decode it.

    `variable` is as `ZarrStore` opened it, `attrs` are its attributes as they are stored, and `decoded` is what xarray
    makes of it.
    """
    lazy = find_below(variable._data, LazyArray)  # noqa: SLF001
    if lazy is None or decoded.dtype.kind not in NUMERIC_KINDS or variable.dims == (name,):
        return None
    if _AS_TEXT_OR_TIME & decoded.encoding.keys():
        return None
    if not applies_to(name, options.mask_and_scale):
        attrs = {"dtype": attrs.get("dtype")}
    cast = parse_cast(attrs, stored=lazy.dtype, decoded=decoded.dtype)
    if cast is None:
        return None
    here = "host" if place.device == "workers" and not lazy.ndim else place.device  # xarray makes no task of a scalar
    lazy = LazyArray(replace(lazy.stored, cast=cast), here, or_host=place.or_host)
    is_large = lazy.size * lazy.dtype.itemsize >= _LARGE_NBYTES
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
    return "since" in str(variable.attrs.get("units", ""))
