"""`explain_variables`: a `Row` for each variable, which says how it is stored, where it is decoded, and why.

Only metadata that is in memory is used. Accessors and the command line call this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xarray import IndexVariable, Variable

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.block_reader import find_block_reader, find_block_readers
from xarray_gpuzarr.backend.lazy_array import LazyArray, data_of, find_lazy_array
from xarray_gpuzarr.process.device_options import N_AT_ONCE, resource_options
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS, ArraySpec
from xarray_gpuzarr.stored.metadata import array_codecs

_MIN_CHUNKS = 2 * N_AT_ONCE
"""Smallest number of chunks in a task that keeps a GPU busy: twice as many as it decodes at once, so that others are
decoded while the slowest of a batch ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one variable is stored and decoded."""

    variable: str
    """Name. In the rows of a tree, the path of its group comes before it, from the group that was explained:
    ``sub/t2m``."""
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    """Shape of the variable, in elements."""
    stored_dtype: str | None
    """Name of the dtype in the store; None if the variable does not come from a store."""
    dtype: str
    """Name of the dtype after decoding."""
    shard_shape: tuple[int, ...] | None = None
    """Shape of one shard of the stored array, in elements; None if it is not sharded."""
    n_shards: int | None = None
    """Number of shards in the grid of the stored array; None if it is not sharded."""
    chunk_shape: tuple[int, ...] | None = None
    """Shape of one inner chunk of the stored array, in elements; None if another library reads the array."""
    n_chunks: int | None = None
    """Number of inner chunks in the grid of the stored array; None if another library reads the array."""
    codecs: str = ""
    """Codecs of an inner chunk, in the order of encoding."""
    cast: str = ""
    """Conversion of stored numbers to physical values."""
    where: str
    """Where chunks are decoded: ``"host"``, ``"cuda"``, ``"host, by zarr-python"``, ``"host, by xarray"`` ..."""
    why: str = ""
    """The reason; empty if the variable is decoded in the usual way."""
    storage: str = ""
    """How stored bytes reach a GPU: ``"gds"``, or ``"posix"`` and why; empty if there is no choice."""
    load: str = ""
    """Why a read does not keep a GPU busy, and what would help; empty if the GPU is kept busy."""
    ahead: str = ""
    """How many bytes are requested before the dask tasks that need them run; empty if none are, as for local files."""
    decompressed_nbytes: int | None = None
    """Size of all elements in the stored dtype, before compression, in bytes."""
    decoded_nbytes: int
    """Size of all elements after decoding, in bytes."""


def explain_variables(variables: Mapping[Any, Variable], prefix: str = "") -> tuple[Row, ...]:
    """Return a row for each variable, in their order. `prefix` comes before the names."""
    return tuple(_row(f"{prefix}{name}", variable) for name, variable in variables.items())


def lazy_array_of(variable: Variable) -> LazyArray | None:
    """Return the array of this engine from which a variable is read, lazily or by dask; None if there is none."""
    data = data_of(variable)
    lazy = find_lazy_array(data)
    if lazy is not None:
        return lazy
    reader = find_block_reader(data)
    return None if reader is None else reader.lazy


def _row(name: str, variable: Variable) -> Row:
    """Return the row of a variable, which has few facts unless this engine plans the reads of a stored array."""
    lazy = lazy_array_of(variable)
    if lazy is None:
        where, why = _elsewhere(variable)
        return _bare_row(name, variable, variable.encoding.get("dtype"), where, why)
    route = lazy.route
    stored = lazy.stored
    why = "; ".join(filter(None, (route.why, _derivation(variable, lazy))))
    if not isinstance(stored.spec, ArraySpec):
        array = stored.zarr_array
        assert array is not None  # zarr-python reads an `Unplanned` array
        row = _bare_row(name, variable, array.dtype, route.where, why)
        return replace(row, codecs=str(array_codecs(array.metadata)), cast=str(stored.cast))
    spec = stored.spec
    sharded = spec.index is not None
    row = _bare_row(name, variable, spec.numpy_dtype, route.where, why)
    return replace(
        row,
        shard_shape=spec.grid.shard_shape if sharded else None,
        n_shards=math.prod(spec.grid.n_shards) if sharded else None,
        chunk_shape=spec.grid.chunk_shape,
        n_chunks=math.prod(spec.grid.n_chunks),
        codecs=str(spec.codecs),
        cast=str(stored.cast),
        storage=lazy.storage,
        load=_why_not_busy(variable, spec) if route.where == "cuda" else "",
        ahead=_describe_ahead(data_of(variable)),
    )


def _derivation(variable: Variable, lazy: LazyArray) -> str:
    """Return how a variable is derived from stored arrays, of which `lazy` is the first; empty if it is that array."""
    n_sources = sum(1 for _ in find_block_readers(data_of(variable)))
    if n_sources > 1:
        return f"joined or computed from {n_sources} stored arrays; this is the first, of shape {lazy.shape}"
    if variable.shape != lazy.shape or variable.dtype != lazy.dtype:
        return f"selected or computed from a stored array of shape {lazy.shape}"
    return ""


def _bare_row(name: str, variable: Variable, stored_dtype: Any, where: str, why: str) -> Row:
    """Return a row without facts about chunks and codecs."""
    n = math.prod(variable.shape)
    # xarray gives `str` as the stored dtype of text of variable length, whose elements have no size.
    stored = None if stored_dtype is None or stored_dtype is str else np.dtype(stored_dtype)
    return Row(
        variable=name,
        dims=tuple(map(str, variable.dims)),
        shape=variable.shape,
        stored_dtype=None if stored is None else stored.name,
        dtype=variable.dtype.name,
        where=where,
        why=why,
        decompressed_nbytes=None if stored is None else n * stored.itemsize,
        decoded_nbytes=n * variable.dtype.itemsize,
    )


def _why_not_busy(variable: Variable, spec: ArraySpec) -> str:
    """Return that a task has too few chunks to keep a GPU busy, and what would help; empty if it has enough."""
    blocks = variable.chunks
    # If an operation has dropped or added an axis, the blocks cannot be compared with the stored chunks.
    if blocks is None or len(blocks) != spec.grid.ndim:
        return ""
    block_shape = [max(lengths, default=0) for lengths in blocks]
    n = math.prod(-(-length // chunk) for length, chunk in zip(block_shape, spec.grid.chunk_shape, strict=True))
    # A task that reads the whole array cannot have more chunks. A task that has no chunks reads nothing.
    if not 0 < n < min(_MIN_CHUNKS, math.prod(spec.grid.n_chunks)):
        return ""
    factor = -(-_MIN_CHUNKS // n)  # so many of these tasks together have enough chunks
    remedy = "larger dask chunks"
    for dim, length, block_length in zip(variable.dims, variable.shape, block_shape, strict=True):
        if factor * block_length <= length:
            remedy = f"chunks={{{dim!r}: {factor * block_length}}}"
            break
    # Up to `n_reads` reads run at once on a GPU, each on a thread of its own.
    if factor <= resource_options().n_reads:
        remedy += f", or {factor} threads,"
    chunks = "1 chunk" if n == 1 else f"{n} chunks"
    return f"a task has {chunks}, and a GPU decodes some {N_AT_ONCE} at once: {remedy} would keep it busy"


def _describe_ahead(data: Any) -> str:
    """Return how many bytes are requested before the tasks of a dask array run; empty if nothing can be."""
    reader = find_block_reader(data)
    if reader is None or reader.requests_ahead() is None:
        return ""
    nbytes = fetch_options().ahead_nbytes
    if not nbytes:
        return "each task of dask waits for its own bytes: ahead_nbytes is 0"
    return f"up to {nbytes / 1024**2:.4g} MiB are asked for before dask's tasks decode them"


def _blocks_of_others(data: Any) -> tuple[str, str]:
    """Return where the blocks of a dask array come from, and why this engine does not read them.

    Whether they are in memory is seen from the first task of the first layer of the graph that lists tasks.
    """
    layers = [getattr(layer, "mapping", {}) for layer in getattr(data.dask, "layers", {}).values()]
    first_layer: Mapping[Any, Any] = next(filter(None, layers), {})
    first_task = next(iter(first_layer.values()), None)
    block = getattr(first_task, "value", first_task)  # dask wraps a block in memory in a `DataNode`
    if type(block).__module__.startswith("distributed."):  # a future: persisted on a cluster
        where = "in memory of dask's workers"
    # A NumPy scalar, or an array of any library but dask: persisted in this process.
    elif isinstance(block, np.generic) or (hasattr(block, "__array_function__") and not hasattr(block, "dask")):
        where = "in memory"
    else:
        return "dask", "not opened by this engine"
    if len(layers) == 1:  # the array itself was persisted, not one that it is computed from
        return where, "persisted: blocks of a dask array that are read already"
    return "dask", f"computed from blocks that are {where}"


def _elsewhere(variable: Variable) -> tuple[str, str]:
    """Return where a variable that does not come from an array of this engine is decoded, and why."""
    if isinstance(variable, IndexVariable):
        return "host, by xarray", "index coordinate"
    in_memory = array_in_memory(variable)
    if in_memory is not None:
        kind = type(in_memory)
        return "in memory", f"already loaded, as {kind.__module__}.{kind.__qualname__}"
    if variable.dtype.kind in "mM":
        return "host, by xarray", "times stay with xarray"
    if variable.dtype.kind not in NUMERIC_KINDS:
        return "host, by xarray", "text and objects stay with xarray"
    if hasattr(data_of(variable), "dask"):
        return _blocks_of_others(data_of(variable))
    return "host, by xarray", "opened by another engine, or with CF attributes that are not plain arithmetic"
