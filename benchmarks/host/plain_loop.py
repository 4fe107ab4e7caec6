"""The plain loop: C threads that read, decode and place every chunk, and plan and check nothing.

No reader, and no limit either: one that keeps memory in cache or asks for better lengths is quicker. Compiles
`plain_loop.c` with the machine's C compiler into the cache directory, and lends it the decoders that imagecodecs
carries, which are those that xarray_gpuzarr calls.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np

from benchmarks.arrays.compressors import Family
from benchmarks.arrays.stores import cache_directory
from benchmarks.arrays.workloads import Workload
from benchmarks.host.chunk_table import ChunkTable, chunk_table
from benchmarks.host.task import Array, Opened, Task
from xarray_gpuzarr.machine.bench.readers import AbsentError
from xarray_gpuzarr.process import host_memory

_SOURCE = Path(__file__).with_suffix(".c")
_COLUMNS = (
    "part_offset",
    "part_nbytes",
    "part_first",
    "piece_start",
    "piece_nbytes",
    "piece_out",
    "piece_extent",
    "chunk_strides",
    "out_strides",
)


class _Job(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("n_threads", "n_parts", "ndim", "codec", "chunk_nbytes", "staging_nbytes", "in_order")
        ),
        ("paths", ctypes.POINTER(ctypes.c_char_p)),
        *((name, ctypes.c_void_p) for name in (*_COLUMNS, "out", "staging", "decoded")),
        *((name, ctypes.c_void_p) for name in ("make_context", "free_context", "decode")),
        ("next", ctypes.c_longlong),
        ("failed", ctypes.c_int),
    )


@dataclass(frozen=True, slots=True)
class _Library:
    """A codec in the enumeration of the C file, and the functions of a shared object that decode it."""

    number: int
    module: str = ""
    decode: str = ""
    make_context: str = ""
    free_context: str = ""


_BLOSC = _Library(2, "imagecodecs._blosc", "blosc_decompress_ctx")
_LIBRARIES: Mapping[Family, _Library] = {
    "none": _Library(0),
    "zstd": _Library(1, "imagecodecs._zstd", "ZSTD_decompressDCtx", "ZSTD_createDCtx", "ZSTD_freeDCtx"),
    "gzip": _Library(
        3,
        "imagecodecs._deflate",
        "libdeflate_gzip_decompress",
        "libdeflate_alloc_decompressor",
        "libdeflate_free_decompressor",
    ),
    "blosc": _BLOSC,
}


def open_plain_loop(task: Task) -> Opened:
    """Open a workload for the plain loop; see `Opened`."""
    return Opened(run=PlainLoop(task.workload, task.path / task.workload.variable).read)


def _is_in_order(workload: Workload) -> bool:
    """Say whether chunks are whole, and follow each other in the array."""
    axes = list(zip(workload.shape, workload.chunks, strict=True))
    split = [axis for axis, (n, c) in enumerate(axes) if c < n]
    return not any(n % c for n, c in axes) and not any(c > 1 for c in workload.chunks[: max(split, default=0)])


class PlainLoop:
    """The chunks of one array, read by C threads into an array in its own order.

    Parameters
    ----------
    workload : Workload
    path : pathlib.Path
        The array.

    Raises
    ------
    AbsentError
        There is no C compiler, or no decoder for the workload.
    """

    def __init__(self, workload: Workload, path: Path) -> None:
        self.workload = workload
        self._read_and_place = _compiled()
        in_order = _is_in_order(workload)
        table = chunk_table(workload, path, cut=in_order and workload.codec == "none")
        codec = _library(workload)
        n_threads = len(os.sched_getaffinity(0))
        columns = _columns(workload, table, in_order=in_order)
        columns["staging"] = np.empty(n_threads * int(columns["part_nbytes"].max()), np.uint8)
        columns["decoded"] = host_memory.aligned(n_threads * workload.chunk_nbytes)
        paths = [os.fsencode(table.files[n]) for n in table.file[table.part_first[:-1]].tolist()]
        self._kept = columns, (ctypes.c_char_p * len(paths))(*paths)
        self._job = _Job(
            n_threads=n_threads,
            n_parts=len(paths),
            ndim=len(workload.shape),
            codec=codec.number,
            chunk_nbytes=workload.chunk_nbytes,
            staging_nbytes=columns["staging"].nbytes // n_threads,
            in_order=in_order,
            paths=self._kept[1],
            **{name: column.ctypes.data for name, column in columns.items()},
            **{
                name: _address(codec.module, getattr(codec, name))
                for name in ("decode", "make_context", "free_context")
            },
        )

    def read(self) -> Array:
        """Return stored values in array order."""
        out = host_memory.empty(self.workload.shape, np.dtype(self.workload.dtype))
        self._job.out = out.ctypes.data
        if self._read_and_place(ctypes.byref(self._job)):
            raise OSError(f"{self.workload.name}: a file or a chunk is not as long as expected")
        return out


def _library(workload: Workload) -> _Library:
    family = workload.compressor.family
    if family not in _LIBRARIES:
        raise AbsentError(f"written for {', '.join(_LIBRARIES)}")
    return _LIBRARIES[family]


def _columns(workload: Workload, table: ChunkTable, *, in_order: bool) -> dict[str, Array]:
    """Return what the C file needs to know of each part and each piece."""
    itemsize, first = workload.itemsize, table.part_first[:-1]
    slots = table.out_start // workload.chunk_nbytes
    origin = np.stack(np.unravel_index(slots, workload.grid), axis=1) * workload.chunks
    extent = np.clip(np.array(workload.shape) - origin, 0, workload.chunks)
    extent[:, -1] *= itemsize
    out_strides = _strides(workload.shape, itemsize)
    part_offset = table.offset[first]
    columns = {
        "part_offset": part_offset,
        "part_nbytes": np.add.reduceat(table.nbytes, first),
        "part_first": table.part_first,
        "piece_start": table.offset - np.repeat(part_offset, np.diff(table.part_first)),
        "piece_nbytes": table.nbytes,
        "piece_out": table.out_start if in_order else origin @ out_strides,
        "piece_extent": extent,
        "chunk_strides": _strides(workload.chunks, itemsize),
        "out_strides": out_strides,
    }
    return {name: np.ascontiguousarray(column, np.int64) for name, column in columns.items()}


def _strides(shape: tuple[int, ...], itemsize: int) -> Array:
    """Return the strides of a C-ordered array, bytes."""
    return np.cumprod([itemsize, *shape[:0:-1]])[::-1]


def _address(module: str, name: str) -> int | None:
    if not name:
        return None
    try:
        library = ctypes.CDLL(import_module(module).__file__)
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except (ImportError, OSError, AttributeError) as err:
        raise AbsentError(f"no {name} in {module}") from err


@cache
def _compiled() -> ctypes._NamedFuncPointer:
    """Compile the C file, once for each of its versions, and return its function."""
    version = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    built = cache_directory() / f"plain-loop-{version}.so"
    if not built.exists():
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise AbsentError("no C compiler")
        built.parent.mkdir(parents=True, exist_ok=True)
        new = built.with_suffix(f".{os.getpid()}")
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-pthread", "-o", str(new), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AbsentError(f"{compiler}: {done.stderr.strip()[:200]}")
        new.replace(built)
    function = ctypes.CDLL(str(built)).read_and_place
    function.argtypes, function.restype = [ctypes.POINTER(_Job)], ctypes.c_int
    return function
