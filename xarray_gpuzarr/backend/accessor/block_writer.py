"""`BlockWriter`: what xarray's `ZarrStore` hands its encoded arrays to, and their targets."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from xarray import Variable
from xarray.backends.common import ArrayWriter

from xarray_gpuzarr.backend.accessor.packing import NUMBERS, TIMES, Pack, ValueCheck, in_slabs
from xarray_gpuzarr.backend.accessor.staged_store import StagedStore
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.write.block_target import BlockTarget
from xarray_gpuzarr.write.writes_behind import WritesBehind


@record
class Original:
    """A variable before xarray encodes it."""

    name: Any
    variable: Variable
    encoding: Mapping[str, Any]
    """The encoding by which xarray encodes it: its own, or that of the store."""
    pack: Pack | None
    """Encoder of its elements, if it was no array of dask and has become one; None if dask encodes them."""


class BlockWriter(ArrayWriter):
    """Collects blocks of dask, packed in slabs, and writes arrays in memory at once.

    `expect` tells it the variables that will come. Blocks of those that were no arrays of dask are collected apart, for
    `write_in_memory` or `join`. If `behind` is given, objects that are encoded are left to it; it has to be finished.
    Chunks do not pass `staged`, which keeps metadata.
    """

    __slots__ = ("_behind", "_checks_values", "_originals", "_staged", "block_nbytes", "in_memory")

    def __init__(
        self, *, checks_values: bool = True, behind: WritesBehind | None = None, staged: StagedStore | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._checks_values, self._behind, self._staged = checks_values, behind, staged
        self._originals: dict[str, Original] = {}
        """Variables by the paths of their arrays in the store."""
        self.block_nbytes = 0
        """Most bytes of one block, as it is decoded and as it is stored."""
        self.in_memory = ArrayWriter()
        """Collects the blocks of variables that were no arrays of dask."""

    def expect(self, originals: Mapping[str, Original], group_path: str) -> None:
        """Note the variables of a group, by the paths of their arrays in it."""
        for path, original in originals.items():
            self._originals[f"{group_path}/{path}".strip("/")] = original

    def add(self, source: Any, target: Any, region: Any = None) -> None:
        """Write an encoded array to a region of a zarr array, now or as tasks of dask."""
        original = self._originals[target.path.strip("/")]
        variable = original.variable
        is_packed = variable.dtype != target.dtype or {"scale_factor", "add_offset"} & original.encoding.keys()
        check = None
        if is_packed and self._checks_values:
            check = ValueCheck.of(original.name, target.dtype, original.encoding)
        if self._staged is not None:
            self._staged.detach(target)
        to = BlockTarget(target, self._behind)
        if not isinstance(source, da.Array):
            if check is not None and isinstance(source, np.ndarray):
                values = np.asarray(variable.data)
                misfit = check.misfit(values, source)
                if misfit is not None:
                    raise check.error(misfit, values, (0,) * values.ndim)
            super().add(source, to, region)  # type: ignore[no-untyped-call]
            return
        region = _positive(region, target.shape)
        nbytes = variable.dtype.itemsize + target.dtype.itemsize
        self.block_nbytes = max(self.block_nbytes, prod(map(max, source.chunks)) * nbytes)
        if variable.dtype.kind in NUMBERS + TIMES:
            source = in_slabs(source, variable.data, original.pack, check)
        if original.pack is not None:
            self.in_memory.add(source, to, region)
        else:
            super().add(source, to, region)  # type: ignore[no-untyped-call]

    def write_in_memory(self) -> None:
        """Write what was no array of dask on threads of this process, as xarray does before it returns."""
        self.in_memory.sync(chunkmanager_store_kwargs={"scheduler": "threads"})

    def join(self) -> None:
        """Let what was no array of dask be written with the others."""
        self.sources += self.in_memory.sources
        self.targets += self.in_memory.targets
        self.regions += self.in_memory.regions

    @property
    def n_tasks(self) -> int:
        """Number of blocks of dask that are written."""
        return sum(prod(source.numblocks) for source in self.sources)


def _positive(region: Any, shape: tuple[int, ...]) -> Any:
    """Return slices of a region with starts and ends that are counted from the start of the axes; dask needs them."""
    if not region:
        return region
    return tuple([slice(*each.indices(n)[:2]) for each, n in zip(region, shape, strict=True)])
