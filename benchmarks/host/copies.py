"""Cases that count copies: memory that a read takes beyond the result, in lengths of the array, for each kind of store.

memray watches a process of its own, in which the reader has read a small array before. An array is one chunk, and read
whole, so a buffer for the encoded chunk, or for the decoded one beside the result, is one length. What the reader on
a GPU copies within the host is counted on the simulated device, by what passes through its pinned memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure import AbsentError, Case, Contestant, Ready
from benchmarks.arrays.stores import write_workload
from benchmarks.arrays.workloads import Workload

STORES = ("local", "obstore local", "obstore S3", "fsspec S3")
READERS = ("zarr default", "zarr Fused", "gpuzarr host", "gpuzarr cuda, simulated")
_SECONDS = 120
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


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module.

    Parameters
    ----------
    scale : float
        Share of the elements; 1 for results that mean something.
    folder : pathlib.Path
        Cache of stores.
    """
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
                prepare=partial(_prepare, reader, path, workload, stores),
            )
            for reader in READERS
        ]

    return Case(
        name=f"copies/{workload.codec}",
        summary=f"{workload.summary}; buffers beyond the result, in lengths of the array",
        contestants=contestants,
    )


def _prepare(reader: str, path: Path, workload: Workload, stores: Sequence[str]) -> Ready:
    return Ready(measure=dict, facts={store: _copies(reader, store, path, workload) for store in stores})


def _copies(reader: str, store: str, path: Path, workload: Workload) -> float:
    request = {"reader": reader, "store": store, "path": str(path), "variable": workload.variable}
    command = [sys.executable, "-m", "benchmarks.count_copies", json.dumps(request)]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, cwd=root, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise (AbsentError if "ModuleNotFoundError" in last else RuntimeError)(f"{store}: {last}")
    return round(float(json.loads(done.stdout)), 2)
