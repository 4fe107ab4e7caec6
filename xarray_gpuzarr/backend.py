"""``engine="gpuzarr"``: xarray's zarr backend with this package's arrays in it.

Metadata, groups, attributes and encodings are read by xarray's own `ZarrStore`. Every numeric variable whose CF
decoding is plain arithmetic then gets a `LazyArray` that decodes, masks and scales in one pass; index coordinates,
times, strings and everything else stay with xarray on the host.

References
----------
xarray, "How to add a new backend".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from xarray import Coordinates, Dataset, DataTree, Variable, conventions
from xarray.backends import BackendEntrypoint, ZarrStore
from xarray.backends.common import _normalize_path, datatree_from_dict_with_io_cleanup
from xarray.core import indexing
from xarray.core.treenode import NodePath
from xarray.core.utils import close_on_error
from zarr.errors import UnknownCodecError

from xarray_gpuzarr.advice import advise
from xarray_gpuzarr.cf import parse_cast
from xarray_gpuzarr.errors import UnsupportedCodecError
from xarray_gpuzarr.lazy_array import LazyArray, find_lazy_array
from xarray_gpuzarr.metadata import NUMERIC_KINDS
from xarray_gpuzarr.open_options import DecodeOptions, Place
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.tasks import ShardVariable

_LARGE_NBYTES = 64 * 1024 * 1024
"""Decoded bytes from which it matters where a variable is decoded."""


class GpuZarrBackendEntrypoint(BackendEntrypoint):
    """Open Zarr stores with one dask task per shard, decoded where the result lives."""

    description = "Open Zarr stores with one task per shard, decoded on the GPU or the host"
    supports_groups = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:  # noqa: ARG002
        """Return False: ``.zarr`` stays with xarray's own engine unless this one is named."""
        return False

    def open_dataset(  # noqa: PLR0913
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: Any = True,
        decode_times: Any = True,
        concat_characters: Any = True,
        decode_coords: Any = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: Any = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        consolidated: bool | None = None,
        storage_options: dict[str, Any] | None = None,
        zarr_format: int | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        cache_members: bool = True,
        device: str = "auto",
        storage: str = "auto",
    ) -> Dataset:
        """Open one group.

        Parameters
        ----------
        filename_or_obj : path, URL, zarr store, or any other input of xarray's zarr engine
        device : "auto", "cuda", "host" or "workers"
            Where chunks are decoded and where arrays live. "auto" is CUDA if this machine can use it, else host.
            "workers" is CUDA on dask's workers, from a client that need not have a GPU.
        storage : "auto", "posix" or "gds"
            How local files reach a GPU: through host memory ("posix"), or straight into device memory with GPUDirect
            Storage ("gds"). "auto" is "gds" wherever kvikio and the machine can do it and the host need not see the
            bytes. Other stores, and reads on the host, know one way only.
        mask_and_scale, decode_times, concat_characters, decode_coords, drop_variables, use_cftime, decode_timedelta
            As for `xarray.open_dataset`.
        group, consolidated, storage_options, zarr_format, use_zarr_fill_value_as_mask, cache_members
            As for `xarray.open_zarr`.

        Raises
        ------
        OptionError, DeviceUnavailableError
            `device` is unknown, or cannot be used here.
        MetadataError
            The stored metadata of an array is malformed.
        """
        place = Place.of(device, storage)
        with _naming_unknown_codecs(filename_or_obj):
            store = ZarrStore.open_group(
                _normalize_path(filename_or_obj),
                group=group,
                mode="r",
                consolidated=consolidated,
                consolidate_on_close=False,
                storage_options=storage_options,
                zarr_format=zarr_format,
                use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
                cache_members=cache_members,
            )
        options = DecodeOptions(
            mask_and_scale=mask_and_scale,
            decode_times=decode_times,
            concat_characters=concat_characters,
            decode_coords=decode_coords,
            use_cftime=use_cftime,
            decode_timedelta=decode_timedelta,
        )
        with close_on_error(store):
            return build_dataset(store, options, drop_variables, place)

    def open_datatree(self, filename_or_obj: Any, **kwargs: Any) -> DataTree:
        """Open all groups below a group as a tree; keywords as for `open_groups_as_dict`."""
        return datatree_from_dict_with_io_cleanup(self.open_groups_as_dict(filename_or_obj, **kwargs))

    def open_groups_as_dict(  # noqa: PLR0913
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        consolidated: bool | None = None,
        storage_options: dict[str, Any] | None = None,
        zarr_format: int | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        device: str = "auto",
        storage: str = "auto",
        **decoding: Any,
    ) -> dict[str, Dataset]:
        """Open all groups below a group, by path; keywords, also those of `DecodeOptions`, as for `open_dataset`."""
        place, options = Place.of(device, storage), DecodeOptions(**decoding)
        parent = str(NodePath("/") / NodePath(group)) if group else "/"
        with _naming_unknown_codecs(filename_or_obj):
            stores = ZarrStore.open_store(
                _normalize_path(filename_or_obj),
                group=parent,
                mode="r",
                consolidated=consolidated,
                consolidate_on_close=False,
                storage_options=storage_options,
                zarr_format=zarr_format,
                use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
            )
        datasets = {}
        for path, store in stores.items():
            name = str(NodePath(path).relative_to(parent)) if group else str(NodePath(path))
            with close_on_error(store):
                datasets[name] = build_dataset(store, options, drop_variables, place)
        return datasets


@contextmanager
def _naming_unknown_codecs(store: object) -> Iterator[None]:
    try:
        yield
    except UnknownCodecError as err:
        raise UnsupportedCodecError(
            f"an array of {store} is stored with a codec that is not installed",
            tried="the codecs of zarr-python and of the packages that register codecs with it",
            found=str(err),
            do="install the package that brings the codec, or leave the array's group out",
        ) from err


def build_dataset(
    store: ZarrStore,
    options: DecodeOptions,
    drop_variables: str | Iterable[str] | None,
    place: Place,
) -> Dataset:
    """Turn an open group into a Dataset of lazy variables.

    Parameters
    ----------
    store : xarray.backends.ZarrStore
    options : DecodeOptions
    drop_variables : str or iterable of str or None
    place : Place
    """
    stored, attrs = store.load()
    dropped = {drop_variables} if isinstance(drop_variables, str) else set(drop_variables or ())
    prepared = dict(stored)
    for variable in prepared.values():
        if variable.encoding.get("shards") is not None:
            variable.encoding["preferred_chunks"] = dict(zip(variable.dims, variable.encoding["shards"], strict=True))
    for name in prepared.keys() - dropped - _time_bounds(stored):
        ours = engine_variable(name, prepared[name], options, place)
        if ours is not None:
            prepared[name] = ours
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
    lazy = LazyArray(stored_array(array, cast, place.storage), here)
    _advise_of_host_decoding(name, lazy)
    data = indexing.LazilyIndexedArray(lazy)
    return Variable(decoded.dims, data, decoded.attrs, decoded.encoding, fastpath=True)


def _advise_of_host_decoding(name: Hashable, lazy: LazyArray) -> None:
    """Say so if a large variable that goes to the GPU cannot be decoded there."""
    if lazy.device != "cuda" or lazy.size * lazy.dtype.itemsize < _LARGE_NBYTES or lazy.route.where == "cuda":
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
    return {
        v.attrs["bounds"]
        for v in variables.values()
        if "since" in str(v.attrs.get("units", "")) and "bounds" in v.attrs
    }


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
