"""Packs dask blocks as xarray does, but slab by slab. A slab is so short that it fits a core's cache.

xarray packs whole blocks, one arithmetic operation after another, which takes several times their memory. Here each
slab goes through the same operations: those of the dask graph that xarray has built, or xarray's coders for NumPy
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from itertools import accumulate
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.core import get_dependencies
from xarray import Variable
from xarray.backends import ZarrStore
from xarray.backends.writers import get_writable_zarr_store
from zarr.storage import MemoryStore

from xarray_gpuzarr.backend.accessor.fit_check import FitCheck
from xarray_gpuzarr.process.records import record

_SLAB_LENGTH = 2**16
"""Number of elements in a slab, half a megabyte of float64. With twice as many, packing took three times as long."""
Pack = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Encodes elements, shape (n,), as they are stored."""


class GraphPacker:
    """Encodes NumPy elements by the operations of a dask graph that xarray has built to encode a dask array.

    Parameters
    ----------
    encoded : dask.array.Array
        The encoded array.
    unencoded : dask.array.Array
        The array from which xarray has computed `encoded`. It is not `encoded` itself.
    """

    def __init__(self, encoded: da.Array, unencoded: da.Array) -> None:
        first_block = (0,) * encoded.ndim  # the operations on all blocks are the same
        self._source = (unencoded.name, *first_block)
        self._result = (encoded.name, *first_block)
        graph = encoded.dask.cull({self._result})
        dependencies = _tasks_between(graph, self._source, self._result)
        # `dependencies` stops at the source, so a task in it that depends on nothing is another input.
        self.has_one_input = all(dependencies.values())
        """Whether a block of `unencoded` is the only input. Another input may be an array with an offset for each
        column."""
        order = TopologicalSorter({key: keys & dependencies.keys() for key, keys in dependencies.items()})
        self._steps = [(key, graph[key]) for key in order.static_order()]

    def __dask_tokenize__(self) -> object:
        return self._result

    def __call__(self, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the encoded elements, shape (n,)."""
        results = {self._source: elements}
        for key, task in self._steps:  # a scheduler of dask would take longer than the tasks do
            results[key] = task(results)
        return results[self._result]


def _tasks_between(graph: Mapping[Any, Any], source: Any, result: Any) -> dict[Any, set[Any]]:
    """Return the tasks from which `result` is computed, down to `source`, each with the tasks that it depends on.

    `source`, which is another task than `result`, is not among them.
    """
    dependencies: dict[Any, set[Any]] = {}
    waiting = [result]
    while waiting:
        key = waiting.pop()
        dependencies[key] = {*get_dependencies(graph, key)}
        waiting += dependencies[key] - dependencies.keys() - {source}
    return dependencies


class CoderPacker:
    """Encodes NumPy elements with xarray's coders, as for a variable of this name, attributes and encoding."""

    def __init__(self, name: Any, attrs: Mapping[str, Any], encoding: Mapping[str, Any], zarr_format: int) -> None:
        self._name = name
        self._zarr_format = zarr_format
        self._attrs = dict(attrs)
        self._encoding = dict(encoding)

    def __call__(self, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the encoded elements, shape (n,)."""
        variable = Variable("element", elements, dict(self._attrs), dict(self._encoding))
        encoded: npt.NDArray[Any] = (
            _cached_encoding_store(self._zarr_format).encode_variable(variable, self._name).values
        )
        return encoded


def encoding_store(zarr_format: int | None) -> ZarrStore:
    """Return an empty store of xarray in memory, which can encode variables for a Zarr format."""
    return get_writable_zarr_store(MemoryStore(), zarr_format=zarr_format, consolidated=False)


_cached_encoding_store = cache(encoding_store)
"""The store for a Zarr format. Each slab needs one, and making it takes several times as long as encoding the slab."""


@record
class SlabPacker:
    """Packs dask blocks slab by slab."""

    pack: Pack
    """Encodes the elements of a slab."""
    dtype: np.dtype[Any]
    """Stored dtype."""
    check: FitCheck | None
    """Check of the values; None if they are not checked."""
    starts: tuple[tuple[int, ...], ...]
    """For each axis, the index of the first element of each block."""

    def __call__(self, block: npt.NDArray[Any], block_id: Sequence[int]) -> npt.NDArray[Any]:
        """Return an encoded block with the memory layout of `block` (C, Fortran or any other).

        Raises `OptionError` if a value does not fit the stored dtype. `block_id` is the block's number along each axis.
        """
        slabs = np.nditer(
            [block, None],
            flags=["external_loop", "buffered", "zerosize_ok"],
            op_flags=[["readonly"], ["writeonly", "allocate"]],
            op_dtypes=[block.dtype, self.dtype],
            buffersize=_SLAB_LENGTH,
        )
        first = _first_index(self.starts, block_id)
        with slabs:
            for values, out in slabs:
                out[...] = self.pack(values)
                if self.check is not None:
                    self.check.require_fit(values, out, block=block, first=first)
            return slabs.operands[1]  # the array that `nditer` has allocated


@record
class BlockChecker:
    """Checks dask blocks that xarray has packed."""

    check: FitCheck
    starts: tuple[tuple[int, ...], ...]
    """For each axis, the index of the first element of each block."""

    def __call__(self, packed: npt.NDArray[Any], block: npt.NDArray[Any], block_id: Sequence[int]) -> npt.NDArray[Any]:
        """Return a packed block. Raises `OptionError` if a value of `block` does not fit the stored dtype."""
        self.check.require_fit(block, packed, first=_first_index(self.starts, block_id))
        return packed


def _first_index(starts: Sequence[Sequence[int]], block_id: Sequence[int]) -> list[int]:
    """Return the indices of a block's first element."""
    return [axis_starts[number] for axis_starts, number in zip(starts, block_id, strict=True)]


def _try_pack(pack: Pack, dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return an encoded zero; None if xarray cannot encode it.

    As a time, for example, zero is midnight of 1970-01-01, which cannot be encoded as a whole number of
    "days since 1970-01-01 12:00".
    """
    try:
        return pack(np.zeros(1, dtype))
    except Exception:  # noqa: BLE001  # xarray may raise anything
        return None


def pack_blocks(encoded: da.Array, unencoded: da.Array, pack: Pack | None, check: FitCheck | None) -> da.Array:
    """Return an encoded dask array whose blocks are packed in slabs where that is possible, and checked.

    An array that xarray has not changed is returned as it is, and not checked. So is one whose blocks differ from those
    of `unencoded`, since the two cannot be compared block by block. xarray does not change the blocks of numbers and
    times.

    Parameters
    ----------
    encoded : dask.array.Array
        The array as xarray has encoded it.
    unencoded : dask.array.Array
        The array before xarray encoded it.
    pack : callable or None
        Encodes elements. None for the operations of the graph of `encoded`.
    check : FitCheck or None
        Check of the values.

    Returns
    -------
    dask.array.Array
        An array with the dtype and blocks of `encoded`.
    """
    is_unchanged = encoded.name == unencoded.name
    if is_unchanged or encoded.numblocks != unencoded.numblocks:
        return encoded
    starts = tuple([tuple(accumulate(lengths[:-1], initial=0)) for lengths in unencoded.chunks])
    if pack is None:
        from_graph = GraphPacker(encoded, unencoded)
        pack = from_graph if from_graph.has_one_input else None
    sample = None if pack is None else _try_pack(pack, unencoded.dtype)
    options = {"dtype": encoded.dtype, "meta": np.empty((0,) * encoded.ndim, encoded.dtype)}
    packed: da.Array
    # Elements cannot be packed one by one if, for example, each column has an offset of its own.
    if pack is None or sample is None or sample.shape != (1,) or sample.dtype != encoded.dtype:
        if check is None:
            return encoded
        checker = BlockChecker(check=check, starts=starts)
        packed = da.map_blocks(checker, encoded, unencoded, name=f"checked-{encoded.name}", **options)
        return packed
    packer = SlabPacker(pack=pack, dtype=encoded.dtype, check=check, starts=starts)
    packed = da.map_blocks(packer, unencoded, name=f"packed-{encoded.name}", **options)
    return packed
