"""How a store is opened: xarray's zarr backend with this package's arrays in it.

Metadata, groups, attributes and encodings are read by xarray's own `ZarrStore`. Every numeric variable whose CF
decoding is plain arithmetic then gets a `LazyArray` that decodes, masks and scales in one pass; index coordinates,
times, strings and everything else stay with xarray on the host.

References
----------
xarray, "How to add a new backend".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from xarray import Coordinates, Dataset, Variable, conventions
from xarray.backends import ZarrStore
from xarray.backends.common import _normalize_path
from xarray.core import indexing
from xarray.core.treenode import NodePath
from xarray.core.utils import close_on_error
from zarr.errors import UnknownCodecError
from zarr.storage import StorePath

from xarray_gpuzarr.backend.chunking import ShardVariable
from xarray_gpuzarr.backend.group_pattern import GroupPattern, is_pattern
from xarray_gpuzarr.backend.lazy_array import LazyArray, find_lazy_array
from xarray_gpuzarr.backend.metadata_ahead import Wanted, fetch_metadata, takes_long
from xarray_gpuzarr.backend.open_options import DecodeOptions, Place
from xarray_gpuzarr.backend.values_ahead import ValuesAhead, is_short
from xarray_gpuzarr.errors import OptionError, UnsupportedCodecError
from xarray_gpuzarr.fetch import run_on_loop
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS
from xarray_gpuzarr.stored.cf import parse_cast
from xarray_gpuzarr.stored.metadata import parse_array

_LARGE_NBYTES = 64 * 1024 * 1024
"""Decoded bytes from which it matters where a variable is decoded."""


def open_group(
    filename_or_obj: Any, *, group: str | None = None, consolidated: bool | None = None, **options: Any
) -> ZarrStore:
    """Open one group for reading, as xarray's zarr engine does.

    Parameters
    ----------
    filename_or_obj : path, URL, zarr store, or any other input of xarray's zarr engine
    group : str or None
    consolidated : bool or None
        None takes consolidated metadata if there are any.
    **options
        Others of `ZarrStore.open_group`.
    """

    def by_xarray(where: Any, **options: Any) -> dict[str, ZarrStore]:
        return {"/": ZarrStore.open_group(where, **options)}

    opened = _open(by_xarray, filename_or_obj, None, group=group, consolidated=consolidated, **options)
    return opened["/"]


def open_groups(filename_or_obj: Any, *, group: str | None = None, **options: Any) -> dict[str, ZarrStore]:
    """Open a group and all groups below it, by their paths from it; parameters as for `open_group`.

    With a pattern for `group`, such as ``"/*/sweep_0"``, the groups that match it are opened, and those above them.
    """
    if group and is_pattern(group):
        pattern = GroupPattern(group)
        stores = _open(ZarrStore.open_store, filename_or_obj, pattern.leads_to, group="/", **options)
        if pattern.given not in stores:
            return pattern.chosen(stores)
    parent = str(NodePath("/") / NodePath(group)) if group else "/"
    stores = _open(ZarrStore.open_store, filename_or_obj, lambda path: True, group=parent, **options)  # noqa: ARG005
    return {
        str(NodePath(path).relative_to(parent)) if group else str(NodePath(path)): store
        for path, store in stores.items()
    }


def _open(
    by_xarray: Callable[..., dict[str, ZarrStore]], where: Any, wanted: Wanted | None, **options: Any
) -> dict[str, ZarrStore]:
    """Let xarray open groups, of a store that has been asked for their metadata before if that takes it long."""
    where = _normalize_path(where)
    options |= {"mode": "r", "consolidate_on_close": False}
    with _naming_unknown_codecs(where):
        if not takes_long(where) or not options.get("cache_members", True):
            return by_xarray(where, **options)
        opened = _open_ahead(by_xarray, where, wanted, options)
        return by_xarray(where, **options) if opened is None else opened


def _open_ahead(
    by_xarray: Callable[..., dict[str, ZarrStore]], where: Any, wanted: Wanted | None, options: dict[str, Any]
) -> dict[str, ZarrStore] | None:
    """Ask for metadata, then let xarray open; None if either fails: without help, it does so with its own words."""
    asked = {name: options.get(name) for name in ("group", "consolidated", "zarr_format", "storage_options")}
    try:
        ahead, path = run_on_loop(str(where), partial(fetch_metadata, where, wanted=wanted, **asked))
        known = StorePath(ahead, path) if path or isinstance(where, StorePath) else ahead
        opened = by_xarray(known, **options | {"storage_options": None})
    except Exception:  # noqa: BLE001  # of any kind
        return None
    for each in opened.values():
        ahead.hand_over(each)
        each._close_store_on_close = ahead.itself is not where  # noqa: SLF001  # as if it had been given `where`
    return opened


def open_already(store: object) -> ZarrStore:
    """Return a group that the caller has opened, if it is one.

    Raises
    ------
    OptionError
    """
    if isinstance(store, ZarrStore):
        return store
    raise OptionError(
        "store= is not an open Zarr store",
        tried="reading store= in place of the path",
        found=f"an instance of {type(store).__module__}.{type(store).__qualname__}",
        do="give an xarray.backends.ZarrStore, or give the path, URL or zarr store as the first argument",
    )


def require_reading(mode: object) -> None:
    """Refuse to open a store in a mode that lets it be changed.

    Raises
    ------
    OptionError
    """
    if mode != "r":
        raise OptionError(
            'engine="gpuzarr" only reads',
            tried=f"mode={mode!r}",
            found='the one mode of this engine is "r"; others create, change or remove what is stored',
            do="leave mode out to read; write with Dataset.to_zarr",
        )


@contextmanager
def _naming_unknown_codecs(store: object) -> Iterator[None]:
    try:
        yield
    except UnknownCodecError as err:
        raise UnsupportedCodecError(
            f"an array of {store} is stored with a codec that is not installed",
            tried="the codecs of zarr-python and of the packages that register codecs with it",
            found=str(err),
            do=f"{_how_to_install(str(err))}, or leave the array's group out",
        ) from err


_BROUGHT_BY = {
    "imagecodecs_": "imagecodecs",
    "zfpy": "'numcodecs[zfpy]'",
    "pcodec": "'numcodecs[pcodec]'",
    "scale_offset": "'zarr>=3.2'",
    "cast_value": "'zarr>=3.2' cast-value-rs",
}
"""Part of the name of a codec -> what pip is to install."""


def _how_to_install(found: str) -> str:
    package = next((package for part, package in _BROUGHT_BY.items() if part in found), None)
    return "install the package that brings the codec" if package is None else f"pip install {package}"


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
        ahead, prepared, failure = ValuesAhead(is_slow=is_slow), {}, None
        for path, store in stores.items():
            try:
                prepared[path] = _prepare(store, options, dropped, place, ahead)
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
    decoded = _decoded_stand_in(name, variable, array.dtype, keywords)
    if decoded is None or decoded.dtype.kind not in NUMERIC_KINDS:
        return None
    attrs = variable.attrs if keywords["mask_and_scale"] else {"dtype": variable.attrs.get("dtype")}
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
