"""Who reads from the server, and how: our reader and its peers, and a bare client that decodes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import tensorstore
import xarray as xr
import zarr
from obstore.store import S3Store
from zarr.core.sync import sync
from zarr.storage import FsspecStore, ObjectStore

from benchmarks.range_server import LoggedRequest, RangeServer
from benchmarks.runner.readers import PIPELINES, AbsentError
from benchmarks.timed.device import ModelledDevice
from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.read import read, stored_array

_KEYS = {"access_key_id": "bench", "secret_access_key": "bench", "region": "us-east-1"}

Read = Callable[[Any], Any]
"""Read a selection; every call starts from the stored bytes."""
Open = Callable[[RangeServer, Path, str], Read]
"""Open an array of a store below the folder that is served."""


def s3_store(url: str, prefix: str) -> S3Store:
    """Return obstore's client of what is stored below a prefix. The folder that is served is the bucket's parent."""
    options = {"allow_http": True}
    return S3Store("stores", prefix=prefix, endpoint=url, client_options=options, **_KEYS)  # type: ignore[arg-type]


kept_s3_store = cache(s3_store)
"""Clients that keep their connections from one run to the next, as TensorStore's does."""


def fsspec_store(server: RangeServer, path: Path) -> FsspecStore:
    """Return s3fs's client of the same store."""
    options = {
        "key": "bench",
        "secret": "bench",
        "endpoint_url": server.url,
        "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"max_pool_connections": 64},
    }
    return FsspecStore.from_url(f"s3://stores/{path.name}", storage_options=options, read_only=True)


def rustytree_store(url: str, path: Path) -> tuple[str, dict[str, str]]:
    """Return the same store as rustytree takes it, an address and options: it knows no folders below a bucket."""
    return f"s3://{path.name}", {**_KEYS, "endpoint": f"{url}/stores", "allow_http": "true"}


def _obstore(server: RangeServer, path: Path) -> ObjectStore[S3Store]:
    return ObjectStore(kept_s3_store(server.url, path.name), read_only=True)


def _open_ours(make: Callable[[RangeServer, Path], Any], server: RangeServer, path: Path, variable: str) -> Read:
    array = zarr.open_array(make(server, path), path=variable, mode="r")
    return lambda selection: read_array(array, selection, device="host")


def _open_zarr(pipeline: str, server: RangeServer, path: Path, variable: str) -> Read:
    # Strict: a codec that zarrs lacks is an error here instead of a silent change to zarr-python.
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline], "codec_pipeline.strict": True}):
        array = zarr.open_array(_obstore(server, path), path=variable, mode="r")
    return lambda selection: array[selection]


def _open_tensorstore(server: RangeServer, path: Path, variable: str) -> Read:
    kvstore = {"driver": "http", "base_url": f"{server.url}/stores/{path.name}/{variable}/"}
    array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, read=True).result()
    return lambda selection: np.asarray(array[selection].read(order="C").result())


open_ours: Open = partial(_open_ours, _obstore)


def _open_rustytree(server: RangeServer, path: Path, variable: str) -> Read:
    store, options = rustytree_store(server.url, path)
    opened = xr.open_dataset(store, engine="rustytree", cache=False, storage_options=options)[variable].variable
    return lambda selection: opened[selection].values


READERS: Mapping[str, Open] = {
    "gpuzarr, obstore": open_ours,
    "gpuzarr, s3fs": partial(_open_ours, fsspec_store),
    **{f"zarr {pipeline}, obstore": partial(_open_zarr, pipeline) for pipeline in PIPELINES},
    "TensorStore": _open_tensorstore,
    "rustytree": _open_rustytree,
}


def require(name: str) -> None:
    """Raise `AbsentError` if a reader is not installed."""
    if name == "rustytree" and not find_spec("rustytree"):
        raise AbsentError("not installed (pip install rustytree-xarray)")


def open_local(_: RangeServer, path: Path, variable: str) -> Read:
    """Open the files themselves for our reader."""
    array = zarr.open_array(path / variable, mode="r")
    return lambda selection: read_array(array, selection, device="host")


def open_to_device(server: RangeServer, path: Path, variable: str) -> Read:
    """Open an array for the CUDA engine: all bytes come to pinned memory, and nothing is decoded."""
    device = ModelledDevice()
    stored = stored_array(zarr.open_array(_obstore(server, path), path=variable, mode="r"))
    return lambda selection: read(stored, selection, CudaDecoder(lambda: device.as_api))


# ---- the bare client

Wanted = tuple[str, int, int]
"""Key, first byte and end of a range."""


def wanted(request: LoggedRequest, path: Path) -> Wanted:
    """Return the range that a reader has asked for of a store."""
    key = request["path"].removeprefix(f"/stores/{path.name}/")
    length = (path / key).stat().st_size
    first, _, last = (request["range"] or "bytes=0-").removeprefix("bytes=").partition("-")
    if not first:
        return key, length - int(last), length
    return key, int(first), int(last) + 1 if last else length


def fetch_barely(store: S3Store, ranges: list[Wanted], at_once: int) -> None:
    """Ask obstore for ranges, so many at a time, and keep what comes until all is there."""

    async def all_of_them() -> list[object]:
        gate = asyncio.Semaphore(at_once)

        async def one(key: str, start: int, end: int) -> object:
            async with gate:
                return await obstore.get_range_async(store, key, start=start, end=end)

        return await asyncio.gather(*(one(*each) for each in ranges))

    sync(all_of_them())
