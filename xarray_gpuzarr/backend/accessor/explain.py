"""`explain_variables`: how each variable is stored, where it is decoded, and why.

Only metadata in memory is read. Called by accessors and by the command line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xarray import IndexVariable, Variable

from xarray_gpuzarr.backend.accessor.array_in_memory import array_in_memory
from xarray_gpuzarr.backend.chunking import find_block_reader, find_block_readers
from xarray_gpuzarr.backend.lazy_array import LazyArray, data_of, find_lazy_array
from xarray_gpuzarr.process.device_options import N_AT_ONCE, resource_options
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.stored.array_spec import NUMERIC_KINDS, ArraySpec
from xarray_gpuzarr.stored.metadata import array_codecs

_KEPT_BUSY = 2 * N_AT_ONCE
"""Chunks that keep a GPU busy: a task ends with its slowest one, while others must fill the gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How one variable is stored and decoded."""

    variable: str
    """Name, after the path of its group if the rows are a tree's."""
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    """Shape of the variable, in elements."""
    stored_dtype: str | None
    """Name of the dtype in the store, or None if the variable does not come from one."""
    dtype: str
    """Name of the dtype after decoding."""
    shard_shape: tuple[int, ...] | None = None
    """Shape of one shard of the stored array, in elements; None if it is not sharded."""
    n_shards: int | None = None
    chunk_shape: tuple[int, ...] | None = None
    """Shape of one inner chunk of the stored array, in elements."""
    n_chunks: int | None = None
    """Inner chunks that hold elements of the stored array."""
    codecs: str = ""
    """Codecs of an inner chunk, in the order in which they encode."""
    cast: str = ""
    """Conversion of stored numbers to physical ones."""
    where: str
    """Where chunks are decoded: ``"host"``, ``"cuda"``, ``"host, by zarr-python"``, ``"host, by xarray"`` ..."""
    why: str = ""
    """The reason; empty for the ordinary way of this engine."""
    storage: str = ""
    """How stored bytes reach a GPU: ``"gds"``, or ``"posix"`` and why; empty where there is nothing to choose."""
    load: str = ""
    """Why one read does not keep a GPU busy, and what would help; empty if it does."""
    ahead: str = ""
    """How much of what dask's tasks read is asked for before they run; empty where that is at hand anyway."""
    decompressed_nbytes: int | None = None
    """Bytes of the elements in their stored dtype, before compression."""
    decoded_nbytes: int
    """Bytes of the elements after decoding."""


def explain_variables(variables: Mapping[Any, Variable], prefix: str = "") -> tuple[Row, ...]:
    """Describe variables in the given order, their names after `prefix`. No I/O."""
    return tuple(_row(f"{prefix}{name}", variable) for name, variable in variables.items())


def lazy_array_of(variable: Variable) -> LazyArray | None:
    """Return the array of this engine that a variable will be read from, lazily or by dask, or None."""
    data = data_of(variable)
    lazy = find_lazy_array(data)
    reader = None if lazy is not None else find_block_reader(data)
    return lazy if reader is None else reader.lazy


def _row(name: str, variable: Variable) -> Row:
    lazy = lazy_array_of(variable)
    if lazy is None:
        where, why = _elsewhere(variable)
        return _bare_row(name, variable, variable.encoding.get("dtype"), where, why)
    route, stored = lazy.route, lazy.stored
    n_sources, derivation = sum(1 for _ in find_block_readers(data_of(variable))), ""
    if n_sources > 1:
        derivation = f"joined or computed from {n_sources} stored arrays; this is the first, of shape {lazy.shape}"
    elif variable.shape != lazy.shape or variable.dtype != lazy.dtype:
        derivation = f"selected or computed from a stored array of shape {lazy.shape}"
    why = "; ".join(filter(None, (route.why, derivation)))
    if not isinstance(stored.spec, ArraySpec):
        array = stored.zarr_array
        assert array is not None
        row = _bare_row(name, variable, array.dtype, route.where, why)
        return replace(row, codecs=str(array_codecs(array.metadata)), cast=str(stored.cast))
    spec, sharded = stored.spec, stored.spec.index is not None
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
        load=_load(variable, spec) if route.where == "cuda" else "",
        ahead=_ahead(data_of(variable)),
    )


def _bare_row(name: str, variable: Variable, stored_dtype: Any, where: str, why: str) -> Row:
    n = math.prod(variable.shape)
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


def _load(variable: Variable, spec: ArraySpec) -> str:
    """Return that a task has too few chunks to keep a GPU busy, and how many would do; else nothing."""
    blocks = variable.chunks
    if blocks is None or len(blocks) != spec.grid.ndim:
        return ""
    edges = [max(sizes, default=0) for sizes in blocks]
    n = math.prod(-(-edge // chunk) for edge, chunk in zip(edges, spec.grid.chunk_shape, strict=True))
    if not 0 < n < min(_KEPT_BUSY, math.prod(spec.grid.n_chunks)):
        return ""
    times = -(-_KEPT_BUSY // n)
    longer = next((axis for axis, edge in enumerate(edges) if times * edge <= variable.shape[axis]), None)
    enough = "larger dask chunks"
    if longer is not None:
        enough = f"chunks={{{variable.dims[longer]!r}: {times * edges[longer]}}}"
    if times <= resource_options().n_reads:
        enough += f", or {times} threads,"
    chunks = "1 chunk" if n == 1 else f"{n} chunks"
    return f"a task has {chunks}, and a GPU decodes some {N_AT_ONCE} at once: {enough} would keep it busy"


def _ahead(data: Any) -> str:
    """Return how much is asked for before the tasks of a dask array run; nothing if it may not be."""
    reader = find_block_reader(data)
    if reader is None or reader.objects_ahead() is None:
        return ""
    nbytes = fetch_options().ahead_nbytes
    if not nbytes:
        return "each task of dask waits for its own bytes: ahead_nbytes is 0"
    return f"up to {nbytes / 1024**2:.4g} MiB are asked for before dask's tasks decode them"


def _on_dask(data: Any) -> tuple[str, str]:
    """Return where the blocks of a dask array that reads nothing are, and why."""
    layers = [getattr(layer, "mapping", {}) for layer in getattr(data.dask, "layers", {}).values()]
    firsts = [next(iter(layer.values()), None) for layer in layers if layer]
    blocks = getattr(firsts[0], "value", firsts[0]) if firsts else None
    if type(blocks).__module__.startswith("distributed."):
        where = "in memory of dask's workers"
    elif isinstance(blocks, np.generic) or (hasattr(blocks, "__array_function__") and not hasattr(blocks, "dask")):
        where = "in memory"
    else:
        return "dask", "not opened by this engine"
    if len(layers) == 1:
        return where, "persisted: blocks of a dask array that are read already"
    return "dask", f"computed from blocks that are {where}"


def _elsewhere(variable: Variable) -> tuple[str, str]:
    """Return where a variable of no array of this engine is decoded, and why."""
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
        return _on_dask(data_of(variable))
    return "host, by xarray", "opened by another engine, or with CF attributes that are not plain arithmetic"
