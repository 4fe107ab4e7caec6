"""Computing all of a dask array: its blocks are read straight into one NumPy array.

By default, dask reads each block into new memory, and copies all blocks into the result on one thread. That takes twice
the memory, and more time than the read itself if chunks are small. Here the tasks of one computation share the result.
These tasks exist only inside that computation: pickles, and arrays made from the array, are plain dask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol, Self
from uuid import uuid4

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.array.core import finalize, slices_from_chunks
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import DataNode, List, Task, TaskRef

from xarray_gpuzarr.process import host_memory

Block = npt.NDArray[Any]
Box = tuple[slice, ...]


class BlockSource(Protocol):
    """An array whose boxes are read. `backend.block_reader.BlockReader` implements it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, box: Box) -> Block:
        """Read a box into new memory."""

    def read_into(self, box: Box, out: Block) -> None:
        """Read a box into `out`, a NumPy array of the box's shape and of the array's dtype, with any strides."""


class Output:
    """The result of one computation, into which blocks are read. Unpickled in another process, its `array` is None."""

    __slots__ = ("array",)

    def __init__(self, shape: tuple[int, ...] | None = None, dtype: np.dtype[Any] | None = None) -> None:
        self.array: Block | None = None if shape is None or dtype is None else host_memory.empty(shape, dtype)

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeArray:
    """A dask array that is computed as a whole. The last task of its computation calls it to join the blocks."""

    name: str
    """Name of the dask array, which is also the name of the graph's layer with its blocks."""
    chunks: tuple[tuple[int, ...], ...]
    """Lengths of the blocks along each axis."""
    reader: BlockSource
    """Reads the blocks."""

    def __call__(self, blocks: Any) -> Any:
        """Join blocks as dask does. Used if the graph was not optimized, or if other tasks need the blocks, too."""
        return finalize(blocks)

    def read(self, box: Box, output: Output) -> Block:
        """Return a block. It is read into its place in the result, or into new memory in another process."""
        if output.array is None:
            return self.reader[box]
        block = output.array[box]
        self.reader.read_into(box, block)
        return block

    def join(self, blocks: list[Block], output: Output) -> Block:
        """Return the result. Only blocks that another process has read are copied into it."""
        array = output.array
        if array is None:
            array = host_memory.empty(self.reader.shape, self.reader.dtype)
        for box, block in zip(slices_from_chunks(self.chunks), blocks, strict=True):
            destination = array[box]
            if not np.may_share_memory(block, destination):
                destination[...] = block
        return array


class OneOutputOptimization:
    """An optimization of dask graphs: whole arrays are read into one output. The default optimization follows."""

    def __call__(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        """Optimize a graph for the requested keys."""
        if isinstance(graph, HighLevelGraph):
            for key, whole_array in list(_whole_arrays(graph, keys)):
                if graph.dependents.get(whole_array.name) == {key}:  # no other task needs the blocks
                    graph = _share_output(graph, key, whole_array)
        return _default_optimization()(graph, keys, **kwargs)

    # dask optimizes several arrays together only if their optimizations are equal. Only then does it notice that two of
    # them need the same block, and read it once.
    def __eq__(self, other: object) -> bool:
        return other is _default_optimization() or isinstance(other, OneOutputOptimization)

    def __hash__(self) -> int:
        return hash(_default_optimization())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _default_optimization, ()


def _default_optimization() -> Any:
    """Return the optimization that ``dask.config`` names, or dask's own."""
    return da.Array.__dask_optimize__


def _whole_arrays(graph: HighLevelGraph, keys: Any) -> Iterator[tuple[str, WholeArray]]:
    """Yield the arrays that are computed as a whole, with the keys of their last tasks.

    ``out=`` and assignment give a dask array another graph, but keep the attributes that `compute_into_one_output` has
    set on it. An array is yielded only if its last task still depends on its blocks.
    """
    for key in flatten([keys]):
        # The last task of a whole array calls what `__dask_postcompute__` returned. dask puts it into a layer of its
        # own, whose name is the key of the task.
        layer = graph.layers.get(key) if isinstance(key, str) else None
        task = layer.get(key) if isinstance(layer, MaterializedLayer) else None
        if isinstance(task, Task) and isinstance(task.func, WholeArray):
            first_block = (task.func.name, *(0 for _ in task.func.chunks))
            if first_block in task.dependencies:
                yield key, task.func


def _share_output(graph: HighLevelGraph, key: str, whole: WholeArray) -> HighLevelGraph:
    """Return a graph in which the blocks are read into one array, under new keys that no other task uses."""
    name = f"{whole.name}-{uuid4().hex}"
    whole_key = f"whole-{name}"
    output_key = f"output-{name}"
    tasks: dict[Any, Any] = {
        whole_key: DataNode(whole_key, whole),
        output_key: Task(output_key, Output, whole.reader.shape, whole.reader.dtype),
    }
    boxes = slices_from_chunks(whole.chunks)
    blocks: list[Any] = [(name, *block) for block in product(*(range(len(axis)) for axis in whole.chunks))]
    for block, box in zip(blocks, boxes, strict=True):
        tasks[block] = Task(block, WholeArray.read, TaskRef(whole_key), box, TaskRef(output_key))
    join = Task(key, WholeArray.join, TaskRef(whole_key), List(*map(TaskRef, blocks)), TaskRef(output_key))
    layers = {**graph.layers, name: MaterializedLayer(tasks), key: MaterializedLayer({key: join})}
    return HighLevelGraph(layers, {**graph.dependencies, name: set(), key: {name}})


def compute_into_one_output(array: da.Array, reader: BlockSource) -> da.Array:
    """Change a dask array so that computing all of it reads its blocks straight into the result.

    Two attributes that dask looks up are set on the array. A subclass of `dask.array.Array` would not do, since xarray
    does not mix dask arrays of different classes. Arrays that dask makes from this one, also copies, do not have the
    attributes.

    Parameters
    ----------
    array : dask.array.Array
        Its blocks are NumPy arrays with at least one element.
    reader : BlockSource
        Reads the blocks.

    Returns
    -------
    dask.array.Array
        `array` itself.
    """
    whole = WholeArray(name=array.name, chunks=array.chunks, reader=reader)
    vars(array).update(__dask_postcompute__=lambda: (whole, ()), __dask_optimize__=OneOutputOptimization())
    return array
