"""``python -m benchmarks.gpu.sanitize``: every family of kernels and one read per codec, small, values compared.

To be run under ``compute-sanitizer``, as ``make sanitize-gpu`` does. Device memory comes from no pool: the tools see
where each allocation ends.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from benchmarks.arrays.compressors import INNER_CODECS, SHUFFLES
from benchmarks.arrays.workloads import Workload
from benchmarks.gpu.device import Gpu
from benchmarks.gpu.kernels import kernel_contestants
from benchmarks.gpu.readers import open_array
from benchmarks.gpu.stores import Stored, write
from benchmarks.runner.readers import AbsentError
from xarray_gpuzarr import configure, read_array

_SCALE = 1e-3
CODECS = (
    *("none", "zstd 3", "gzip 5", "lz4", "zlib 5"),
    *(f"blosc {cname} 5 {shuffle}" for cname in INNER_CODECS for shuffle in SHUFFLES),
)

FILTERS = {
    "delta": ("float32", zn.Delta(dtype="<f4")),
    "fixedscaleoffset, delta": (
        "float32",
        [zn.FixedScaleOffset(offset=0, scale=100, dtype="<f4", astype="<i2"), zn.Delta(dtype="<i2")],
    ),
    "packbits": ("bool", zn.PackBits()),
}
"""Dtype of an array, and its filters."""


def main(arguments: Sequence[str] = (), make_gpu: Callable[[], Gpu] = Gpu) -> int:
    """Launch everything; return 1 if a read gave other values than were stored, 2 if there is no GPU, else 0.

    With ``--probe``, only say whether there is a GPU: a sanitizer hides what a process says that finds no driver.
    """
    configure(little="device", memory="current", slot_nbytes=1 << 16, n_slots=2, batch_nbytes=1 << 16, batch_chunks=1)
    try:
        gpu = make_gpu()
    except AbsentError as error:
        print(error, file=sys.stderr)
        return 2
    if "--probe" in arguments:
        return 0
    for contestant in kernel_contestants(gpu, _SCALE):
        ready = contestant.prepare()
        ready.measure()
        ready.close()
        print(f"{contestant.name}: run")
    with tempfile.TemporaryDirectory() as folder:
        wrong = [codec for codec in CODECS if not _reads_right(gpu, codec, Path(folder))]
    wrong += [name for name in FILTERS if not _reads_filtered(gpu, name)]
    print(f"wrong values: {', '.join(wrong) or 'none'}")
    return int(bool(wrong))


def _reads_right(gpu: Gpu, codec: str, folder: Path) -> bool:
    """Read an array whole, in part and point by point; a shard of it is missing."""
    layout = Workload(
        name=codec, shape=(31, 2999), chunks=(8, 1000), shards=(16, 3000), dtype="float32", codec=codec, field="volume"
    )
    stored = write(layout, folder)
    expected = layout.values()
    stored.files[1].unlink()
    expected[layout.whole[0] :] = 0
    right = [_same(gpu, codec, *pair) for pair in _reads(gpu, stored, expected)]
    return all(right)


def _reads_filtered(gpu: Gpu, name: str) -> bool:
    """Read an array with filters whole."""
    dtype, filters = FILTERS[name]
    array = zarr.create_array(MemoryStore(), shape=(31, 2999), chunks=(8, 1000), dtype=dtype, filters=filters)
    array[...] = (np.arange(31 * 2999) % 100 / 7).reshape(31, 2999).astype(dtype)
    return _same(gpu, name, read_array(array, device=gpu.device), np.asarray(array[...]))


def _reads(gpu: Gpu, stored: Stored, expected: np.ndarray[Any, Any]) -> list[tuple[Any, np.ndarray[Any, Any]]]:
    array = open_array(stored)
    dataset = xr.open_dataset(stored.path, engine="gpuzarr", chunks=None, consolidated=False, device=gpu.device)
    lazy = dataset[stored.workload.variable]
    rng = np.random.default_rng(0)
    points = [rng.integers(0, n, 500) for n in expected.shape]
    picked = lazy.isel({dim: xr.DataArray(at, dims="point") for dim, at in zip(lazy.dims, points, strict=True)})
    box = slice(3, 30, 2), slice(7, None)
    return [
        (read_array(array, device=gpu.device), expected),
        (read_array(array, box, device=gpu.device), expected[box]),
        (picked.variable.compute().data, expected[tuple(points)]),
    ]


def _same(gpu: Gpu, codec: str, found: Any, expected: np.ndarray[Any, Any]) -> bool:
    right = gpu.same(found, gpu.put(expected))
    print(f"{codec} {found.shape}: {'right' if right else 'wrong'}")
    return right


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
