"""What results are measured on and by: processor, memory, versions, revision. Names no host."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from xarray_gpuzarr.machine.diagnosis.machine import processor

HOST_PACKAGES = (
    *("xarray-gpuzarr", "zarr", "numcodecs", "zarrs", "tensorstore", "zarrista", "rustytree-xarray"),
    *("insitubatch", "xbatcher", "xarray", "dask", "distributed", "numpy", "imagecodecs", "zstandard"),
    *("google-crc32c", "memray"),
)
_BY_CUDA = ("cupy-cuda{}x", "rmm-cu{}", "nvidia-libnvcomp-cu{}", "nvidia-nvcomp-cu{}", "kvikio-cu{}")
GPU_PACKAGES = tuple(name.format(major) for name in _BY_CUDA for major in (12, 13))


def about(module: str, settings: dict[str, object], packages: Sequence[str] = HOST_PACKAGES) -> dict[str, object]:
    """Return the first entries of a file of results.

    Parameters
    ----------
    module : str
        What was run, as ``python -m`` takes it.
    settings : dict
        Rounds, scale and the like.
    packages : sequence of str
        Distributions whose versions matter.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m {module} {shlex.join(sys.argv[1:])}".rstrip(),
        "settings": settings,
        "machine": machine(),
        "revision": revision(),
        "versions": {"python": platform.python_version(), **{package: version_of(package) for package in packages}},
    }


def machine() -> dict[str, object]:
    """Return processor, cores, memory and system."""
    return {
        "model": processor(),
        "n_cores": len(os.sched_getaffinity(0)),
        "memory_nbytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": [round(x, 2) for x in os.getloadavg()],
    }


def version_of(package: str) -> str:
    """Return the version of a distribution that is installed, or "absent"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def revision() -> str:
    """Return the commit; "-modified" if tracked files differ from it."""
    described = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=-modified"]
    try:
        return subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def default_out(kind: str) -> Path:
    """Return where results of a kind go, by today's date."""
    return Path(__file__).parent / "results" / f"{kind}-{datetime.now(UTC).date()}.json"
