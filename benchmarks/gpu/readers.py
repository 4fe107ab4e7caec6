"""The readers to the GPU: those of the shipped registry, ours on several threads, and uploads of what hosts read.

Each opens a store once, untimed, and returns a function that reads all of it into one array on the device.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import zarr

from benchmarks.gpu.device import Gpu
from benchmarks.gpu.stores import Stored
from benchmarks.host.boxes import whole_box
from benchmarks.runner.readers import READERS as SHIPPED
from benchmarks.runner.readers import AbsentError, ArrayReader, Box, Location, open_variable
from benchmarks.runner.results import Side

Read = Callable[[], Any]
ReadBox = Callable[[Box], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One row of a table."""

    name: str
    side: Side
    open: Callable[[Gpu, Stored], Read]
    """May raise `AbsentError`."""


def location_of(stored: Stored) -> Location:
    """Return where the readers of the registry find an array."""
    return Location(store=str(stored.path), variable=stored.workload.variable)


def open_array(stored: Stored) -> zarr.Array[Any]:
    """Return a stored array, opened by zarr-python."""
    array = zarr.open_group(stored.path, mode="r")[stored.workload.variable]
    assert isinstance(array, zarr.Array)
    return array


def open_boxes(gpu: Gpu, stored: Stored, reader: ArrayReader) -> ReadBox:
    """Open a reader of the registry; its settings of zarr-python are in force while it opens and reads.

    Raises
    ------
    AbsentError
    """
    if reader.device == "cuda" and not reader.ours:
        gpu.cupy()
    absent = None if reader.device == "cuda" else reader.why_absent()
    if absent is not None or (reader.needs and not _is_there(reader.needs[0])):
        raise AbsentError(absent or f"not installed: {reader.needs}")
    settings: Mapping[str, object] = reader.settings
    with zarr.config.set(dict(settings)):
        read_box = reader.open(location_of(stored))

    def read(box: Box) -> Any:
        with zarr.config.set(dict(settings)):
            return read_box(box)

    return read


def _is_there(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _shipped(name: str) -> Reader:
    """Return a reader of the registry whose results are on the device already."""
    reader = SHIPPED[name]

    def open_whole(gpu: Gpu, stored: Stored) -> Read:
        read_box, box = open_boxes(gpu, stored, reader), whole_box(stored.workload)
        return lambda: read_box(box)

    return Reader(name=name, side="ours" if reader.ours else "peer", open=open_whole)


def _uploaded(name: str) -> Reader:
    """Return a reader of the registry that reads to the host; results are uploaded as CuPy does it."""
    reader = SHIPPED[name]

    def open_whole(gpu: Gpu, stored: Stored) -> Read:
        read_box, box = open_boxes(gpu, stored, reader), whole_box(stored.workload)
        return lambda: gpu.put(np.asarray(read_box(box)))

    return Reader(name=f"{name}, then upload", side="ours" if reader.ours else "peer", open=open_whole)


def _open_dask(gpu: Gpu, stored: Stored, *, n_threads: int) -> Read:
    variable = open_variable(location_of(stored), "gpuzarr", "chunks={}", device=gpu.device)

    def run() -> Any:
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            return variable.compute().data

    return run


def _open_nvcomp(gpu: Gpu, stored: Stored) -> Read:
    """Read shards whole, upload them, and decode their chunks in batches with nvCOMP's own Python classes."""
    cupy = gpu.cupy()
    workload = stored.workload
    if workload.compressor.family != "zstd" or len(workload.shape) > 1:
        raise AbsentError("written here for zstd and one dimension")
    try:
        nvcomp = importlib.import_module("nvidia.nvcomp")
    except ImportError as error:
        raise AbsentError(f"not installed: {error}") from error
    stream = cupy.cuda.Stream(non_blocking=True)
    raw = nvcomp.BitstreamKind.RAW
    codec = nvcomp.Codec(algorithm="Zstd", bitstream_kind=raw, cuda_stream=stream.ptr)
    n, nbytes = workload.chunks_per_shard[0], workload.chunk_nbytes

    def run() -> Any:
        with stream:
            out = cupy.empty(workload.shape, workload.dtype)
            flat, held = out.view(np.uint8), []
            for shard, file in enumerate(stored.files):
                data = np.fromfile(file, np.uint8)
                offsets, sizes = data[-16 * n - 4 : -4].view("<u8").reshape(n, 2).T.tolist()
                places = [(shard * n + chunk) * nbytes for chunk in range(n)]
                resident = cupy.asarray(data)
                source = nvcomp.as_arrays(resident, offsets, sizes, cuda_stream=stream.ptr)
                target = nvcomp.as_arrays(flat, places, [nbytes] * n, cuda_stream=stream.ptr)
                held.append((resident, source, codec.decode(source, out=target)))
            stream.synchronize()
            return out

    return run


OURS = _shipped("gpuzarr cuda")
OURS_XARRAY = _shipped("xarray gpuzarr cuda, no dask")
OURS_DASK = tuple(
    Reader(
        name=f"xarray gpuzarr cuda, chunks={{}}, {n} thread{'s'[: n > 1]}",
        side="ours",
        open=functools.partial(_open_dask, n_threads=n),
    )
    for n in (1, 2, 4)
)
OURS_UPLOAD = _uploaded("gpuzarr")
PEERS = (
    _shipped("zarr enable_gpu"),
    _shipped("zarr enable_gpu, kvikio"),
    Reader(name="nvCOMP's Python classes", side="peer", open=_open_nvcomp),
    *(_uploaded(name) for name in ("TensorStore", "zarrs")),
)
READERS = (OURS, OURS_XARRAY, *OURS_DASK, OURS_UPLOAD, *PEERS)
"""Those that return one array."""
