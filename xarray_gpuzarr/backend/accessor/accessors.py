"""``.gpuzarr`` on datasets, arrays and trees: `explain`, `device`, `to_host`, `load`, `encoding` and `to_zarr`.

Nothing is read except by `load`, and by what `to_host` returns when that is computed or loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np
from dask.array.utils import meta_from_array
from xarray import DataArray, Dataset, DataTree, Variable
from xarray.core import indexing
from zarr.storage import MemoryStore

from xarray_gpuzarr.backend.accessor.encodings import Size, encodings
from xarray_gpuzarr.backend.accessor.explain import Row, array_in_memory, explain_variables, lazy_array_of
from xarray_gpuzarr.backend.accessor.explanation import Explanation, summarize
from xarray_gpuzarr.backend.accessor.writing import write_dataset
from xarray_gpuzarr.backend.chunking import find_block_reader
from xarray_gpuzarr.backend.lazy_array import LazyArray, data_of, find_lazy_array, load_together
from xarray_gpuzarr.decoders.choice import missing_for_cuda
from xarray_gpuzarr.decoders.host.chunk_cache import kept_chunks
from xarray_gpuzarr.decoders.protocol import Device, Route
from xarray_gpuzarr.native.library import why_absent


class Accessor(ABC):
    """Base of the accessors: their text and HTML say where variables are decoded."""

    @property
    @abstractmethod
    def device(self) -> Device | None:
        """Where this engine's variables live, or will once they are read."""

    @abstractmethod
    def explain(self) -> Explanation:
        """Return a table of how each variable is stored, where it is decoded, and why."""

    def __repr__(self) -> str:
        return str(summarize(self.explain().rows, self.device))

    def _repr_html_(self) -> str:
        return summarize(self.explain().rows, self.device).to_html()


class DatasetAccessor(Accessor):
    """The accessor of a Dataset.

    Parameters
    ----------
    dataset : xarray.Dataset
        Opened with any engine, changed in any way.

    Examples
    --------
    >>> import xarray as xr
    >>> dataset = xr.open_dataset("era5.zarr", engine="gpuzarr", chunks={}, device="host")
    >>> dataset.gpuzarr
    <gpuzarr: 8 variables, 1.05 MB; this engine's are read to the host, as NumPy arrays>
      host             lsm, sst, t2m, u10, v10
      host, by xarray  latitude, longitude, time
    >>> dataset.gpuzarr.explain().rows[2].codecs
    'bytes(little) > zstd'
    >>> field = dataset.t2m.isel(time=0).gpuzarr.to_host().to_pandas()
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    @property
    def device(self) -> Device | None:
        """Where this engine's variables live, or will once they are read; None if none came from it.

        "cuda" if any variable does, or "cuda:1" if all that do were opened with it. A loaded variable counts if it is
        on the GPU.
        """
        return device_of(self._dataset.variables)

    def explain(self) -> Explanation:
        """Return a table of how each variable is stored, where it is decoded, and why. No I/O.

        Returns
        -------
        Explanation
            Prints as a table in a terminal and in Jupyter; `Explanation.rows` holds the same as data.
        """
        return explanation(dataset_rows(self._dataset), self.device)

    def to_host(self) -> Dataset:
        """Return the dataset with NumPy arrays: arrays on the GPU are copied, everything else is unchanged.

        Arrays in memory are copied now, dask arrays and lazy variables when they are computed or loaded.
        """
        copied = self._dataset.copy()
        bring_to_host(copied.variables.values())
        return copied

    def encoding(
        self, chunks: Size = "1 MiB", shards: Size | None = "128 MiB", *, compressors: Any = None, zarr_format: int = 3
    ) -> dict[Any, dict[str, Any]]:
        """Return an `encoding` for `xarray.Dataset.to_zarr`: chunks and shards by size, packed as the source is.

        Parameters
        ----------
        chunks : int, str or mapping of dimension to int
            Size of a chunk in bytes before compression, in the stored dtype: ``2**20`` or ``"1 MiB"``, filled along the
            last dimensions first and cut evenly. Or its lengths along dimensions, however long these are now; -1 and
            dimensions left out for all.
        shards : int, str, mapping of dimension to int, or None
            As `chunks`, rounded down to whole chunks. Lengths are multiples of the chunk's; chunks of a size in bytes
            are cut so that they are. A variable whose shard would have one chunk gets none. None: no shards, as in
            format 2.
        compressors : codec, sequence of codecs, or None
            Of all variables. None keeps those of each variable's encoding that `zarr_format` knows; zarr-python chooses
            for variables without any.
        zarr_format : 2 or 3
            Of the store to be written.

        Returns
        -------
        dict of variable name to dict
            Only `chunks`, `shards`, codecs, and what CF packing, times and missing values need. Text and objects get no
            chunks.

        Raises
        ------
        OptionError
            A size, a dimension or a format that is unusable, or shards that are no whole number of chunks.

        Notes
        -----
        ``to_zarr(encoding=...)`` replaces the encoding of a variable, its packing included; this keeps it. dask chunks
        must be whole shards: ``dataset.chunk(time=...)``.

        Examples
        --------
        >>> import numpy as np, xarray as xr
        >>> t2m = xr.DataArray(np.zeros((48, 721, 1440), "f4"), dims=("time", "latitude", "longitude"))
        >>> t2m.encoding = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -32768}
        >>> encoding = t2m.to_dataset(name="t2m").gpuzarr.encoding("1 MiB", {"time": 24})
        >>> encoding["t2m"]["chunks"], encoding["t2m"]["shards"], encoding["t2m"]["dtype"]
        ((1, 361, 1440), (24, 722, 1440), 'int16')
        """
        return encodings(self._dataset, chunks, shards, compressors, zarr_format)

    def to_zarr(  # noqa: PLR0913  # as xarray's
        self,
        store: Any,
        chunks: Size = "1 MiB",
        shards: Size | None = "128 MiB",
        *,
        compressors: Any = None,
        encoding: Mapping[Any, Mapping[str, Any]] | None = None,
        zarr_format: int | None = None,
        rechunk: bool = False,
        progress: bool = False,
        **options: Any,
    ) -> Any:
        """Write the dataset, shard by shard, with the compiled loops: `xarray.Dataset.to_zarr` for sharded stores.

        xarray decides what is stored, by the encoding of each variable. Chunks and shards have a size in bytes or
        lengths, and no two tasks write to one shard. Arrays on a GPU are copied to the host.

        Parameters
        ----------
        store : str, path, zarr store, or None
            None is memory, to which what is returned leads.
        chunks, shards, compressors, zarr_format
            As for `encoding`, of variables that are not in the store yet. The format is that of the store, or 3.
        encoding : mapping of variable name to mapping, optional
            What is to be different for some variables.
        rechunk : bool
            Whether chunks of dask that end inside of shards are changed. If not, they are an error.
        progress : bool
            Whether a bar shows how many tasks are done, with the schedulers of this machine.
        **options
            `mode`, `group`, `region`, `append_dim`, `compute`, `consolidated`, `storage_options` and others of
            `xarray.Dataset.to_zarr`. With `region` or `append_dim`, tasks end where shards of the store do.

        Returns
        -------
        xarray.backends.ZarrStore or dask.delayed.Delayed
            What xarray returns.

        Raises
        ------
        OptionError
            An unusable size, chunks of dask that end inside of shards, or values that do not fit the stored dtype.
        StoreWriteError
            A shard could not be written; it is as it was before.

        Notes
        -----
        Variables that are larger than a shard are read, packed and written by tasks of one shard each: the most memory
        is that of a decoded and a packed shard for each thread of dask.

        Examples
        --------
        >>> import numpy as np, xarray as xr
        >>> t2m = xr.DataArray(np.zeros((48, 90, 180), "f4"), dims=("time", "latitude", "longitude"))
        >>> store = {}
        >>> _ = t2m.to_dataset(name="t2m").gpuzarr.to_zarr(store, {"time": 1}, {"time": 24})
        >>> xr.open_dataset(store, engine="gpuzarr", chunks={}, device="host").t2m.chunks
        ((24, 24), (90,), (180,))
        """
        return write_dataset(
            self.to_host(),
            MemoryStore() if store is None else store,
            chunks,
            shards,
            compressors=compressors,
            changes=encoding or {},
            zarr_format=zarr_format,
            rechunk=rechunk,
            progress=progress,
            **options,
        )

    def load(self) -> Dataset:
        """Load the dataset in place, as ``xarray.Dataset.load`` does, and return it.

        xarray reads lazy variables one after another. This method reads those in object stores concurrently, up to 32
        at a time, so that many small variables take hardly longer than one. xarray loads local files and dask arrays.

        Raises
        ------
        Exception
            A read failed. Variables that were read before it stay loaded.
        """
        load_together(self._dataset.variables.values())
        return self._dataset.load()


class DataArrayAccessor(Accessor):
    """The accessor of a DataArray."""

    def __init__(self, array: DataArray) -> None:
        self._array = array

    @property
    def device(self) -> Device | None:
        """As `DatasetAccessor.device`, for the array and its coordinates."""
        return device_of(self._variables())

    def explain(self) -> Explanation:
        """As `DatasetAccessor.explain`, for the array and its coordinates."""
        return explanation(explain_variables(self._variables()), self.device)

    def to_host(self) -> DataArray:
        """As `DatasetAccessor.to_host`, for the array and its coordinates."""
        copied = self._array.copy(deep=False)
        bring_to_host([copied.variable, *(coordinate.variable for coordinate in copied.coords.values())])
        return copied

    def load(self) -> DataArray:
        """As `DatasetAccessor.load`, for the array and its coordinates."""
        load_together(self._variables().values())
        return self._array.load()

    def _variables(self) -> dict[Any, Variable]:
        name = "array" if self._array.name is None else self._array.name
        return {name: self._array.variable} | {k: v.variable for k, v in self._array.coords.items() if k != name}


class DataTreeAccessor(Accessor):
    """The accessor of a DataTree."""

    def __init__(self, tree: DataTree) -> None:
        self._tree = tree

    @property
    def device(self) -> Device | None:
        """As `DatasetAccessor.device`, over all groups."""
        return device_of({(path, name): v for path, group in self._groups() for name, v in group.variables.items()})

    def explain(self) -> Explanation:
        """As `DatasetAccessor.explain`, over all groups; names carry their group's path."""
        rows = [row for path, group in self._groups() for row in dataset_rows(group, f"{path.rstrip('/')}/")]
        return explanation(rows, self.device)

    def to_host(self) -> DataTree:
        """As `DatasetAccessor.to_host`, over all groups."""
        groups = {path: DatasetAccessor(dataset).to_host() for path, dataset in self._groups()}
        return DataTree.from_dict(groups, name=self._tree.name)

    def load(self) -> DataTree:
        """As `DatasetAccessor.load`, over all groups."""
        load_together(v for _, group in self._groups() for v in group.variables.values())
        return self._tree.load()

    def _groups(self) -> list[tuple[str, Dataset]]:
        """List every group below this one, itself included, by its path from here."""
        keys = self._tree.subtree_with_keys
        return [("/" if path == "." else f"/{path}", node.to_dataset(inherit=False)) for path, node in keys]


def explanation(rows: Iterable[Row], device: str | None) -> Explanation:
    """Return rows as an explanation, with a note about the device that this engine's variables are read to."""
    rows = tuple(rows)
    if not rows:
        return Explanation(rows=rows, note="There are no variables here. xarray.open_datatree opens the groups below.")
    if device is None:
        is_loaded = any("in memory" in row.where + row.why for row in rows)
        note = "Nothing here is left to read" if is_loaded else "Nothing here is read"
        return Explanation(rows=rows, note=f'{note} by engine="gpuzarr".')
    missing = missing_for_cuda() if device == "host" else []
    why = why_absent() if any(row.where == "host" for row in rows) else None
    notes = [
        *([f"CUDA cannot be used here; missing: {', '.join(missing)}."] if missing else []),
        *([f"Compiled loops are not in use: {why}."] if why else []),
        kept_chunks() if device == "host" else "",
    ]
    return Explanation(rows=rows, note=" ".join(filter(None, notes)))


def dataset_rows(dataset: Dataset, prefix: str = "") -> tuple[Row, ...]:
    """Describe the variables of a dataset, data variables first."""
    order = [*dataset.data_vars, *dataset.coords]
    return explain_variables({name: dataset.variables[name] for name in order}, prefix)


def device_of(variables: Mapping[Any, Variable]) -> Device | None:
    """Return where variables of this engine live: on a GPU if any does, None if there are none."""
    devices = set[Device]()
    for variable in variables.values():
        lazy = lazy_array_of(variable)
        if lazy is not None:
            of_workers: Device = "cuda" if lazy.device == "workers" else lazy.device
            devices.add("host" if isinstance(lazy, HostCopy) else of_workers)
        elif hasattr(array_in_memory(variable), "__cuda_array_interface__"):
            devices.add("cuda")
    on_device = devices - {"host"}
    return "cuda" if len(on_device) > 1 else next(iter(on_device or devices), None)


def bring_to_host(variables: Iterable[Variable]) -> None:
    """Convert variables on a GPU to NumPy arrays, in place: arrays in memory now, others when they are read."""
    for variable in variables:
        data = data_of(variable)
        lazy = find_lazy_array(data)
        if lazy is not None:
            if hasattr(lazy.meta(), "get"):
                variable.data = _host_copies(data)
        elif hasattr(data, "dask") and (hasattr(meta_from_array(data), "get") or _may_have_device_blocks(data)):
            host_meta = np.empty((0,) * data.ndim, data.dtype)
            variable.data = data.map_blocks(to_numpy, dtype=data.dtype, meta=host_meta)
        elif hasattr(in_memory := array_in_memory(variable), "get"):
            variable.data = to_numpy(in_memory)


def _may_have_device_blocks(data: Any) -> bool:
    """Whether a dask array whose meta is NumPy's may have blocks on a GPU.

    dask falls back to NumPy's if a function fails on arrays of length zero, such as a maximum, and for blocks that are
    in memory of workers.
    """
    reader = find_block_reader(data)
    if reader is not None:
        return hasattr(reader.lazy.meta(), "get")
    mappings = (getattr(layer, "mapping", {}) for layer in getattr(data.dask, "layers", {}).values())
    firsts = (next(iter(mapping.values()), None) for mapping in mappings)
    return any(type(first).__module__.startswith("distributed.") for first in firsts)


def to_numpy(array: Any) -> Any:
    """Return an array of a GPU as a NumPy array; any other array unchanged."""
    return array.get() if hasattr(array, "get") else array


class HostCopy(LazyArray):
    """A lazy array that is decoded on its device and then copied to the host."""

    __slots__ = ()

    @property
    def route(self) -> Route:
        """Where this array is decoded and why."""
        route = super().route
        return Route(where=f"{route.where}, then copied to the host", why=route.why)

    def meta(self) -> Any:
        """Return a zero-length NumPy array."""
        return np.empty((0,) * self.ndim, self.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return to_numpy(super().__getitem__(key))


def _host_copies(data: Any) -> Any:
    """Return xarray's indexing wrappers with a `HostCopy` of the lazy array below them."""
    if isinstance(data, LazyArray):
        return HostCopy(data.stored, data.device, or_host=data.or_host)
    wrapper = copy(data)
    wrapper.array = _host_copies(data.array)
    return wrapper
