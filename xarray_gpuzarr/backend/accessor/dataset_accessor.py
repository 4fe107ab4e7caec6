"""`DatasetAccessor`: ``.gpuzarr`` on datasets, with `explain`, `device`, `to_host`, `load`, `encoding` and `to_zarr`.

Only `load` and `to_zarr` read stored elements. What `to_host` returns reads them when it is computed or loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xarray import Dataset
from zarr.storage import MemoryStore

from xarray_gpuzarr.backend.accessor.abstract_accessor import Accessor, dataset_rows, device_of, explanation_of
from xarray_gpuzarr.backend.accessor.encodings import Size, encodings
from xarray_gpuzarr.backend.accessor.explanation import Explanation
from xarray_gpuzarr.backend.accessor.host_copies import bring_to_host
from xarray_gpuzarr.backend.accessor.sharding_arguments import ShardingArguments
from xarray_gpuzarr.backend.accessor.writing import write_groups
from xarray_gpuzarr.backend.lazy_array import load_together
from xarray_gpuzarr.decoders.protocol import Device


class DatasetAccessor(Accessor):
    """The accessor of a Dataset.

    Parameters
    ----------
    dataset : xarray.Dataset
        A dataset that was opened with any engine, or computed.

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
        """Device that this engine's variables are on, or are read to; None if there are no such variables.

        "cuda" if any variable is on a GPU, or a device such as "cuda:1" if all variables on a GPU were opened with it.
        Loaded variables count only if they are on a GPU.
        """
        return device_of(self._dataset.variables.values())

    def explain(self) -> Explanation:
        """Return a table of how each variable is stored, where it is decoded, and why. Nothing is read.

        Returns
        -------
        Explanation
            Shown as a table in a terminal and in Jupyter. `Explanation.rows` has the same facts as data.
        """
        return explanation_of(dataset_rows(self._dataset), self.device)

    def to_host(self) -> Dataset:
        """Return the dataset with NumPy arrays in place of arrays on a GPU. All else is unchanged.

        Arrays in memory are copied now, and dask arrays and lazy variables when they are computed or loaded.
        """
        copied = self._dataset.copy()
        bring_to_host(copied.variables.values())
        return copied

    def encoding(
        self, chunks: Size = "1 MiB", shards: Size | None = "128 MiB", *, compressors: Any = None, zarr_format: int = 3
    ) -> dict[Any, dict[str, Any]]:
        """Return an `encoding` for `xarray.Dataset.to_zarr`, with chunks and shards of given sizes.

        It keeps the packing of each variable.

        Parameters
        ----------
        chunks : int, str or mapping of dimension to int
            Either the largest size of a chunk in bytes, in the stored dtype and before compression: ``2**20`` or
            ``"1 MiB"``. A chunk then has the whole length of the last dimensions, as far as they fit, and the dimension
            before these is cut into nearly equal parts. Or the lengths of a chunk along dimensions, which may exceed
            those of the dimensions; -1, or a missing dimension, stands for the whole dimension.
        shards : int, str, mapping of dimension to int, or None
            As `chunks`, rounded down to whole chunks. Lengths must be multiples of the chunk's lengths; chunks of a
            size in bytes are chosen to divide them. A variable whose shard would have one chunk gets no shards, and
            neither does a dimension coordinate if both sizes are lengths: its chunks are then as long as the shards.
            None for no shards, as in Zarr format 2.
        compressors : "zstd", "blosc", "gzip", "none", codec, sequence of codecs, or None
            Codecs of all variables. "blosc" is zstd in Blosc, with a byte shuffle. None keeps the codecs in each
            variable's encoding, if `zarr_format` has them; otherwise zarr-python chooses.
        zarr_format : {2, 3}
            Format of the store that will be written.

        Returns
        -------
        dict of variable name to dict
            For each variable `chunks`, `shards`, codecs, and the entries for CF packing, times and missing values. Text
            and objects get no chunks.

        Raises
        ------
        OptionError
            If a size, a dimension or the format is unusable, or a shard is not a whole number of chunks.

        Notes
        -----
        ``to_zarr(encoding=...)`` replaces the encoding of a variable, so this encoding includes the packing. The chunks
        of dask arrays must be whole shards: ``dataset.chunk(time=...)``.

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
        check_values: bool = True,
        **options: Any,
    ) -> Any:
        """Write the dataset to a sharded store, like `xarray.Dataset.to_zarr`, but shard by shard.

        xarray decides what is stored, by the encoding of each variable. The sizes of chunks and shards are given in
        bytes or as lengths, and no two tasks write to one shard. Arrays on a GPU are copied to the host.

        Parameters
        ----------
        store : str, path, zarr store, or None
            None writes to memory; the return value gives access.
        chunks, shards, compressors, zarr_format
            As for `encoding`, for variables that are not in the store. The format is that of the store, or 3.
        encoding : mapping of variable name to mapping, optional
            Entries that replace those in the encoding of some variables.
        rechunk : bool
            Whether dask chunks that end inside shards are changed. If not, they are an error.
        progress : bool
            Whether a bar shows how many tasks are done, on this machine or on a cluster. If the output is
            neither a terminal nor a notebook, lines are printed instead.
        check_values : bool
            Whether values that do not fit the stored dtype are an error. If not, xarray stores other numbers for them.
        **options
            `mode`, `group`, `region`, `append_dim`, `compute`, `consolidated`, `storage_options` and others of
            `xarray.Dataset.to_zarr`. With `region` or `append_dim`, tasks end where shards of the stored arrays end.

        Returns
        -------
        xarray.backends.ZarrStore or dask.delayed.Delayed
            The same as xarray returns.

        Raises
        ------
        OptionError
            If a size or a name is unusable, dask chunks end inside shards, values do not fit the stored dtype, the
            dataset is read from the store that it would erase, or workers of a cluster cannot write to the store.
        TypeError
            If an option is unknown.
        StoreWriteError
            If a shard could not be written. It is as it was before.

        Notes
        -----
        Each dask block, of one or more whole shards, is read, packed and written by one task. NumPy arrays of more than
        16 MiB, except times, are written in tasks of one shard each. So each thread of dask needs memory for one
        decoded block and its packed copy.

        Examples
        --------
        >>> import numpy as np, xarray as xr
        >>> t2m = xr.DataArray(np.zeros((48, 90, 180), "f4"), dims=("time", "latitude", "longitude"))
        >>> store = {}
        >>> t2m.to_dataset(name="t2m").gpuzarr.to_zarr(store, {"time": 1}, {"time": 24})  # doctest: +ELLIPSIS
        <xarray.backends.zarr.ZarrStore object at ...>
        >>> xr.open_dataset(store, engine="gpuzarr", chunks={}, device="host").t2m.chunks
        ((24, 24), (90,), (180,))
        """
        return write_groups(
            {".": self.to_host()},
            MemoryStore() if store is None else store,
            ShardingArguments(chunks=chunks, shards=shards, compressors=compressors, rechunk=rechunk),
            changes={".": encoding or {}},
            zarr_format=zarr_format,
            progress=progress,
            checks_values=check_values,
            **options,
        )

    def load(self) -> Dataset:
        """Load the dataset in place, as ``xarray.Dataset.load`` does, and return it.

        xarray reads lazy variables one after another. This method reads those in object stores concurrently, up to 32
        at a time, so that many small variables take hardly longer than one. xarray loads local files and dask arrays.

        Raises
        ------
        Exception
            If a read failed. Variables that were read before stay loaded.
        """
        load_together(self._dataset.variables.values())
        return self._dataset.load()
