"""Finds the stored arrays that dask's blocks are made of, in the graph, without running any task.

A block that only slices, takes and joins what this engine opened is a selection of a stored array. So several stores
that were opened as one along time are one part for each store, whatever was selected since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import dask.array as da
import numpy as np
from dask.task_spec import Alias, DataNode, GraphNode, Task, TaskRef
from dask.utils import ensure_dict
from xarray import Variable
from xarray.core import indexing

from xarray_gpuzarr.backend.chunking import BlockReader
from xarray_gpuzarr.backend.lazy_array import data_of
from xarray_gpuzarr.training.parts import Part, Parts, UnresolvedError
from xarray_gpuzarr.training.rows import IN_TURNS, BlockRow, cut_rows, join_rows


def find_parts(variable: Variable) -> Parts:
    """Return the selections of stored arrays that a variable is made of. No I/O.

    An `UnresolvedError` says that it is in memory, is computed, or was not opened by this engine.
    """
    data: Any = data_of(variable)
    while isinstance(data, indexing.CopyOnWriteArray | indexing.MemoryCachedArray):
        data = data.array
    if not isinstance(data, da.Array):
        return Parts.of(Part.of(data))
    graph, original = data.dask, f"original-{data.name}"  # as `dask.array.from_array` names it
    if graph.dependencies.get(data.name) == {original}:  # it was only chunked: its tasks need not be made for that
        reader = dict(graph.layers[original]).get(original)
        reader = getattr(reader, "value", reader)
        if isinstance(reader, BlockReader) and (reader.shape, reader.dtype) == (data.shape, data.dtype):
            return Parts.of(Part.of(reader.array))
    grid = np.empty(data.numblocks, object)
    traced = _Traced(ensure_dict(data.dask))
    for block in product(*map(range, grid.shape)):
        row = grid[block] = traced.row((data.name, *block))
        if row.shape != tuple(axis[i] for axis, i in zip(data.chunks, block, strict=True)):
            raise UnresolvedError("dask does not know the lengths of its chunks")
        for part in row.parts:
            if part.lazy.dtype != data.dtype or part.lazy.device != grid.flat[0].parts[0].lazy.device:
                raise UnresolvedError("its blocks have several dtypes, or live on several devices")
    parts = cut_rows(grid, data.chunks).merged()
    if len({id(part.lazy) for part in parts.grid.flat}) < parts.grid.size:  # a chunk could be read for several parts
        raise UnresolvedError(IN_TURNS)
    return parts


class _Traced:
    """Follows blocks of a graph down to what this engine opened; runs none of its tasks."""

    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self._graph = graph
        self._values: dict[Any, Any] = {}

    def row(self, key: Any) -> BlockRow:
        """Return what the task of a key gives; raises `UnresolvedError`."""
        try:
            return _as_row(self._of_key(key))
        except RecursionError:
            raise UnresolvedError("its graph is too deep") from None

    def _of_key(self, key: Any) -> Any:
        if key not in self._values:
            self._values[key] = self._of_old(self._graph[key])
        return self._values[key]

    def _value(self, node: Any) -> Any:
        """Return the value of what a `dask.task_spec.Task` holds."""
        if isinstance(node, TaskRef | Alias):
            return self._of_key(node.key if isinstance(node, TaskRef) else node.target)
        if isinstance(node, DataNode):
            return _as_row(node.value) if isinstance(node.value, BlockReader) else node.value
        if isinstance(node, Task) and isinstance(node, Iterable):  # a list, tuple, set or dict
            return [self._value(arg) for arg in node.args] if node.dependencies else node({})
        if isinstance(node, Task):
            return _result(node.func, node.args, node.kwargs, self._value)
        return node

    def _of_old(self, node: Any) -> Any:
        """Return the value of a node of the older form, from before `dask.task_spec`: tuples for tasks."""
        if isinstance(node, GraphNode | TaskRef):
            return self._value(node)
        if isinstance(node, BlockReader):
            return _as_row(node)
        if isinstance(node, list):
            return [self._of_old(each) for each in node]
        if isinstance(node, tuple) and node and callable(node[0]):
            return _result(node[0], node[1:], {}, self._of_old)
        try:
            is_key = isinstance(node, str | tuple) and node in self._graph
        except TypeError:  # some of it has no hash
            is_key = False
        return self._of_key(node) if is_key else node


def _result(func: Any, args: Sequence[Any], keywords: Mapping[str, Any], value: Callable[[Any], Any]) -> Any:
    module, name = getattr(func, "__module__", ""), getattr(func, "__name__", type(func).__name__)
    carry_out = _KNOWN.get((str(module).partition(".")[0].lstrip("_"), name))
    if carry_out is None or keywords.get("lock"):
        raise UnresolvedError(f"dask computes it, with {name}")
    return carry_out(*map(value, args))


def _as_row(value: Any) -> BlockRow:
    if isinstance(value, BlockReader):
        return BlockRow(parts=(Part.of(value.array),))
    if not isinstance(value, BlockRow):
        raise UnresolvedError("some of it is in memory, or was not opened by this engine")
    return value


def _sliced(array: Any, index: Any, asarray: Any = False, lock: Any = False) -> BlockRow:  # noqa: ARG001, FBT002
    """Do what NumPy does for integers, slices and one array."""
    row = _as_row(array)
    key = tuple(index) if isinstance(index, tuple) else (index,)
    if lock or any(i is None for i in key):
        raise UnresolvedError("dask adds an axis to it" if not lock else "dask reads it under a lock")
    full = indexing.expanded_indexer(key, len(row.shape))
    n_arrays = sum(isinstance(k, list | np.ndarray) for k in full)
    if n_arrays > 1 or (n_arrays and any(isinstance(k, int | np.integer) for k in full)):
        raise UnresolvedError("dask takes points of it")
    for axis in reversed(range(len(full))):  # integers drop axes
        row = row.taking(axis, full[axis])
    return row


def _rechunked(arrays: Sequence[Any], shape: Sequence[int]) -> BlockRow:
    """Do what `dask.array.core.concatenate_shaped` does."""
    rows = list(map(_as_row, arrays))
    for axis in reversed(range(len(shape))):
        n = shape[axis]
        rows = [join_rows(rows[i : i + n], axis) for i in range(0, len(rows), n)]
    return rows[0]


_KNOWN: Mapping[tuple[str, str], Callable[..., BlockRow]] = {
    **{("dask", name): _sliced for name in ("getter", "getter_inline", "getter_nofancy", "getitem")},
    ("operator", "getitem"): _sliced,
    ("dask", "_getitem"): lambda array, index: _sliced(array, index[1]),
    ("dask", "concatenate_arrays"): lambda arrays, sorter, axis: join_rows(list(map(_as_row, arrays)), axis).taking(
        axis, np.argsort(sorter[1])
    ),
    ("dask", "concatenate_shaped"): _rechunked,
}
"""Package and name of functions whose results are selections -> what does the same to rows of parts."""
