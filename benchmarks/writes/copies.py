"""Cases that count copies of writes: memory that a write takes beside the array, in lengths of the array.

As `benchmarks.host.copies` does for reads: memray watches a process of its own, in which a small array was written
before. An array is one chunk, and written whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import zarr
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import S3Store
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from benchmarks.arrays.stores import layout_of
from benchmarks.arrays.workloads import Workload
from benchmarks.host.child import allocated_nbytes
from benchmarks.host.copies import WORKLOADS, counted
from benchmarks.runner.readers import PIPELINES
from benchmarks.runner.session import Case, Contestant

STORES = ("local", "obstore local", "obstore S3")
WRITERS = ("zarr default", "zarr Fused", "gpuzarr")
_OURS = "xarray_gpuzarr.CodecPipeline"
_MEANINGFUL_SCALE = 0.01


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    if scale < _MEANINGFUL_SCALE:  # a process for each number is too long only to see that it runs
        return [_case(WORKLOADS["none"].scaled(scale), folder, STORES[:1])]
    return [_case(w if scale == 1 else w.scaled(scale), folder, STORES) for w in WORKLOADS.values()]


def _case(workload: Workload, folder: Path, stores: Sequence[str]) -> Case:
    contestants = [
        Contestant(
            name=writer,
            side="ours" if writer == "gpuzarr" else "peer",
            nbytes=workload.nbytes,
            prepare=partial(counted, count_copies, writer, stores, workload, folder),
        )
        for writer in WRITERS
    ]
    summary = f"{workload.summary}, written; buffers beside it, in lengths of the array"
    return Case(name=f"copies/{workload.codec} written", summary=summary, contestants=lambda: contestants)


def count_copies(writer: str, store: str, workload: Workload, folder: Path) -> float:
    """Return the most memory that a write allocates at once, over the array's length."""
    warnings.simplefilter("ignore")
    pipeline = _OURS if writer == "gpuzarr" else PIPELINES[writer.removeprefix("zarr ")]
    data = workload.values()
    with _opened(store, folder) as opened, zarr.config.set({"codec_pipeline.path": pipeline}):
        small = zarr.create_array(
            MemoryStore(), shape=1000, dtype=data.dtype, compressors=layout_of(workload)["compressors"]
        )
        small[...] = 1  # modules and pools are made
        array = zarr.create_array(opened, name=f"{writer} {workload.codec}", overwrite=True, **layout_of(workload))
        return round(allocated_nbytes(partial(array.__setitem__, ..., data)).peak_nbytes / data.nbytes, 2)


@contextmanager
def _opened(name: str, folder: Path) -> Iterator[Store]:
    folder.mkdir(parents=True, exist_ok=True)
    if name == "local":
        yield LocalStore(folder / "written")
    elif name == "obstore local":
        yield ObjectStore(ObstoreLocal(folder))
    else:
        from helpers.stores.s3_server import BUCKET, REGION, S3Server  # noqa: PLC0415  # of the tests, where `benchmarks.range_server` finds them

        with S3Server() as server:
            keys = {"access_key_id": server.key_id, "secret_access_key": server.secret, "region": REGION}
            yield ObjectStore(S3Store(BUCKET, endpoint=server.url, client_options={"allow_http": True}, **keys))
