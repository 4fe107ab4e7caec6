"""Read the blocks of a dask array straight into one NumPy array when all of it is computed.

dask reads each block into new memory and copies all blocks into the result on one thread: twice the memory, and more
time than the read itself if chunks are small. Here the tasks of one computation share the result. They exist only
inside that computation. Pickles, and arrays that are made from the array, are plain dask. Called by `backend.chunking`.
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
    """An array whose slices are read; see `backend.chunking.BlockReader`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, box: Box) -> Block:
        """Read a box into new memory."""

    def read_into(self, box: Box, out: Block) -> None:
        """Read a box into `out`, ndarray of its shape and dtype, any strides."""


class Output:
    """The result of one computation, into which blocks are read; empty in another process."""

    __slots__ = ("array",)

    def __init__(self, shape: tuple[int, ...] | None = None, dtype: np.dtype[Any] | None = None) -> None:
        self.array: Block | None = None if shape is None or dtype is None else host_memory.empty(shape, dtype)

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The last task of computing a whole array: joins its blocks."""

    name: str
    """Name of the dask array, and so of the layer of its blocks."""
    chunks: tuple[tuple[int, ...], ...]
    reader: BlockSource

    def __call__(self, blocks: Any) -> Any:
        """Join blocks as dask does, where its optimization is off or other tasks need the blocks too."""
        return finalize(blocks)

    def read(self, box: Box, output: Output) -> Block:
        """Read a block, if possible into its place in the result."""
        if output.array is None:
            return self.reader[box]
        block = output.array[box]
        self.reader.read_into(box, block)
        return block

    def join(self, blocks: list[Block], output: Output) -> Block:
        """Return the result; copies only blocks that another process read."""
        array = output.array
        whole = host_memory.empty(self.reader.shape, self.reader.dtype) if array is None else array
        for box, block in zip(slices_from_chunks(self.chunks), blocks, strict=True):
            place = whole[box]
            if not np.may_share_memory(block, place):
                place[...] = block
        return whole


class IntoOneOutput:
    """An optimization of dask that reads whole arrays into one output, and then applies dask's own."""

    def __call__(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        """Optimize a graph for the requested keys."""
        if isinstance(graph, HighLevelGraph):
            for key, whole in list(_wholes(graph, keys)):
                if graph.dependents.get(whole.name) == {key}:
                    graph = _into_one_output(graph, key, whole)
        return _plain_optimization()(graph, keys, **kwargs)

    # dask optimizes collections together if their optimizations are equal, and only then does it see that two of them
    # need the same block and reads it once.
    def __eq__(self, other: object) -> bool:
        return other is _plain_optimization() or isinstance(other, IntoOneOutput)

    def __hash__(self) -> int:
        return hash(_plain_optimization())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _plain_optimization, ()


def _plain_optimization() -> Any:
    """Return the optimization that ``dask.config`` names, or dask's own."""
    return da.Array.__dask_optimize__


def _wholes(graph: HighLevelGraph, keys: Any) -> Iterator[tuple[str, Whole]]:
    """Yield the last tasks of arrays that are computed whole, with their keys.

    ``out=`` and assignment give an array object another graph, but keep what `compute_into_one_output` set on it: each
    task is checked.
    """
    for key in flatten([keys]):
        layer = graph.layers.get(key) if isinstance(key, str) else None
        task = layer.get(key) if isinstance(layer, MaterializedLayer) else None
        if isinstance(task, Task) and isinstance(task.func, Whole):
            first_block = (task.func.name, *(0 for _ in task.func.chunks))
            if first_block in task.dependencies:
                yield key, task.func


def _into_one_output(graph: HighLevelGraph, key: str, whole: Whole) -> HighLevelGraph:
    """Return a graph in which the blocks are read into one array, under new keys that no other task uses."""
    name = f"{whole.name}-{uuid4().hex}"
    whole_key, output_key = f"whole-{name}", f"output-{name}"
    tasks: dict[Any, Any] = {
        whole_key: DataNode(whole_key, whole),
        output_key: Task(output_key, Output, whole.reader.shape, whole.reader.dtype),
    }
    boxes = slices_from_chunks(whole.chunks)
    blocks: list[Any] = [(name, *block) for block in product(*(range(len(axis)) for axis in whole.chunks))]
    for block, box in zip(blocks, boxes, strict=True):
        tasks[block] = Task(block, Whole.read, TaskRef(whole_key), box, TaskRef(output_key))
    join = Task(key, Whole.join, TaskRef(whole_key), List(*map(TaskRef, blocks)), TaskRef(output_key))
    layers = {**graph.layers, name: MaterializedLayer(tasks), key: MaterializedLayer({key: join})}
    return HighLevelGraph(layers, {**graph.dependencies, name: set(), key: {name}})


def compute_into_one_output(array: da.Array, reader: BlockSource) -> da.Array:
    """Return `array`, changed so that computing all of it reads its blocks straight into the result.

    The blocks of `array` are NumPy arrays with at least one element, read by `reader`. dask looks up these two
    attributes on the array, not on its class, and xarray does not mix dask arrays of different classes. Arrays that
    dask makes from this one, copies included, lack them.
    """
    whole = Whole(name=array.name, chunks=array.chunks, reader=reader)
    vars(array).update(__dask_postcompute__=lambda: (whole, ()), __dask_optimize__=IntoOneOutput())
    return array
