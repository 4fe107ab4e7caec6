"""Cases that count copies: memory that a read takes beyond the result, in lengths of the array, for each kind of store.

memray watches a process of its own, in which the reader has read a small array before. An array is one chunk, and read
whole, so a buffer for the encoded chunk, or for the decoded one beside the result, is one length.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from obstore.store import LocalStore as ObstoreLocal
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from benchmarks.arrays.stores import write_workload
from benchmarks.arrays.workloads import Workload
from benchmarks.host.child import allocated_nbytes
from benchmarks.range_server import RangeServer
from benchmarks.remote.readers import fsspec_store, s3_store
from benchmarks.runner.readers import PIPELINES
from benchmarks.runner.session import Case, Contestant, Ready
from xarray_gpuzarr import read_array

STORES = ("local", "obstore local", "obstore S3", "fsspec S3")
READERS = ("zarr default", "zarr Fused", "gpuzarr host")
_MEANINGFUL_SCALE = 0.01

WORKLOADS = {
    codec: Workload(
        name=f"copies-{codec.split()[0]}",
        summary=f"one chunk of 50 MB float32 noise, {codec}",
        shape=(12_500_000,),
        chunks=(12_500_000,),
        dtype="float32",
        codec=codec,
        field="noise",
    )
    for codec in ("none", "zstd 1")
}

Read = Callable[[zarr.Array[Any]], Any]


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    if scale < _MEANINGFUL_SCALE:  # a process for each number is too long only to see that it runs
        return [_case(WORKLOADS["none"].scaled(scale), folder, STORES[::2])]
    return [_case(w if scale == 1 else w.scaled(scale), folder, STORES) for w in WORKLOADS.values()]


def _case(workload: Workload, folder: Path, stores: Sequence[str]) -> Case:
    def contestants() -> list[Contestant]:
        path = write_workload(workload, folder / "served" / "stores")
        return [
            Contestant(
                name=reader,
                side="ours" if reader.startswith("gpuzarr") else "peer",
                nbytes=workload.nbytes,
                prepare=partial(counted, count_copies, reader, stores, path, workload.variable),
            )
            for reader in READERS
        ]

    summary = f"{workload.summary}; buffers beyond the result, in lengths of the array"
    return Case(name=f"copies/{workload.codec}", summary=summary, contestants=contestants)


def counted(count: Callable[..., float], who: str, stores: Sequence[str], *what: Any) -> Ready:
    """Return what ``count(who, store, *what)`` gives for each kind of store, in a process of its own."""
    facts = {}
    for store in stores:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            facts[store] = process.submit(count, who, store, *what).result()
    return Ready(measure=dict, facts=facts)


def count_copies(reader: str, store: str, path: Path, variable: str) -> float:
    """Return the most memory that a read allocates at once, less the result, over the array's length."""
    warnings.simplefilter("ignore")
    pipeline = PIPELINES[reader.removeprefix("zarr ")] if reader.startswith("zarr ") else PIPELINES["default"]
    read: Read = _read_by_zarr if reader.startswith("zarr ") else partial(read_array, device="host")
    with _opened(store, path) as opened, zarr.config.set({"codec_pipeline.path": pipeline}):
        array = zarr.open_array(opened, path=variable, mode="r")
        small = zarr.create_array(MemoryStore(), data=np.zeros(1000, array.dtype), compressors=array.compressors)
        read(small)  # modules and pools are made
        peak = allocated_nbytes(lambda: read(array))
        return round(peak.extra_nbytes / peak.result_nbytes, 2)


def _read_by_zarr(array: zarr.Array[Any]) -> Any:
    return array[...]


@contextmanager
def _opened(name: str, path: Path) -> Iterator[Store]:
    if name == "local":
        yield LocalStore(path)
    elif name == "obstore local":
        yield ObjectStore(ObstoreLocal(path))
    else:
        with RangeServer(path.parent.parent) as server:
            yield ObjectStore(s3_store(server.url, path.name)) if name == "obstore S3" else fsspec_store(server, path)
