"""Cases on local files, in the page cache and not, against bare positional reads of the same bytes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
import zarr

from benchmarks.measure import Case, Contestant, Ready, WrongValuesError
from benchmarks.stores import write_workload
from benchmarks.workloads import SERIES, Workload
from xarray_gpuzarr import read_array
from xarray_gpuzarr.fetch import index_cache
from xarray_gpuzarr.machine.bench.readers import PIPELINES

_BLOCK_NBYTES = 2 * 1024 * 1024
"""What our reader asks for at once, and so what the bare reads do."""
_PAGE_NBYTES = 4096

WORKLOADS = tuple(
    replace(
        SERIES,
        name=f"local-{codec.split()[0]}",
        summary=f"float32, 1 MB chunks, 100 a shard, 2 shards, {codec}",
        shape=(51_200_000,),
        codec=codec,
        operations=("read",),
    )
    for codec in ("none", "zstd 3")
)

Read = Callable[[], Any]
"""Read everything; every call starts from the stored bytes."""


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module.

    Parameters
    ----------
    scale : float
        Share of the elements; 1 for results that mean something.
    folder : pathlib.Path
        Cache of stores.
    """
    workloads = [w if scale == 1 else w.scaled(scale) for w in WORKLOADS]
    return [_case(workload, folder, cold=cold) for workload in workloads for cold in (False, True)]


def _case(workload: Workload, folder: Path, *, cold: bool) -> Case:
    def contestants() -> list[Contestant]:
        array = write_workload(workload, folder) / workload.variable
        files = sorted(f for f in (array / "c").rglob("*") if f.is_file())
        os.sync()  # pages that wait to be written cannot be dropped
        expected = zarr.open_array(array, mode="r")[...]
        peers: dict[str, Callable[[Path], Read]] = {"TensorStore": _open_tensorstore}
        peers |= {f"zarr {pipeline}": partial(_open_zarr, pipeline) for pipeline in PIPELINES}

        def reader(name: str, side: Any, opener: Callable[[Path], Read]) -> Contestant:
            prepare = partial(_prepare, opener, array, files, expected, cold=cold)
            return Contestant(name=name, side=side, nbytes=workload.nbytes, prepare=prepare)

        return [
            reader("gpuzarr", "ours", _open_ours),
            *(reader(name, "peer", opener) for name, opener in peers.items()),
            *(_bare(n_threads, files, cold=cold) for n_threads in (1, 2, 8)),
        ]

    where = "dropped from the page cache before each read" if cold else "in the page cache"
    return Case(
        name=f"local/{workload.codec} {'cold' if cold else 'warm'}",
        summary=f"{workload.summary}; files {where}",
        contestants=contestants,
    )


def _prepare(opener: Callable[[Path], Read], array: Path, files: Sequence[Path], expected: Any, *, cold: bool) -> Ready:
    read = opener(array)
    if not np.array_equal(read(), expected):
        raise WrongValuesError("other values than were stored")
    if not cold:
        return Ready(measure=lambda: _timed(read))
    _drop(files)
    return Ready(measure=lambda: _timed_cold(read, files), facts={"in memory when cold": _share_in_memory(files)})


def _bare(n_threads: int, files: Sequence[Path], *, cold: bool) -> Contestant:
    read = partial(_read_bare, n_threads, files)

    def prepare() -> Ready:
        read()
        return Ready(measure=lambda: _timed_cold(read, files) if cold else _timed(read))

    nbytes = sum(f.stat().st_size for f in files)
    return Contestant(name=f"bare reads, {n_threads} threads", side="limit", nbytes=nbytes, prepare=prepare)


def _timed(read: Read) -> float:
    index_cache.cache.clear()
    began = time.perf_counter()
    read()
    return time.perf_counter() - began


def _timed_cold(read: Read, files: Sequence[Path]) -> float:
    _drop(files)
    return _timed(read)


def _drop(files: Sequence[Path]) -> None:
    """Ask the system to forget what it has of files."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _share_in_memory(files: Sequence[Path]) -> float:
    """Return the share of a sample of pages that the system still has."""
    held = []
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            n_pages = path.stat().st_size // _PAGE_NBYTES
            held += [_is_held(fd, page * _PAGE_NBYTES) for page in range(0, n_pages, max(1, n_pages // 50))]
        finally:
            os.close(fd)
    return float(np.mean(held)) if held else 0.0


def _is_held(fd: int, offset: int) -> bool:
    try:
        os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    return True


# ---- readers


def _open_ours(array: Path) -> Read:
    opened = zarr.open_array(array, mode="r")
    return lambda: read_array(opened, device="host")


def _open_zarr(pipeline: str, array: Path) -> Read:
    # Strict: a codec that zarrs lacks is an error here instead of a silent change to zarr-python.
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline], "codec_pipeline.strict": True}):
        opened = zarr.open_array(array, mode="r")
    return lambda: opened[...]


def _open_tensorstore(array: Path) -> Read:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{array}/"}}
    opened = tensorstore.open(spec, open=True, read=True).result()
    return lambda: np.asarray(opened.read(order="C").result())


def _read_bare(n_threads: int, files: Sequence[Path]) -> None:
    """Read every byte of files, block after block, into one buffer for each thread."""
    blocks = [(path, at) for path in files for at in range(0, path.stat().st_size, _BLOCK_NBYTES)]
    left, lock = iter(blocks), threading.Lock()

    def drain() -> None:
        buffer = bytearray(_BLOCK_NBYTES)
        while True:
            with lock:
                block = next(left, None)
            if block is None:
                return
            fd = os.open(block[0], os.O_RDONLY)
            os.preadv(fd, [buffer], block[1])
            os.close(fd)

    threads = [threading.Thread(target=drain) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
