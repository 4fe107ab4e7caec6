"""`BlockWriter`: takes the arrays that xarray's `ZarrStore` has encoded, and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from xarray import Variable
from xarray.backends.common import ArrayWriter

from xarray_gpuzarr.backend.accessor.packing import Pack, pack_blocks
from xarray_gpuzarr.backend.accessor.staged_store import StagedStore
from xarray_gpuzarr.backend.accessor.time_check import TIMES, TimeCheck
from xarray_gpuzarr.backend.accessor.value_check import NUMBERS, check_of
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.write.block_target import BlockTarget
from xarray_gpuzarr.write.writes_behind import WritesBehind


@record
class UnencodedVariable:
    """A variable before xarray encodes it."""

    name: Any
    variable: Variable
    encoding: Mapping[str, Any]
    """The encoding by which its values are packed and checked: its own, or that of the stored variable if there is one.
    ``variable.encoding`` may differ: see `DatasetInShards`, which adds a dtype to it."""
    pack: Pack | None
    """Encodes its elements, if it was in memory and this package has cut it into dask blocks; else None."""
    is_checked: bool = False
    """Whether its values have been found to fit the stored dtype."""


class BlockWriter(ArrayWriter):
    """Collects the blocks of dask arrays, which are packed in slabs where possible, and writes NumPy arrays at once.

    Call `expect` before xarray passes the variables. Large variables in memory have been cut into dask blocks by this
    package. Their blocks are collected separately, for `write_from_memory` or `add_from_memory`.

    Parameters
    ----------
    checks_values : bool
        Whether values that do not fit the stored dtype are an error.
    behind : WritesBehind, optional
        Sends encoded objects in the background. The caller has to call its `finish`.
    staged : StagedStore, optional
        Store that keeps the metadata. Chunks are written to the store below it.
    """

    __slots__ = ("_behind", "_checks_values", "_staged", "_unencoded", "block_nbytes", "from_memory")

    def __init__(
        self, *, checks_values: bool = True, behind: WritesBehind | None = None, staged: StagedStore | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._checks_values = checks_values
        self._behind = behind
        self._staged = staged
        self._unencoded: dict[str, tuple[UnencodedVariable, str]] = {}
        """Variables and the paths of their groups, by the paths of their arrays in the store."""
        self.block_nbytes = 0
        """Bytes of the largest block: its decoded elements and their packed copy."""
        self.from_memory = ArrayWriter()
        """Collects the blocks of variables in memory that this package has cut."""

    def expect(self, unencoded_variables: Mapping[str, UnencodedVariable], group_path: str) -> None:
        """Record the variables of a group that xarray will pass, by the paths of their arrays in the group.

        `group_path` is the path of the group in the store.
        """
        for path, unencoded in unencoded_variables.items():
            self._unencoded[f"{group_path}/{path}".strip("/")] = unencoded, group_path

    def add(self, source: Any, target: Any, region: Any = None) -> None:
        """Write an encoded array to a region of a zarr array, now or in dask tasks.

        xarray calls this for each variable; see `xarray.backends.common.ArrayWriter.add`. Raises `OptionError` if a
        value of a NumPy array does not fit the stored dtype.
        """
        unencoded, group_path = self._unencoded[target.path.strip("/")]
        variable = unencoded.variable
        # Values change if they get another dtype, a scale or an offset, or are times. Others are stored as they are.
        is_packed = (
            variable.dtype != target.dtype
            or {"scale_factor", "add_offset"} & unencoded.encoding.keys()
            or variable.dtype.kind in TIMES
        )
        check = None
        if is_packed and self._checks_values and not unencoded.is_checked:
            check = check_of(unencoded.name, variable.dtype, target.dtype, unencoded.encoding, dict(target.attrs))
        if check is not None:
            check = replace(check, group=group_path)
        if self._staged is not None:
            self._staged.detach(target)
        block_target = BlockTarget(target, self._behind)
        if not isinstance(source, da.Array):
            if check is not None and isinstance(source, np.ndarray):
                check.require_fit(np.asarray(variable.data), source)
            super().add(source, block_target, region)  # type: ignore[no-untyped-call]
            return
        region = _positive_slices(region, target.shape)
        nbytes_per_element = variable.dtype.itemsize + target.dtype.itemsize
        self.block_nbytes = max(self.block_nbytes, prod(map(max, source.chunks)) * nbytes_per_element)
        # Blocks of numbers and times are packed in slabs, and xarray packs those of text and other objects. Dates of
        # cftime are objects, too: a `TimeCheck` shows that an array has them, and without a check xarray packs them.
        if variable.dtype.kind in NUMBERS + TIMES or isinstance(check, TimeCheck):
            source = pack_blocks(source, variable.data, unencoded.pack, check)
        if unencoded.pack is not None:
            self.from_memory.add(source, block_target, region)
        else:
            super().add(source, block_target, region)  # type: ignore[no-untyped-call]

    def write_from_memory(self) -> None:
        """Write the blocks of variables in memory, now and on threads of this process."""
        self.from_memory.sync(chunkmanager_store_kwargs={"scheduler": "threads"})

    def add_from_memory(self) -> None:
        """Add the blocks of variables in memory to the others."""
        self.sources += self.from_memory.sources
        self.targets += self.from_memory.targets
        self.regions += self.from_memory.regions

    @property
    def n_tasks(self) -> int:
        """Number of dask blocks that have been collected, without those in `from_memory`. `sync` sets it to zero."""
        return sum(prod(source.numblocks) for source in self.sources)


def _positive_slices(region: Any, shape: tuple[int, ...]) -> Any:
    """Return the slices of a region without negative starts and stops, which dask does not support."""
    if not region:
        return region
    return tuple([slice(*key.indices(n)[:2]) for key, n in zip(region, shape, strict=True)])
