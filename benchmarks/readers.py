"""The registry of readers: each opens a store once, untimed, and returns a function that reads all of it.

Optional peers are imported by the reader that needs them, so that a child process holds only its own libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr

from benchmarks.session import Session, Side
from benchmarks.speed_of_light import open_limit
from benchmarks.workloads import Operation, Workload

Opener = Callable[[Workload, Path, Operation], Session]

Chunking = Literal["no dask", "chunks={}", "chunks=shards"]

PIPELINES: Mapping[str, str] = {
    "default": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "Fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}
"""Name in the report -> class; zarr-python fixes the pipeline when an array is opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One row of a table."""

    name: str
    side: Side
    operations: tuple[Operation, ...]
    open: Opener
    pipeline: str = "default"
    """Key of `PIPELINES`, set in the process before anything is opened."""

    def configure(self) -> None:
        """Set what is global to a process."""
        # Strict: a codec that zarrs lacks is an error here instead of a silent change to zarr-python.
        zarr.config.set({"codec_pipeline.path": PIPELINES[self.pipeline], "codec_pipeline.strict": True})


def _open_zarr(workload: Workload, path: Path, _: Operation) -> Session:
    array = zarr.open_array(path / workload.variable, mode="r")
    return Session(run=lambda: np.asarray(array[...]))


def _open_gpuzarr(workload: Workload, path: Path, _: Operation) -> Session:
    from xarray_gpuzarr import read_array  # noqa: PLC0415

    array = zarr.open_array(path / workload.variable, mode="r")
    return Session(run=lambda: np.asarray(read_array(array, device="host")))


def _open_tensorstore(workload: Workload, path: Path, _: Operation) -> Session:
    import tensorstore  # noqa: PLC0415

    driver = "zarr3" if workload.zarr_format == 3 else "zarr"
    kvstore = {"driver": "file", "path": f"{path / workload.variable}/"}
    store = tensorstore.open({"driver": driver, "kvstore": kvstore}, open=True, read=True).result()
    return Session(run=lambda: np.asarray(store.read(order="C").result()))


def _xarray_opener(engine: str, chunking: Chunking) -> Opener:
    def open_xarray(workload: Workload, path: Path, operation: Operation) -> Session:
        import xarray as xr  # noqa: PLC0415

        options: dict[str, Any] = {"device": "host"} if engine == "gpuzarr" else {}
        # cache=False: a lazy variable would keep what the first round loaded.
        dataset = xr.open_dataset(
            path,
            engine=engine,
            chunks=_dask_chunks(workload, chunking),
            cache=False,
            consolidated=False,
            **options,
        )
        variable = dataset[workload.variable]
        if operation == "mean":
            return Session(run=lambda: np.asarray(variable.mean().compute().data))
        return Session(run=lambda: np.asarray(variable.compute().data))

    return open_xarray


def _dask_chunks(workload: Workload, chunking: Chunking) -> dict[str, int] | None:
    if chunking == "no dask":
        return None
    if chunking == "chunks={}":
        return {}
    return dict(zip(workload.dims, workload.shards or workload.chunks, strict=True))


def _array_reader(name: str, side: Side, opener: Opener, pipeline: str = "default") -> Reader:
    return Reader(name=name, side=side, operations=("read",), open=opener, pipeline=pipeline)


def _xarray_reader(engine: str, chunking: Chunking, pipeline: str = "default") -> Reader:
    return Reader(
        name=f"xarray gpuzarr, {chunking}" if engine == "gpuzarr" else f"xarray {engine} {pipeline}, {chunking}",
        side="ours" if engine == "gpuzarr" else "peer",
        operations=("load", "mean"),
        open=_xarray_opener(engine, chunking),
        pipeline=pipeline,
    )


_READERS = (
    _array_reader("zarr default", "peer", _open_zarr),
    _array_reader("zarr Fused", "peer", _open_zarr, "Fused"),
    _array_reader("zarrs", "peer", _open_zarr, "zarrs"),
    _array_reader("TensorStore", "peer", _open_tensorstore),
    _array_reader("gpuzarr", "ours", _open_gpuzarr),
    _xarray_reader("zarr", "chunks={}"),
    *(_xarray_reader("zarr", "chunks=shards", pipeline) for pipeline in PIPELINES),
    *(_xarray_reader("zarr", "no dask", pipeline) for pipeline in PIPELINES),
    _xarray_reader("gpuzarr", "chunks={}"),
    _xarray_reader("gpuzarr", "no dask"),
    Reader(name="limit", side="limit", operations=("read", "load", "mean"), open=open_limit),
)

READERS: Mapping[str, Reader] = {reader.name: reader for reader in _READERS}
"""Name -> reader, in the order in which they start; the first one's values are the reference."""
