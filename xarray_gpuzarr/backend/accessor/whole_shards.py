"""`DatasetInShards`: a dataset in dask chunks of whole shards, with chunks and shards in the encoding of variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xarray import Coordinates, Dataset, Variable, conventions
from xarray.backends import ZarrStore
from xarray.backends.zarr import extract_zarr_variable_encoding

from xarray_gpuzarr.backend.accessor.append_lengths import require_equal_lengths
from xarray_gpuzarr.backend.accessor.array_paths import array_path, same_path_error
from xarray_gpuzarr.backend.accessor.block_writer import UnencodedVariable
from xarray_gpuzarr.backend.accessor.blocks import cut_into_blocks
from xarray_gpuzarr.backend.accessor.codec_names import named_codecs
from xarray_gpuzarr.backend.accessor.encodings import LAYOUT_KEYS, Layout, layout_of, without_foreign_codecs
from xarray_gpuzarr.backend.accessor.ignored_arguments import advise_of_ignored_codecs, advise_of_ignored_sizes
from xarray_gpuzarr.backend.accessor.packing import CoderPacker
from xarray_gpuzarr.backend.accessor.shard_borders import (
    cut_at_multiples,
    first_unaligned_axis,
    outside_error,
    unaligned_error,
)
from xarray_gpuzarr.backend.accessor.sharding_arguments import ShardingArguments
from xarray_gpuzarr.backend.accessor.stored_advice import advise_of_append
from xarray_gpuzarr.backend.accessor.time_check import TIMES
from xarray_gpuzarr.backend.accessor.value_check import NUMBERS
from xarray_gpuzarr.backend.accessor.xarray_encoding import (
    check_encodable,
    check_numpy_values,
    check_units,
    decode_stored,
    one_element,
    try_encode,
)
from xarray_gpuzarr.process.records import record

_SMALL_NBYTES = 2**24
"""Largest number of bytes of a NumPy variable that is written without tasks. Tasks limit the memory of packed values,
which is small here. They would not make this faster, since one call of the loops uses all cores."""


@record
class ShardGrid:
    """Shape of the shards of a stored array, and where in the array a variable is written."""

    shards: tuple[int, ...]
    """Shape of a shard, or of a chunk if there are no shards."""
    starts: tuple[int, ...]
    """Index of the variable's first element in the array, along each dimension."""


class DatasetInShards:
    """A dataset that is to be written in tasks of whole shards.

    Parameters
    ----------
    dataset : xarray.Dataset
        The dataset, with all arrays on the host.
    sharding : ShardingArguments
        Chunks, shards and codecs of new variables.
    dims : sequence of hashable
        Dimensions that `sharding` may name: those of the dataset, and of other datasets that are written with it.
    changes : mapping of variable name to mapping
        Entries that replace those in the encoding of variables.
    cuts_numpy : bool
        Whether large NumPy arrays become dask arrays.
    checks_values : bool
        Whether NumPy values that do not fit the stored dtype are an error of `prepare`.
    """

    def __init__(
        self,
        dataset: Dataset,
        sharding: ShardingArguments,
        *,
        dims: Sequence[Any],
        changes: Mapping[Any, Mapping[str, Any]],
        cuts_numpy: bool,
        checks_values: bool,
    ) -> None:
        self.dataset = dataset
        self._sharding = sharding
        self._dims = dims
        self.changes = changes
        """Entries that replace those in the encoding of variables."""
        self._cuts_numpy = cuts_numpy
        self._checks_values = checks_values
        self.append_region: dict[Any, slice] | None = None
        """After `prepare` with an `append_dim`: the region of the stored arrays that will be filled. Else None."""

    def prepare(self, target: ZarrStore, append_dim: Any) -> tuple[Dataset, dict[str, UnencodedVariable]]:
        """Bring the dataset into dask chunks of whole shards.

        Parameters
        ----------
        target : xarray.backends.ZarrStore
            The group that the dataset is written to.
        append_dim : hashable or None
            Dimension along which stored variables become longer.

        Returns
        -------
        xarray.Dataset
            The dataset, with chunks and shards in the encoding of its new variables.
        dict of str to UnencodedVariable
            Its variables by the paths of their arrays in the group.

        Raises
        ------
        OptionError
            If dask chunks end inside shards and `rechunk` is false, a region lies outside a stored variable, two paths
            are equal, NumPy values do not fit the stored dtype or units, or an append would leave unequal lengths.
        Exception
            What xarray raises for a variable that it cannot encode.
        """
        existing = {*target.array_keys()}
        zarr_format = target.zarr_group.metadata.zarr_format
        layout = layout_of(self._dims, self._sharding.chunks, self._sharding.shards, zarr_format)
        unencoded_variables: dict[str, UnencodedVariable] = {}
        variables: dict[Any, Variable] = {}
        stored: dict[Any, Variable] = {}
        lengths: dict[Any, int] = {}  # along `append_dim`, before the append
        for name, dataset_variable in self.dataset.variables.items():
            conventions.ensure_not_multiindex(dataset_variable, name)
            variable = dataset_variable.copy(deep=False)
            # The dtype of some indexes changes when they load. An empty variable needs no tasks.
            if variable.size == 0 or name in self.dataset.xindexes:
                variable.load()
            if name in existing:
                stored[name] = target.open_store_variable(name)
                unencoded = self._prepare_stored(target, name, variable, stored[name], append_dim)
                if append_dim in stored[name].dims:
                    lengths[name] = stored[name].sizes[append_dim]
            else:
                unencoded = self._prepare_new(target, name, variable, layout)
                if append_dim in variable.dims:
                    lengths[name] = 0
            path = array_path(name)
            if path in unencoded_variables:
                raise same_path_error(unencoded_variables[path].name, name, path)
            unencoded_variables[path] = unencoded
            variables[name] = unencoded.variable
        require_equal_lengths(lengths, append_dim)
        advise_of_ignored_sizes(stored, self._sharding)
        advise_of_ignored_codecs(stored, self._sharding.compressors, zarr_format)
        if append_dim is not None:
            length = next(iter(lengths.values()), 0)
            new_length = length + self.dataset.sizes.get(append_dim, 0)
            self.append_region = {append_dim: slice(length, new_length)}
            if append_dim in self.dataset.dims:  # otherwise xarray raises an error
                advise_of_append(target, variables, stored, append_dim, new_length)
        data = {name: variables[name] for name in self.dataset.data_vars}
        # No indexes: xarray would make some for dimensions that have none in the dataset.
        coords = Coordinates({name: variables[name] for name in self.dataset.coords}, indexes={})
        return Dataset(data, coords, self.dataset.attrs), unencoded_variables

    def _prepare_new(self, target: ZarrStore, name: Any, variable: Variable, layout: Layout) -> UnencodedVariable:
        """Set the encoding of a variable that is not in the store, and cut it at the borders of shards."""
        grid = self._set_encoding(target, name, variable, layout)
        unencoded = self._cut_unencoded(target, name, variable, grid, dict(variable.encoding))
        # One element shows whether xarray can encode numbers, but not whether it can encode times or text. If there is
        # a `pack`, `_cut_unencoded` has made xarray encode an element already.
        if unencoded.pack is None and unencoded.variable.dtype.kind in NUMBERS:
            check_encodable(target, name, unencoded.variable)
        return unencoded

    def _prepare_stored(
        self, target: ZarrStore, name: Any, variable: Variable, stored: Variable, append_dim: Any
    ) -> UnencodedVariable:
        """Prepare a variable that is written to a stored array, with its dimensions in the order of the array's."""
        grid = None
        if {*stored.dims} == {*variable.dims}:  # otherwise xarray raises an error
            variable = variable.transpose(*stored.dims)
            grid = self._stored_grid(target, name, stored, append_dim)
        if variable.chunks is None:
            variable.load()  # as xarray does, since the variable may come from this store
        encoding = dict(decode_stored(stored).encoding)
        if self._checks_values and variable.dtype.kind in TIMES + "O" and variable.chunks is None:
            check_units(target, name, variable, encoding, stored.attrs.get("units"))
        return self._cut_unencoded(target, name, variable, grid, encoding)

    def _cut_unencoded(
        self, target: ZarrStore, name: Any, variable: Variable, grid: ShardGrid | None, encoding: Mapping[str, Any]
    ) -> UnencodedVariable:
        """Return the variable that xarray is to encode: cut at the borders of shards, with what packs its blocks.

        `encoding` is the one with which xarray would encode the uncut variable, and by which its values are packed and
        checked. If the encoding fits the whole array only, for example with an `add_offset` that has a value for each
        column, xarray cannot encode one element with it, and a NumPy array is not cut.
        """
        is_checked = self._checks_values and check_numpy_values(target, name, variable, encoding)
        cut = self._cut(name, variable, grid)
        pack = None
        if cut.chunks is not None and variable.chunks is None:
            encoded_numpy = try_encode(target, name, one_element(variable, encoding))
            encoded_dask = try_encode(target, name, Variable(cut.dims, cut.data, cut.attrs, dict(encoding)))
            if encoded_numpy is None or encoded_dask is None:
                return UnencodedVariable(
                    name=name, variable=variable, encoding=encoding, pack=None, is_checked=is_checked
                )
            # xarray may choose another dtype for a dask array than for a NumPy array. It creates the stored array for
            # `cut`, which is a dask array, but the dtype shall be that of the NumPy array which the user has passed.
            if encoded_numpy.dtype != encoded_dask.dtype:
                cut.encoding = {**cut.encoding, "dtype": encoded_numpy.dtype}
            pack = CoderPacker(name, variable.attrs, encoding, target.zarr_group.metadata.zarr_format)
        return UnencodedVariable(name=name, variable=cut, encoding=encoding, pack=pack, is_checked=is_checked)

    def _set_encoding(self, target: ZarrStore, name: Any, variable: Variable, layout: Layout) -> ShardGrid | None:
        """Set chunks, shards and codecs of a new variable.

        Returns its shards; None if xarray or zarr-python choose or refuse them.
        """
        shapes: dict[str, Any] = layout.shapes(name, variable)
        zarr_format = target.zarr_group.metadata.zarr_format
        encoding = without_foreign_codecs(variable.encoding, zarr_format)
        # New shapes replace those in the encoding. Text gets no new shapes, and keeps the old ones unless it is a dask
        # array: several tasks might then write to one old chunk. Without old shapes, xarray makes chunks as long as
        # dask's.
        if shapes or variable.chunks is not None:
            encoding = {key: value for key, value in encoding.items() if key not in LAYOUT_KEYS}
        if self._sharding.compressors is not None:
            encoding["compressors"] = named_codecs(self._sharding.compressors, zarr_format)
        variable.encoding = encoding | shapes | dict(self.changes.get(name, {}))
        if variable.dtype.kind not in NUMBERS + TIMES or not {"chunks", "shards"} & variable.encoding.keys():
            return None
        # `changes` may have one length for all axes, "auto", or lengths that xarray ignores or refuses. xarray's own
        # function tells which lengths it takes.
        zarr_encoding = extract_zarr_variable_encoding(variable, name=name, zarr_format=zarr_format)
        chunks = zarr_encoding["chunks"]
        shards = zarr_encoding.get("shards") or chunks
        if not isinstance(shards, tuple) or not isinstance(chunks, tuple):  # zarr-python chooses them
            return None
        whole_axes = [max(1, n) for n in variable.shape]
        shards = tuple([n if length == -1 else length for n, length in zip(whole_axes, shards, strict=True)])
        if shards and min(shards) <= 0:  # xarray or zarr-python will refuse them
            return None
        return ShardGrid(shards=shards, starts=(0,) * variable.ndim)

    def _stored_grid(self, target: ZarrStore, name: Any, stored: Variable, append_dim: Any) -> ShardGrid | None:
        """Return the shards of a stored variable; None if it has chunks of several lengths, which xarray refuses."""
        chunks = stored.encoding["chunks"]
        shards = stored.encoding["shards"] or chunks
        if not all(isinstance(n, int) for n in (*chunks, *shards)):
            return None
        region = target._write_region or {}  # noqa: SLF001  # xarray has turned region="auto" into slices
        starts = []
        for dim, n in stored.sizes.items():
            end = region.get(dim, slice(None)).stop
            if end is not None and end > n:
                raise outside_error(name, dim, region[dim], n)
            start, _, _ = region.get(dim, slice(None)).indices(n)
            starts.append(n if dim == append_dim else start)
        return ShardGrid(shards=tuple(shards), starts=tuple(starts))

    def _cut(self, name: Any, variable: Variable, grid: ShardGrid | None) -> Variable:
        """Return a variable in dask chunks that end where shards end, or unchanged if it is not written in such chunks.

        It is unchanged if it is a scalar or empty. A variable in memory is unchanged if it is small or no number, or if
        `cuts_numpy` is false. Without a `grid`, a dask array only gets chunks of one length, if `rechunk` is true.

        Raises `OptionError` if its dask chunks end inside shards and `rechunk` is false.
        """
        if not variable.ndim or not all(variable.shape):
            return variable
        if grid is None:  # such as text, whose dask chunks must only have one length along each axis
            if self._sharding.rechunk and variable.chunks is not None:
                return variable.chunk(dict(zip(variable.dims, map(max, variable.chunks), strict=True)))
            return variable
        if variable.chunks is None:
            # xarray chooses the units of times by all of them, so these are not cut.
            is_large = variable.nbytes > _SMALL_NBYTES and variable.dtype.kind in NUMBERS
            if not is_large or not self._cuts_numpy:
                return variable
        whole_shards = list(map(cut_at_multiples, grid.starts, variable.shape, grid.shards))
        if variable.chunks is None:
            return cut_into_blocks(variable, whole_shards)
        axis = first_unaligned_axis(variable.chunks, whole_shards)
        if axis is not None and not self._sharding.rechunk:
            raise unaligned_error(name, variable, axis, grid.shards, whole_shards)
        return variable if axis is None else variable.chunk(dict(zip(variable.dims, whole_shards, strict=True)))
