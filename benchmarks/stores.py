"""Writes workloads into a cache directory, once, from a fixed seed; nothing is timed here."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numcodecs
import numpy as np
import xarray as xr
import zarr
from numcodecs.abc import Codec as NumcodecsCodec
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from benchmarks.fields import make_field
from benchmarks.workloads import PACKING, CodecName, Workload

CACHE_VARIABLE = "GPUZARR_BENCH_DIR"

_WRITER_VERSION = 1
"""Raised whenever fields or stores change, so that stale stores are not read."""

_CODECS: Mapping[CodecName, Callable[[], BytesBytesCodec | None]] = {
    "none": lambda: None,
    "zstd": lambda: ZstdCodec(level=3),
    "gzip": lambda: GzipCodec(level=5),
    "blosc-zstd": lambda: BloscCodec(cname="zstd", clevel=3, shuffle="shuffle"),
    "blosc-lz4": lambda: BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
    "blosclz-bitshuffle": lambda: BloscCodec(cname="blosclz", clevel=9, shuffle="bitshuffle"),
}
_CODECS_V2: Mapping[CodecName, Callable[[], NumcodecsCodec]] = {
    "blosc-zstd": lambda: numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.SHUFFLE),
}


def cache_directory() -> Path:
    """Return where stores are kept: ``$GPUZARR_BENCH_DIR``, else below the system's temporary directory."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / "gpuzarr-bench"


def write_workload(workload: Workload, directory: Path) -> Path:
    """Write a workload's store unless it is there already.

    Parameters
    ----------
    workload : Workload
    directory : pathlib.Path
        The cache.

    Returns
    -------
    pathlib.Path
        The store: a group that holds `workload.variable`.
    """
    described = replace(workload, summary="", operations=("read",))
    packing = PACKING if workload.packed else ""
    digest = hashlib.sha256(f"{_WRITER_VERSION} {described}{packing}".encode()).hexdigest()[:10]
    path = directory / f"{workload.name}-{digest}.zarr"
    if path.exists():
        return path
    partial = directory / f"{path.stem}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    if workload.packed:
        _write_dataset(workload, partial)
    else:
        _write_array(workload, partial)
    partial.rename(path)
    return path


def stored_nbytes(path: Path) -> int:
    """Return the bytes of all objects of a store, metadata included."""
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def _compressors(workload: Workload) -> tuple[BytesBytesCodec, ...] | NumcodecsCodec | None:
    if workload.zarr_format == 2:
        return _CODECS_V2[workload.codec]()
    codec = _CODECS[workload.codec]()
    return (codec,) if codec else None


def _write_array(workload: Workload, path: Path) -> None:
    group = zarr.create_group(path, zarr_format=workload.zarr_format)
    array = group.create_array(
        workload.variable,
        shape=workload.shape,
        dtype=workload.dtype,
        chunks=workload.chunks,
        shards=workload.shards,
        compressors=_compressors(workload),
        filters=None,
        dimension_names=workload.dims if workload.zarr_format == 3 else None,
    )
    array[...] = make_field(workload.field, workload.shape)


def _write_dataset(workload: Workload, path: Path) -> None:
    n_time, n_latitude, n_longitude = workload.shape
    coords = {
        "time": np.datetime64("2026-01-01", "ns") + np.arange(n_time) * np.timedelta64(1, "h"),
        "latitude": np.linspace(90, -90, n_latitude),
        "longitude": np.linspace(0, 360, n_longitude, endpoint=False),
    }
    field = make_field(workload.field, workload.shape)
    attrs = {"long_name": "2 metre temperature", "units": "K"}
    dataset = xr.Dataset({workload.variable: (workload.dims, field, attrs)}, coords=coords)
    encoding = {
        "dtype": workload.dtype,
        "scale_factor": PACKING.scale_factor,
        "add_offset": PACKING.add_offset,
        "_FillValue": PACKING.missing,
        "chunks": workload.chunks,
        "shards": workload.shards,
        "compressors": _compressors(workload),
    }
    dataset.to_zarr(path, mode="w", zarr_format=3, consolidated=False, encoding={workload.variable: encoding})
