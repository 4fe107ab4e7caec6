"""Blocks of a dask array that are read straight into one NumPy array when all of it is computed.

dask reads every block into memory of its own, then copies all of them into the result on one thread: twice the memory,
and more time than the read itself where chunks are small. Here the tasks of one computation share the result instead.
They exist only inside that computation. Whatever leaves the process by pickle, and whatever is made from the array, is
plain dask. Called by `backend.chunking`.
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
    """Slicing it reads; see `backend.chunking.BlockReader`."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, box: Box) -> Block:
        """Read a box into fresh memory."""

    def read_into(self, box: Box, out: Block) -> None:
        """Read a box into `out`, ndarray of its shape and dtype, any strides."""


class Output:
    """The result of one computation while its blocks are read; in another process, nothing."""

    __slots__ = ("array",)

    def __init__(self, shape: tuple[int, ...] | None = None, dtype: np.dtype[Any] | None = None) -> None:
        self.array: Block | None = None if shape is None or dtype is None else host_memory.empty(shape, dtype)

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """How the result of computing a whole array is made of its blocks."""

    name: str
    """Of the dask array, and so of the layer of its blocks."""
    chunks: tuple[tuple[int, ...], ...]
    reader: BlockSource

    @property
    def first_block(self) -> tuple[Any, ...]:
        """Key of the first block."""
        return (self.name, *(0 for _ in self.chunks))

    def __call__(self, blocks: Any) -> Any:
        """Do what dask does, where its optimization is off or blocks are needed by others too."""
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
    """The optimization that dask would use, after other tasks for arrays of which all and only that is wanted."""

    def __call__(self, graph: Any, keys: Any, **kwargs: Any) -> Any:
        """Optimize a graph for the keys that are wanted."""
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
    """Return what ``dask.config`` names, or dask's own."""
    return da.Array.__dask_optimize__


def _wholes(graph: HighLevelGraph, keys: Any) -> Iterator[tuple[str, Whole]]:
    """Find the last tasks of arrays that are to be computed whole, and are what they were when they were made.

    ``out=`` and assignment give an array object another graph, and leave it what `compute_into_one_output` gave it.
    """
    for key in flatten([keys]):
        layer = graph.layers.get(key) if isinstance(key, str) else None
        task = layer.get(key) if isinstance(layer, MaterializedLayer) else None
        if isinstance(task, Task) and isinstance(task.func, Whole) and task.func.first_block in task.dependencies:
            yield key, task.func


def _into_one_output(graph: HighLevelGraph, key: str, whole: Whole) -> HighLevelGraph:
    """Let the blocks be read into one array; keys are new, for these blocks are of use to nobody else."""
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
    """Return `array`, changed: computing all of it reads its blocks straight into the result.

    Parameters
    ----------
    array : dask.array.Array
        Its blocks are what `reader` gives for their boxes: NumPy arrays, at least one element.
    reader : BlockSource

    Notes
    -----
    dask asks a collection, not its class, for these two, and xarray takes no dask array of a class of its own beside
    one of another class. All that dask makes from the array, copies included, does without them.
    """
    whole = Whole(name=array.name, chunks=array.chunks, reader=reader)
    vars(array).update(__dask_postcompute__=lambda: (whole, ()), __dask_optimize__=IntoOneOutput())
    return array
