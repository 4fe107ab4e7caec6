"""`find_parts`: finds in dask's graph the stored arrays that a variable is made of. Runs no task, and does no I/O.

A block of dask that only slices, indexes and joins arrays of this engine is a selection of stored arrays. So several
stores that were opened as one variable along time become one `Part` each, whatever was selected of the variable since.
`_GraphTracer` follows the tasks of a block to a `BlockRow`: the parts of the block, one after another along an axis.
`_SELECTING` has, for each function of dask that only selects, one that does the same to a `BlockRow`.
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

from xarray_gpuzarr.backend.block_reader import BlockReader
from xarray_gpuzarr.backend.lazy_array import data_of
from xarray_gpuzarr.training.parts import Part, Parts, UnresolvedError
from xarray_gpuzarr.training.rows import INTERLEAVED, BlockRow, cut_rows, join_rows

_UNDER_A_LOCK = "dask reads it under a lock"
"""Why a variable is not read in parts: reads of this engine would not hold the lock that the user has given to dask."""


def find_parts(variable: Variable) -> Parts:
    """Return the selections of stored arrays that a variable is made of. No I/O.

    Raises
    ------
    UnresolvedError
        The variable is in memory, is computed, was not opened by this engine, or is no grid of parts.
    """
    data: Any = data_of(variable)
    while isinstance(data, indexing.CopyOnWriteArray | indexing.MemoryCachedArray):
        data = data.array
    if not isinstance(data, da.Array):
        return Parts.single(Part.from_indexed(data))
    whole_array = _find_whole_array(data)
    if whole_array is not None:
        return Parts.single(Part.from_indexed(whole_array))
    parts = _trace_blocks(data)
    n_arrays = len({id(part.lazy) for part in parts.grid.flat})
    if n_arrays < parts.grid.size:  # an array has several parts, each of which might read the same chunk
        raise UnresolvedError(INTERLEAVED)
    return parts


def _find_whole_array(data: da.Array) -> Any:
    """Return the array that dask has only chunked, so that its tasks need not be made. None if dask did more."""
    original = f"original-{data.name}"  # the name that `dask.array.from_array` gives it
    graph = data.dask
    if graph.dependencies.get(data.name) != {original}:
        return None
    reader = dict(graph.layers[original]).get(original)
    reader = getattr(reader, "value", reader)  # dask may have wrapped it in a `DataNode`
    # A dask array may be declared with another shape or dtype than those of its graph.
    if isinstance(reader, BlockReader) and (reader.shape, reader.dtype) == (data.shape, data.dtype):
        return reader.array
    return None


def _trace_blocks(data: da.Array) -> Parts:
    """Return the parts of all blocks of a dask array."""
    rows = np.empty(data.numblocks, object)
    tracer = _GraphTracer(ensure_dict(data.dask))
    for block in product(*map(range, rows.shape)):
        row = tracer.row((data.name, *block))
        rows[block] = row
        # A length that dask does not know is NaN, which equals nothing.
        if row.shape != tuple(lengths[number] for lengths, number in zip(data.chunks, block, strict=True)):
            raise UnresolvedError("dask does not know the lengths of its chunks")
        first = rows.flat[0].parts[0]
        for part in row.parts:
            if part.lazy.dtype != data.dtype or part.lazy.device != first.lazy.device:
                raise UnresolvedError("its blocks have several dtypes, or live on several devices")
    return cut_rows(rows, data.chunks).merged()


class _GraphTracer:
    """Follows the tasks of a graph to the arrays that this engine opened, and runs none of them.

    The value of a task is a `BlockRow`. A task that returns anything but a selection of stored arrays raises
    `UnresolvedError`. The value of an argument that is no task, such as an index, is the argument itself.
    """

    def __init__(self, graph: Mapping[Any, Any]) -> None:
        self._graph = graph
        self._values: dict[Any, Any] = {}

    def row(self, key: Any) -> BlockRow:
        """Return the parts that the block of a key consists of.

        Raises
        ------
        UnresolvedError
            The block is not made of selections alone.
        """
        try:
            return _as_row(self._value_of_key(key))
        except RecursionError:
            raise UnresolvedError("its graph is too deep") from None

    def _value_of_key(self, key: Any) -> Any:
        if key not in self._values:
            self._values[key] = self._value_of_any_node(self._graph[key])
        return self._values[key]

    def _value_of_node(self, node: Any) -> Any:
        """Return the value of a node of `dask.task_spec`, or of an argument of one."""
        if isinstance(node, TaskRef):
            return self._value_of_key(node.key)
        if isinstance(node, Alias):
            return self._value_of_key(node.target)
        if isinstance(node, DataNode):
            return _as_row(node.value) if isinstance(node.value, BlockReader) else node.value
        if isinstance(node, Task) and isinstance(node, Iterable):  # a list, tuple, set or dict
            # One with tasks is a sequence of blocks, for which a list will do. One without is an argument such as an
            # index, whose type matters: calling the node returns it as it is.
            has_tasks = bool(node.dependencies)
            return [self._value_of_node(arg) for arg in node.args] if has_tasks else node({})
        if isinstance(node, Task):
            return _select(node.func, node.args, node.kwargs, self._value_of_node)
        return node

    def _value_of_any_node(self, node: Any) -> Any:
        """Return the value of a node, also of one in the form before `dask.task_spec`, in which a task is a tuple."""
        if isinstance(node, GraphNode | TaskRef):
            return self._value_of_node(node)
        if isinstance(node, BlockReader):
            return _as_row(node)
        if isinstance(node, list):
            return [self._value_of_any_node(element) for element in node]
        if isinstance(node, tuple) and node and callable(node[0]):
            return _select(node[0], node[1:], {}, self._value_of_any_node)
        try:
            is_key = isinstance(node, str | tuple) and node in self._graph
        except TypeError:  # a tuple with an element that cannot be hashed
            is_key = False
        return self._value_of_key(node) if is_key else node


def _select(func: Any, args: Sequence[Any], keywords: Mapping[str, Any], value_of: Callable[[Any], Any]) -> BlockRow:
    """Return the row that a call of one of dask's functions selects; `value_of` returns the value of an argument."""
    module = str(getattr(func, "__module__", ""))
    name = getattr(func, "__name__", type(func).__name__)
    package = module.partition(".")[0].lstrip("_")  # `operator.getitem` says that it is of "_operator"
    select = _SELECTING.get((package, name))
    if select is None:
        raise UnresolvedError(f"dask computes it, with {name}")
    if keywords.get("lock"):
        raise UnresolvedError(_UNDER_A_LOCK)
    # The other keywords, such as ``asarray``, do not change which elements are selected.
    return select(*map(value_of, args))


def _as_row(value: Any) -> BlockRow:
    if isinstance(value, BlockReader):
        return BlockRow(parts=(Part.from_indexed(value.array),))
    if not isinstance(value, BlockRow):
        raise UnresolvedError("some of it is in memory, or was not opened by this engine")
    return value


def _getitem(array: Any, index: Any, asarray: Any = False, lock: Any = False) -> BlockRow:  # noqa: ARG001, FBT002
    """Index a row as NumPy indexes an array: by slices, with either integers or a single array among them.

    The parameters are those of dask's ``getter``.
    """
    row = _as_row(array)
    key = tuple(index) if isinstance(index, tuple) else (index,)
    if lock:
        raise UnresolvedError(_UNDER_A_LOCK)
    if any(element is None for element in key):
        raise UnresolvedError("dask adds an axis to it")
    full_key = indexing.expanded_indexer(key, len(row.shape))
    n_arrays = sum(isinstance(element, list | np.ndarray) for element in full_key)
    has_integers = any(isinstance(element, int | np.integer) for element in full_key)
    if n_arrays > 1 or (n_arrays and has_integers):
        raise UnresolvedError("dask takes points of it")
    for axis in reversed(range(len(full_key))):  # from the last axis on, because integers drop axes
        row = row.select(axis, full_key[axis])
    return row


def _getitem_of_pair(array: Any, pair: Sequence[Any]) -> BlockRow:
    """Do what ``_getitem`` of `dask.array._shuffle` does, which uses only the second item of `pair`, the index."""
    return _getitem(array, pair[1])


def _concatenate_sorted(arrays: Sequence[Any], sorter: Sequence[Any], axis: int) -> BlockRow:
    """Do what ``concatenate_arrays`` of `dask.array._shuffle` does: join, then put elements into another order.

    The second item of `sorter` has the position of each joined element in the result.
    """
    return join_rows(list(map(_as_row, arrays)), axis).select(axis, np.argsort(sorter[1]))


def _concatenate_shaped(arrays: Sequence[Any], shape: Sequence[int]) -> BlockRow:
    """Do what `dask.array.core.concatenate_shaped` does: join arrays that are listed in C order of a grid."""
    rows = list(map(_as_row, arrays))
    for axis in reversed(range(len(shape))):
        n = shape[axis]
        rows = [join_rows(rows[start : start + n], axis) for start in range(0, len(rows), n)]
    return rows[0]


_SELECTING: Mapping[tuple[str, str], Callable[..., BlockRow]] = {
    ("dask", "getter"): _getitem,
    ("dask", "getter_inline"): _getitem,
    ("dask", "getter_nofancy"): _getitem,
    ("dask", "getitem"): _getitem,
    ("operator", "getitem"): _getitem,
    ("dask", "_getitem"): _getitem_of_pair,
    ("dask", "concatenate_arrays"): _concatenate_sorted,
    ("dask", "concatenate_shaped"): _concatenate_shaped,
}
"""Package and name of a function of dask that only selects -> the function that does the same to rows."""
