"""`GpuZarrBackendEntrypoint`, the class behind ``engine="gpuzarr"``, with the keywords of the engine.

xarray imports this module, like that of every installed engine, whenever something is opened without ``engine=``.
Therefore it imports only what `import xarray` imports too. The other modules of this folder are imported when a store
is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import currentframe, signature
from typing import Any

from xarray import Dataset, DataTree
from xarray.backends import BackendEntrypoint, ZarrStore
from xarray.backends.common import datatree_from_dict_with_io_cleanup

# This registers `.gpuzarr`, also in a process that only unpickles arrays.
from xarray_gpuzarr.backend import registration as _registration  # noqa: F401


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters, without `self` and ``**kwargs``."""
    parameters = signature(function).parameters.values()
    return tuple([param.name for param in parameters if param.name != "self" and param.kind is not param.VAR_KEYWORD])


class GpuZarrBackendEntrypoint(BackendEntrypoint):
    """Open Zarr stores with one dask task per shard, decoded where the result lives."""

    description = "Open Zarr stores with one task per shard, decoded on the GPU or the host"
    supports_groups = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:  # noqa: ARG002
        """Return False, so that xarray opens ``.zarr`` with its own engine unless this one is named."""
        return False

    def open_dataset(  # noqa: PLR0913  # as xarray's zarr engine
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
        mode: str = "r",
        consolidated: bool | None = None,
        storage_options: dict[str, Any] | None = None,
        zarr_format: int | None = None,
        store: ZarrStore | None = None,
        engine: str | None = None,  # noqa: ARG002
        use_zarr_fill_value_as_mask: bool | None = None,
        cache_members: bool = True,
        float_dtype: Any = None,
        device: str = "auto",
        storage: str = "auto",
        **unknown: Any,
    ) -> Dataset:
        """Open one group.

        Parameters
        ----------
        filename_or_obj : path, URL, zarr store, or any other input of xarray's zarr engine
        device : "auto", "cuda", "cuda:1" (any number), "host" or "workers"
            Where chunks are decoded and where arrays are stored. "auto" uses the GPU if this machine has a usable one,
            and the host otherwise. "cuda" is the current GPU of the thread that reads. "cuda:1" is that GPU for all
            threads, counted among those that the process sees; on dask-cuda, each worker's own GPU is number 0.
            "workers" uses the GPUs of dask's workers, from a client that may have none.
        storage : "auto", "posix" or "gds"
            How local files reach a GPU: through host memory ("posix"), or straight into device memory with GPUDirect
            Storage ("gds"). "auto" is "posix". It has no effect on other stores and on reads to the host.
        float_dtype : "float32", or mapping of variable name to "float32", optional
            Dtype of data variables that xarray gives as float64, such as integers with a scale factor of float64. They
            are masked and scaled in float64, and rounded to float32 once. Coordinates, and variables that xarray itself
            decodes, are not changed.
        mask_and_scale, decode_times, concat_characters, decode_coords, drop_variables, use_cftime, decode_timedelta
            As for `xarray.open_dataset`.
        group, consolidated, storage_options, zarr_format, use_zarr_fill_value_as_mask, cache_members
            As for `xarray.open_zarr`.
        mode : "r"
            The engine only reads; other modes raise an error.
        store : xarray.backends.ZarrStore, optional
            A group that is already open, to read instead of `filename_or_obj`.
        engine : str, optional
            Has no effect, as in xarray's zarr engine.

        Raises
        ------
        OptionError, DeviceUnavailableError
            `device`, `storage` or `float_dtype` is unknown or cannot be used here, `mode` is not "r", or `store` is not
            a store.
        KeywordError
            A keyword is unknown.
        NoGroupError
            There is no such group, or no Zarr store.
        MetadataError
            The stored metadata of an array is malformed.
        """
        from xarray_gpuzarr.backend import datasets, groups  # noqa: PLC0415  # imports zarr
        from xarray_gpuzarr.backend.open_options import (  # noqa: PLC0415
            DecodeOptions,
            Place,
            advise_of_unknown_chunks,
            advise_of_unknown_variables,
            require_known,
        )

        require_known(unknown, self.open_dataset_parameters)
        place = Place.of(device, storage)
        groups.require_reading(mode, store)
        if store is None:
            store = groups.open_group(
                filename_or_obj,
                group=group,
                consolidated=consolidated,
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
            float_dtype=float_dtype,
        )
        dataset = datasets.build_datasets({"/": store}, options, drop_variables, place)["/"]
        frame = currentframe()  # None if the interpreter has no frames
        caller = None if frame is None else frame.f_back
        advise_of_unknown_chunks(caller, dataset)
        advise_of_unknown_variables(float_dtype, dataset)
        return dataset

    open_dataset_parameters = parameter_names(open_dataset)

    def open_datatree(self, filename_or_obj: Any, **kwargs: Any) -> DataTree:
        """Open a group and all groups below it, or the groups that match a pattern, as a tree.

        Parameters
        ----------
        filename_or_obj : path, URL, zarr store, or any other input of xarray's zarr engine
        **kwargs
            Keywords of `open_groups_as_dict`.
        """
        return datatree_from_dict_with_io_cleanup(self.open_groups_as_dict(filename_or_obj, **kwargs))

    def open_groups_as_dict(  # noqa: PLR0913  # as xarray's zarr engine
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        mode: str = "r",
        consolidated: bool | None = None,
        storage_options: dict[str, Any] | None = None,
        zarr_format: int | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        device: str = "auto",
        storage: str = "auto",
        **decoding: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, or the groups that match a pattern.

        Parameters
        ----------
        filename_or_obj : path, URL, zarr store, or any other input of xarray's zarr engine
        group : str, optional
            Path of the first group, or a pattern such as ``"/*/sweep_0"``, as in ``xarray.DataTree.match``. With a
            pattern, the matching groups and their parents are opened.
        drop_variables, mode, consolidated, storage_options, zarr_format, use_zarr_fill_value_as_mask, device, storage
            As for `open_dataset`.
        **decoding
            The keywords of `open_dataset` that say how values are decoded, such as `mask_and_scale`.

        Returns
        -------
        dict of str to Dataset
            The datasets by their paths from the first group. With a pattern, by their paths from the root.

        Raises
        ------
        OptionError, DeviceUnavailableError, KeywordError, NoGroupError, MetadataError
            As for `open_dataset`. An `OptionError` is also raised if no group matches the pattern.
        """
        from xarray_gpuzarr.backend import datasets, groups  # noqa: PLC0415  # imports zarr
        from xarray_gpuzarr.backend.open_options import DecodeOptions, Place, require_known  # noqa: PLC0415

        known = parameter_names(self.open_groups_as_dict)
        require_known(decoding, {*known, *parameter_names(DecodeOptions)})
        place = Place.of(device, storage)
        options = DecodeOptions(**decoding)
        groups.require_reading(mode)
        stores = groups.open_groups(
            filename_or_obj,
            group=group,
            consolidated=consolidated,
            storage_options=storage_options,
            zarr_format=zarr_format,
            use_zarr_fill_value_as_mask=use_zarr_fill_value_as_mask,
        )
        return datasets.build_datasets(stores, options, drop_variables, place)
