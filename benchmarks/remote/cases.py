"""Cases behind a server on loopback: throughput against the bare client at several latencies, and requests counted.

The server (`range_server`) is a process of its own, so client and server share the cores of the machine: on loopback
itself, what is measured is who uses least of them. Behind a line of limited rate it is who leaves it idle.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import tensorstore
import zarr
from obstore.store import S3Store
from zarr.core.sync import sync
from zarr.storage import FsspecStore, ObjectStore

from benchmarks.measure import Case, Contestant, Ready, WrongValuesError
from benchmarks.host_cost.null_device import NullDevice
from benchmarks.range_server import RangeServer
from benchmarks.arrays.stores import write_workload
from benchmarks.arrays.workloads import SERIES, Workload
from xarray_gpuzarr import index_cache, read_array
from xarray_gpuzarr.bench.readers import PIPELINES
from xarray_gpuzarr.counters import counters
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.read import read, stored_array

LATENCIES_MS = (0, 10, 50)
_LINE_BITS_PER_S = 5e9
"""More than a cloud machine gets for every two cores."""
_LINE = f"{_LINE_BITS_PER_S / 1e9:.0f} Gbit/s"
_COUNTING_S = 0.05
"""Latency at which the requests of one of our reads that are under way at once are counted: none is answered before
all have come."""
_MEANINGFUL_SCALE = 0.01
_LONG_AGO_S = 1e9
"""When stores were written, for servers and clients that do not trust what is new."""
_KEYS = {"access_key_id": "bench", "secret_access_key": "bench", "region": "us-east-1"}

SHARDS = {
    codec: replace(
        SERIES,
        name=f"remote-{codec}",
        summary=f"float32, 1 MB chunks, 16 a shard, 24 shards, {codec}",
        shape=(98_304_000,),
        shards=(4_096_000,),
        codec=codec,
        operations=("read",),
    )
    for codec in ("none", "zstd 3")
}
VOLUME = Workload(
    name="remote-volume",
    summary="uint16 volume, 32^3 chunks, 64 a shard, 8 shards, zstd",
    shape=(256, 256, 256),
    chunks=(32, 32, 32),
    shards=(128, 128, 128),
    dtype="uint16",
    codec="zstd 3",
    field="volume",
)

Read = Callable[[Any], Any]
"""Read a selection; every call starts from the stored bytes."""


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module.

    Parameters
    ----------
    scale : float
        Share of the elements; 1 for results that mean something.
    folder : pathlib.Path
        Cache of stores.
    """
    latencies = LATENCIES_MS if scale >= _MEANINGFUL_SCALE else LATENCIES_MS[1:2]
    shards = [w if scale == 1 else w.scaled(scale) for w in SHARDS.values()]
    volume = VOLUME if scale == 1 else VOLUME.scaled(scale)
    return [
        *(_throughput_case(w, ms, folder, client) for client in _CLIENTS for w in shards for ms in latencies),
        *(_throughput_case(shards[0], ms, folder, client, with_line=True) for client in _CLIENTS for ms in latencies),
        *(_device_case(w, ms, folder) for w in shards for ms in latencies),
        _requests_case(volume, folder),
    ]


class Served:
    """A server of a folder of stores, until the last of its users has closed it."""

    def __init__(self, n_users: int, folder: Path, latency_ms: float, *, with_line: bool = False) -> None:
        self._n_users = n_users
        self._stack = ExitStack()
        self.latency_s = latency_ms / 1e3
        self.server = self._stack.enter_context(RangeServer(folder, self.latency_s))
        if with_line:
            self.server.set(bytes_per_s=_LINE_BITS_PER_S / 8)

    def close(self) -> None:
        """Let one user go."""
        self._n_users -= 1
        if self._n_users == 0:
            self._stack.close()


# ---- readers


def s3_store(server: RangeServer, path: Path) -> S3Store:
    """Return obstore's client of a store below the folder that is served; the folder's parent is the bucket."""
    options = {"allow_http": True}
    return S3Store("stores", prefix=path.name, endpoint=server.url, client_options=options, **_KEYS)  # type: ignore[arg-type]


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


def _ours(make: Callable[[RangeServer, Path], Any], server: RangeServer, path: Path, variable: str) -> Read:
    array = zarr.open_array(make(server, path), path=variable, mode="r")
    return lambda selection: read_array(array, selection, device="host")


def _to_device(server: RangeServer, path: Path, variable: str) -> Read:
    """Return a read of the CUDA engine: all bytes come to pinned memory, and nothing is decoded."""
    device = NullDevice()
    stored = stored_array(zarr.open_array(_obstore(server, path), path=variable, mode="r"))
    return lambda selection: read(stored, selection, CudaDecoder(lambda: device.as_api))


def _ours_local(_: RangeServer, path: Path, variable: str) -> Read:
    array = zarr.open_array(path / variable, mode="r")
    return lambda selection: read_array(array, selection, device="host")


def _zarr(pipeline: str, server: RangeServer, path: Path, variable: str) -> Read:
    # Strict: a codec that zarrs lacks is an error here instead of a silent change to zarr-python.
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline], "codec_pipeline.strict": True}):
        array = zarr.open_array(_obstore(server, path), path=variable, mode="r")
    return lambda selection: array[selection]


def _obstore(server: RangeServer, path: Path) -> ObjectStore[S3Store]:
    return ObjectStore(s3_store(server, path), read_only=True)


def _tensorstore(server: RangeServer, path: Path, variable: str) -> Read:
    kvstore = {"driver": "http", "base_url": f"{server.url}/stores/{path.name}/{variable}/"}
    array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, read=True).result()
    return lambda selection: np.asarray(array[selection].read(order="C").result())


_OPENERS: dict[str, Callable[[RangeServer, Path, str], Read]] = {
    "gpuzarr, obstore": partial(_ours, _obstore),
    "gpuzarr, s3fs": partial(_ours, fsspec_store),
    **{f"zarr {pipeline}, obstore": partial(_zarr, pipeline) for pipeline in PIPELINES},
    "TensorStore": _tensorstore,
}
_TO_DEVICE = "gpuzarr, obstore, to a GPU that does nothing"
_KEPT = "bare obstore, kept"
_LOCAL = "gpuzarr, local files"
"""Decoding alone, all but: no read of compressed chunks can be quicker, from whatever store."""


def _contestants(
    workload: Workload,
    served: Callable[[int], Served],
    prepare: Callable[[Served, str], Ready],
    names: Sequence[str],
    limits: Collection[str] = (),
) -> list[Contestant]:
    shared = served(len(names))

    def prepared(name: str) -> Ready:
        try:
            return prepare(shared, name)
        except BaseException:
            shared.close()
            raise

    def side(name: str) -> Any:
        return "limit" if name in limits else "ours" if name.startswith("gpuzarr") else "peer"

    return [
        Contestant(name=name, side=side(name), nbytes=workload.nbytes, prepare=partial(prepared, name))
        for name in names
    ]


def _served(
    workload: Workload, folder: Path, latency_ms: float, *, with_line: bool = False
) -> tuple[Path, Callable[[int], Served]]:
    """Write a store into a folder of its own that can be served as a bucket."""
    path = write_workload(workload, folder / "served" / "stores")
    for file in path.rglob("*"):
        os.utime(file, (_LONG_AGO_S, _LONG_AGO_S))
    return path, lambda n_users: Served(n_users, path.parent.parent, latency_ms, with_line=with_line)


# ---- throughput


def _throughput_case(
    workload: Workload, latency_ms: int, folder: Path, client: str, *, with_line: bool = False
) -> Case:
    bare = _CLIENTS[client]
    limits = (_LOCAL, *bare)

    def contestants() -> list[Contestant]:
        path, served = _served(workload, folder, latency_ms, with_line=with_line)
        expected = zarr.open_array(path / workload.variable, mode="r")[...]

        def prepare(shared: Served, name: str) -> Ready:
            if name in bare:
                return _prepare_client(shared, path, workload.variable, bare[name])
            open_array = _ours_local if name == _LOCAL else _OPENERS[name]
            read = open_array(shared.server, path, workload.variable)
            if not np.array_equal(read(...), expected):
                raise WrongValuesError("other values than were stored")
            return Ready(measure=lambda: _timed(partial(read, ...)), close=shared.close)

        readers = _OPENERS if client == "obstore" else [f"gpuzarr, {client}"]
        return _contestants(workload, served, prepare, [*readers, *limits], limits)

    return Case(
        name=f"store/{workload.codec} {latency_ms} ms{f', {_LINE}' * with_line}{f', {client}' * (client != 'obstore')}",
        summary=f"{workload.summary}; whole array from a server that answers {latency_ms} ms late"
        + f", over a line of {_LINE}" * with_line,
        contestants=contestants,
    )


def _device_case(workload: Workload, latency_ms: int, folder: Path) -> Case:
    """Return what the CUDA engine leaves of a line: everything but the GPU is real, up to the pinned memory."""

    def contestants() -> list[Contestant]:
        path, served = _served(workload, folder, latency_ms, with_line=True)
        shards = list((path / workload.variable / "c").rglob("*"))

        def prepare(shared: Served, name: str) -> Ready:
            if name == _KEPT:
                return _prepare_client(shared, path, workload.variable, _CLIENTS["obstore"][name])
            to_device, before = _to_device(shared.server, path, workload.variable), counters.snapshot()
            to_device(...)
            if (counters.snapshot() - before).read_nbytes != sum(f.stat().st_size for f in shards if f.is_file()):
                raise WrongValuesError("other bytes than were stored")
            return Ready(measure=lambda: _timed(partial(to_device, ...)), close=shared.close)

        return _contestants(workload, served, prepare, [_TO_DEVICE, _KEPT], [_KEPT])

    return Case(
        name=f"store/{workload.codec} {latency_ms} ms, {_LINE}, to a GPU",
        summary=f"{workload.summary}; whole array by the CUDA engine, from a server that answers {latency_ms} ms late, "
        f"over a line of {_LINE}",
        contestants=contestants,
    )


def _timed(run: Callable[[], object]) -> float:
    index_cache.cache.clear()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


Wanted = tuple[str, int, int]
"""Key, first byte and end of a range."""
Fetch = Callable[[list[Wanted], int], None]
"""Fetch ranges, so many at once."""
Get = Callable[[str, int, int], Coroutine[Any, Any, Any]]
"""Ask for one range."""
Client = Callable[[RangeServer, Path], Fetch]
"""A bare client of a store below the folder that is served."""


def _prepare_client(shared: Served, path: Path, variable: str, client: Client) -> Ready:
    """Let our reader ask once, so that the bare client can ask for the same ranges, as many at once."""
    server = shared.server
    index_cache.cache.clear()
    read = _ours(_obstore, server, path, variable)
    server.requests()
    server.set(latency_s=_COUNTING_S, most_at_once=0)
    read(...)
    at_once = server.most_at_once()
    server.set(latency_s=shared.latency_s)
    wanted = [_wanted(request["path"], request["range"], path) for request in server.requests()]
    fetch = client(server, path)
    fetch(wanted, at_once)
    facts = {"requests": len(wanted), "at once": at_once}
    return Ready(measure=lambda: _timed(partial(fetch, wanted, at_once)), facts=facts, close=shared.close)


def _wanted(url: str, header: str | None, path: Path) -> Wanted:
    key = url.removeprefix(f"/stores/{path.name}/")
    length = (path / key).stat().st_size
    first, _, last = (header or "bytes=0-").removeprefix("bytes=").partition("-")
    if not first:
        return key, length - int(last), length
    return key, int(first), int(last) + 1 if last else length


def _bare(ask: Callable[[RangeServer, Path], Get], server: RangeServer, path: Path, *, keep: bool) -> Fetch:
    get = ask(server, path)
    return lambda wanted, at_once: _all_of(get, wanted, at_once, keep=keep)


def _obstore_get(server: RangeServer, path: Path) -> Get:
    store = s3_store(server, path)

    async def get(key: str, start: int, end: int) -> Any:
        return await obstore.get_range_async(store, key, start=start, end=end)

    return get


def _s3fs_get(server: RangeServer, path: Path) -> Get:
    store = fsspec_store(server, path)

    async def get(key: str, start: int, end: int) -> Any:
        return await store.fs._cat_file(f"{store.path}/{key}", start=start, end=end)  # noqa: SLF001

    return get


def _all_of(get: Get, wanted: list[Wanted], at_once: int, *, keep: bool) -> None:
    async def all_of_them() -> list[object]:
        gate = asyncio.Semaphore(at_once)

        async def one(key: str, start: int, end: int) -> object:
            async with gate:
                data = await get(key, start, end)
                return data if keep else None

        return await asyncio.gather(*(one(*w) for w in wanted))

    sync(all_of_them())


def _into_array(get: Callable[[str, int, int], Any]) -> Fetch:
    """Put what comes into one array, as any reader has to, on as many threads as requests are under way."""

    def fetch(wanted: list[Wanted], at_once: int) -> None:
        ends = np.cumsum([end - start for _, start, end in wanted]).tolist()
        out = np.empty(ends[-1], np.uint8)

        def one(request: Wanted, at: int) -> None:
            data = np.frombuffer(get(*request), np.uint8)
            np.copyto(out[at - len(data) : at], data)

        with ThreadPoolExecutor(at_once) as pool:
            for _ in pool.map(one, wanted, ends):
                pass

    return fetch


def _obstore_into_array(server: RangeServer, path: Path) -> Fetch:
    store = s3_store(server, path)
    return _into_array(lambda key, start, end: obstore.get_range(store, key, start=start, end=end))


def _s3fs_into_array(server: RangeServer, path: Path) -> Fetch:
    get = _s3fs_get(server, path)
    return _into_array(lambda *wanted: sync(get(*wanted)))


_CLIENTS: dict[str, dict[str, Client]] = {
    "obstore": {
        _KEPT: partial(_bare, _obstore_get, keep=True),
        "bare obstore, into one array": _obstore_into_array,
        "bare obstore, dropped": partial(_bare, _obstore_get, keep=False),
    },
    "s3fs": {
        "bare s3fs, kept": partial(_bare, _s3fs_get, keep=True),
        "bare s3fs, into one array": _s3fs_into_array,
        "bare s3fs, dropped": partial(_bare, _s3fs_get, keep=False),
    },
}
"""The same ranges, as many at a time as one read of ours has under way. What comes is kept in memory, in pieces or as
one array; dropped bytes say what the rest costs, since memory that is used again is in the cache and was asked for
before."""


# ---- requests


def _requests_case(workload: Workload, folder: Path) -> Case:
    chunk = tuple(slice(0, n) for n in workload.chunks)
    shard = tuple(slice(0, n) for n in workload.whole)
    selections = {
        "one chunk": chunk,
        "another of its shard": (*chunk[:-1], slice(workload.chunks[-1], 2 * workload.chunks[-1])),
        "one plane": (slice(0, 1),),
        "one shard": shard,
        "whole array": (...,),
    }

    def contestants() -> list[Contestant]:
        path, served = _served(workload, folder, 0)

        def prepare(shared: Served, name: str) -> Ready:
            read = _OPENERS[name](shared.server, path, workload.variable)
            facts = {}
            for what, selection in selections.items():
                if what != "another of its shard":
                    index_cache.cache.clear()
                shared.server.requests()
                read(selection)
                facts[what] = len(shared.server.requests())
            return Ready(measure=dict, facts=facts, close=shared.close)

        return _contestants(workload, served, prepare, [*_OPENERS])

    summary = f"{workload.summary}; requests for a selection"
    return Case(name="store/requests", summary=summary, contestants=contestants)
