"""The registry of readers to the GPU: ours, and whatever else is installed.

Each opens a store once, untimed, and returns a function that reads all of it into one array on the device.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import xarray as xr
import zarr

from benchmarks.gpu.device import AbsentError, Gpu
from benchmarks.gpu.stores import VARIABLE, Stored
from xarray_gpuzarr import read_array

Read = Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One row of a table."""

    name: str
    open: Callable[[Gpu, Stored], Read]
    """May raise `AbsentError`."""


def open_array(stored: Stored) -> zarr.Array[Any]:
    """Return a stored array, opened by zarr-python."""
    array = zarr.open_group(stored.path, mode="r")[VARIABLE]
    assert isinstance(array, zarr.Array)
    return array


def _open_read_array(gpu: Gpu, stored: Stored) -> Read:
    array = open_array(stored)
    return lambda: read_array(array, device=gpu.device)


def _variable(gpu: Gpu, stored: Stored, chunks: dict[str, int] | None) -> xr.Variable:
    # cache=False: a lazy variable would keep what the first run loaded.
    dataset = xr.open_dataset(
        stored.path, engine="gpuzarr", chunks=chunks, cache=False, consolidated=False, device=gpu.device
    )
    return dataset[VARIABLE].variable


def _open_xarray(gpu: Gpu, stored: Stored) -> Read:
    variable = _variable(gpu, stored, None)
    return lambda: variable.compute().data


def _open_dask(gpu: Gpu, stored: Stored, *, n_threads: int) -> Read:
    variable = _variable(gpu, stored, {})

    def run() -> Any:
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            return variable.compute().data

    return run


def _open_blocks(gpu: Gpu, stored: Stored) -> Read:
    variable = _variable(gpu, stored, {})

    def run() -> Any:
        with dask.config.set(scheduler="threads", num_workers=4):
            return variable.data.persist()

    return run


def _open_upload(gpu: Gpu, stored: Stored) -> Read:
    array = open_array(stored)
    return lambda: gpu.put(read_array(array, device="host"))


def _open_zarr(gpu: Gpu, stored: Stored) -> Read:
    gpu.cupy()
    array = open_array(stored)

    def run() -> Any:
        with zarr.config.enable_gpu():
            return array[...]

    return run


def _open_tensorstore(gpu: Gpu, stored: Stored) -> Read:
    tensorstore = _imported("tensorstore")
    kvstore = {"driver": "file", "path": f"{stored.path / VARIABLE}/"}
    store = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, read=True).result()
    return lambda: gpu.put(np.asarray(store.read(order="C").result()))


def _open_nvcomp(gpu: Gpu, stored: Stored) -> Read:
    """Read shards whole, upload them, and decode their chunks in batches with nvCOMP's own Python classes."""
    cupy, nvcomp = gpu.cupy(), _imported("nvidia.nvcomp")
    layout = stored.layout
    if layout.codec != "zstd" or len(layout.shape) > 1:
        raise AbsentError("written here for zstd and one dimension")
    stream = cupy.cuda.Stream(non_blocking=True)
    raw = nvcomp.BitstreamKind.RAW
    codec = nvcomp.Codec(algorithm="Zstd", bitstream_kind=raw, cuda_stream=stream.ptr)
    n, nbytes = layout.chunks_per_shard[0], layout.chunk_nbytes

    def run() -> Any:
        with stream:
            out = cupy.empty(layout.shape, layout.dtype)
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


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise AbsentError(f"not installed: {error}") from error


OURS = Reader(name="ours, read_array", open=_open_read_array)
OURS_XARRAY = Reader(name="ours, xarray without dask", open=_open_xarray)
OURS_DASK = tuple(
    Reader(name=f"ours, dask, {n} thread{'s'[: n > 1]}", open=functools.partial(_open_dask, n_threads=n))
    for n in (1, 2, 4)
)
OURS_UPLOAD = Reader(name="ours on the host, then upload", open=_open_upload)
OURS_BLOCKS = Reader(name="ours, dask, 4 threads, blocks kept apart", open=_open_blocks)
PEERS = (
    Reader(name="zarr-python, enable_gpu", open=_open_zarr),
    Reader(name="nvCOMP's Python classes", open=_open_nvcomp),
    Reader(name="TensorStore, then upload", open=_open_tensorstore),
)
READERS = (OURS, OURS_XARRAY, *OURS_DASK, OURS_UPLOAD, *PEERS)
"""Those that return one array."""
