"""``.gpuzarr`` on trees, with the methods that `DatasetAccessor` has for datasets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xarray import Dataset, DataTree, Variable
from zarr.storage import MemoryStore

from xarray_gpuzarr.backend.accessor.abstract_accessor import Accessor, dataset_rows, device_of, explanation_of
from xarray_gpuzarr.backend.accessor.dataset_accessor import DatasetAccessor
from xarray_gpuzarr.backend.accessor.encodings import Size
from xarray_gpuzarr.backend.accessor.explanation import Explanation
from xarray_gpuzarr.backend.accessor.sharding_arguments import ShardingArguments
from xarray_gpuzarr.backend.accessor.variable_rows import Row
from xarray_gpuzarr.backend.accessor.writing import write_groups
from xarray_gpuzarr.backend.lazy_array import load_together
from xarray_gpuzarr.decoders.protocol import Device
from xarray_gpuzarr.errors import OptionError, similar_name_hint


class DataTreeAccessor(Accessor):
    """The accessor of a DataTree."""

    def __init__(self, tree: DataTree) -> None:
        self._tree = tree

    @property
    def device(self) -> Device | None:
        """See `DatasetAccessor.device`; for the variables of all groups."""
        return device_of(self._variables())

    def explain(self) -> Explanation:
        """See `DatasetAccessor.explain`; for this group and all below it.

        Names are paths from this group, such as ``sub/t2m``: ``tree[name]`` is the variable.
        """
        rows: list[Row] = []
        for path, group in self._groups():
            prefix = path.lstrip("/")
            rows.extend(dataset_rows(group, f"{prefix}/" if prefix else ""))
        return explanation_of(rows, self.device)

    def to_host(self) -> DataTree:
        """See `DatasetAccessor.to_host`; for all groups."""
        groups = {path: DatasetAccessor(dataset).to_host() for path, dataset in self._groups()}
        return DataTree.from_dict(groups, name=self._tree.name)

    def to_zarr(  # noqa: PLR0913  # as xarray's
        self,
        store: Any,
        chunks: Size = "1 MiB",
        shards: Size | None = "128 MiB",
        *,
        compressors: Any = None,
        encoding: Mapping[str, Mapping[Any, Mapping[str, Any]]] | None = None,
        mode: Any = "w-",
        write_inherited_coords: bool = False,
        rechunk: bool = False,
        progress: bool = False,
        check_values: bool = True,
        **options: Any,
    ) -> Any:
        """Write all groups as ``xarray.DataTree.to_zarr`` does, in shards; see `DatasetAccessor.to_zarr`.

        Parameters
        ----------
        store, chunks, shards, compressors, rechunk, progress, check_values
            As for `DatasetAccessor.to_zarr`. Lengths apply to each group that has the dimension.
        encoding : mapping of group path to mapping of variable name to mapping, optional
            Entries that replace those in the encoding of some variables:
            ``{"/": {"t2m": {"dtype": "int16"}}}``.
        mode : {"w", "w-", "a", "r+"}
            As for ``xarray.DataTree.to_zarr``.
        write_inherited_coords : bool
            Whether coordinates of a parent are also written to the groups below it.
        **options
            `compute`, `consolidated`, `region`, `storage_options`, `zarr_format` and others of
            ``xarray.DataTree.to_zarr``.

        Returns
        -------
        xarray.backends.ZarrStore or dask.delayed.Delayed
            The same as xarray returns.

        Raises
        ------
        OptionError, StoreWriteError
            As for `DatasetAccessor.to_zarr`.
        NotImplementedError
            If `group` or `append_dim` is given, which xarray does not support for trees.
        """
        for name in ("group", "append_dim"):
            if options.get(name) is not None:
                raise NotImplementedError(f"specifying {name}= of to_zarr has not been implemented for trees by xarray")
        encoding = encoding or {}
        _require_groups(encoding, self._tree.groups)
        datasets = {}
        changes = {}
        for path, node in self._tree.subtree_with_keys:
            dataset = node.to_dataset(inherit=write_inherited_coords or node is self._tree)
            datasets[path] = DatasetAccessor(dataset).to_host()
            # `path` is relative to this group. The keys of `encoding` are paths from the root of the tree.
            changes[path] = encoding.get(node.path, {})
        return write_groups(
            datasets,
            MemoryStore() if store is None else store,
            ShardingArguments(chunks=chunks, shards=shards, compressors=compressors, rechunk=rechunk),
            changes=changes,
            mode=mode,
            progress=progress,
            checks_values=check_values,
            **options,
        )

    def load(self) -> DataTree:
        """See `DatasetAccessor.load`; for all groups."""
        load_together(self._variables())
        return self._tree.load()

    def _variables(self) -> list[Variable]:
        """Return the variables of all groups."""
        return [variable for _, group in self._groups() for variable in group.variables.values()]

    def _groups(self) -> list[tuple[str, Dataset]]:
        """Return this group and all groups below it, with paths as if this one were the root, "/".

        `DataTree.from_dict` takes such paths.
        """
        groups = []
        for path, node in self._tree.subtree_with_keys:
            groups.append(("/" if path == "." else f"/{path}", node.to_dataset(inherit=False)))
        return groups


def _require_groups(paths: Iterable[str], groups: Sequence[str]) -> None:
    """Raise `OptionError` if a key of `encoding` is not the path of a group."""
    for path in paths:
        if path not in groups:
            raise OptionError(
                f"unknown group {path!r}",
                tried=f"encoding= of group {path!r}",
                found=f"groups {', '.join(map(repr, groups))}"[:200],  # there may be many
                do=f"name one of these{similar_name_hint(path, groups)}, and the variable in it: "
                f"{{{groups[-1]!r}: {{'variable': {{...}}}}}}",
            )
