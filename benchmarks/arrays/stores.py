"""Writes workloads, from a fixed seed; nothing is timed here.

Arrays are put together by hand from a few distinct chunks that are compressed once: what is measured is decoding, each
stored copy is read and decoded anew, and zarr-python is the first to read them. Datasets are written by xarray.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import xarray as xr
import zarr

from benchmarks.arrays.fields import make_field
from benchmarks.arrays.workloads import PACKING, Workload

CACHE_VARIABLE = "GPUZARR_BENCH_DIR"

_WRITER_VERSION = 2
"""Raised whenever fields or stores change, so that stale stores are not read."""


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
    described = replace(workload, name="", summary="", operations=("read",))
    packing = PACKING if workload.packed else ""
    digest = hashlib.sha256(f"{_WRITER_VERSION} {described}{packing}".encode()).hexdigest()[:10]
    path = directory / f"{workload.name.replace(' ', '-')}-{digest}.zarr"
    if path.exists():
        return path
    partial = directory / f"{path.stem}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    if workload.packed:
        _write_dataset(workload, partial)
    else:
        write_tiled(workload, partial)
    partial.rename(path)
    return path


def stored_nbytes(path: Path) -> int:
    """Return the bytes of all objects of a store, metadata included."""
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def write_tiled(workload: Workload, path: Path) -> list[bytes]:
    """Write an array of repeated chunks into a new group at `path`; return the distinct chunks, compressed."""
    group = zarr.create_group(path, zarr_format=workload.zarr_format)
    group.create_array(
        workload.variable,
        **layout_of(workload),
        filters=None,
        dimension_names=workload.dims if workload.zarr_format == 3 else None,
        attributes=_attributes(workload),
    )
    keys = list(product(*(range(-(-n // w)) for n, w in zip(workload.shape, workload.whole, strict=True))))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        encoded = list(threads.map(workload.compressor.encode, workload.tiles()))
        list(threads.map(lambda key: write_object(workload, path, encoded, key), keys))
    return encoded


def layout_of(workload: Workload) -> dict[str, Any]:
    """Return the keywords by which zarr-python makes an array of this layout."""
    compressor = workload.compressor.for_zarr(workload.itemsize, workload.zarr_format)
    return {
        "shape": workload.shape,
        "dtype": workload.dtype,
        "chunks": workload.chunks,
        "shards": workload.shards,
        "compressors": () if compressor is None else (compressor,),
        "fill_value": 0,
    }


def object_files(workload: Workload, path: Path) -> list[Path]:
    """Return the files of all stored objects, in C order of the grid of shards, or of chunks where there are none."""
    keys = product(*(range(-(-n // w)) for n, w in zip(workload.shape, workload.whole, strict=True)))
    return [object_file(workload, path / workload.variable, key) for key in keys]


def object_file(workload: Workload, array: Path, key: Sequence[int]) -> Path:
    """Return the file of one stored object of the array at `array`."""
    parts = list(map(str, key))
    return array / (".".join(parts) if workload.zarr_format == 2 else "/".join(["c", *parts]))


def write_object(workload: Workload, path: Path, encoded: Sequence[bytes], key: tuple[int, ...]) -> None:
    """Write one chunk, or one shard: its chunks one after another, then the index and its CRC-32C."""
    first = [k * n for k, n in zip(key, workload.chunks_per_shard, strict=True)]
    within = np.indices(workload.chunks_per_shard).reshape(len(first), -1)
    number = np.ravel_multi_index(tuple(within + np.array(first)[:, None]), workload.grid)
    chunks = [encoded[i] for i in (number % len(encoded)).tolist()]
    file = object_file(workload, path / workload.variable, key)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as out:
        out.writelines(chunks)
        if workload.shards:
            nbytes = np.array([len(c) for c in chunks], "<u8")
            index = np.stack([np.cumsum(nbytes) - nbytes, nbytes], axis=1).astype("<u8").tobytes()
            out.write(index + int(google_crc32c.value(index)).to_bytes(4, "little"))


def _attributes(workload: Workload) -> dict[str, Any]:
    if not workload.packed:
        return {}
    packing = {"scale_factor": PACKING.scale_factor, "add_offset": PACKING.add_offset}
    return packing | {"_FillValue": PACKING.missing}


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
    compressor = workload.compressor.for_zarr(workload.itemsize, 3)
    layout = {"dtype": workload.dtype, "chunks": workload.chunks, "shards": workload.shards}
    encoding = layout | _attributes(workload) | {"compressors": () if compressor is None else (compressor,)}
    dataset.to_zarr(path, mode="w", zarr_format=3, consolidated=False, encoding={workload.variable: encoding})
