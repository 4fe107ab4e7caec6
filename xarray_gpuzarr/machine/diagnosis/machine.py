"""`machine_section`: describes the machine.

It lists the GPU, the driver, packages and which of them are missing, and the processor, threads and memory of the host.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xarray_gpuzarr.backend.accessor.explanation import format_nbytes
from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.configuration import known_options
from xarray_gpuzarr.cuda.driver import cuda_version, cuda_version_text, driver_version, gpu_names
from xarray_gpuzarr.cuda.workspace import pinned_nbytes, scratch_nbytes
from xarray_gpuzarr.decoders.choice import missing_for_cuda
from xarray_gpuzarr.machine.diagnosis.report import Section
from xarray_gpuzarr.native.codec_functions import slow_codecs
from xarray_gpuzarr.native.library import why_absent
from xarray_gpuzarr.process.device_options import resource_options
from xarray_gpuzarr.process.host_memory import available_nbytes
from xarray_gpuzarr.process.settings import ignored_variables
from xarray_gpuzarr.process.threads import n_cores, thread_budget

_PACKAGES = ("xarray-gpuzarr", "zarr", "xarray", "dask", "numpy", "numcodecs", "deflate")
_GPU_PACKAGES = ("cupy", "rmm", "nvidia-libnvcomp", "kvikio", "dask-cuda")
_ENDINGS = ("", "-cuda12x", "-cuda13x", "-cu12", "-cu13")
"""Endings of the names of distributions that are built for a CUDA version, such as ``cupy-cuda12x``."""
_CUDA_13 = 13_000
"""CUDA 13.0, as the driver encodes versions."""


def machine_section(api: DeviceApi | None) -> Section:
    """Return a description of this machine. `api` is the GPU that reads go to, or None if they go to the host."""
    missing = missing_for_cuda()
    cuda = cuda_version()
    driver = None
    if cuda is not None:
        driver = ", ".join(filter(None, [driver_version(), f"CUDA {cuda_version_text(cuda)}"]))
    extra = "cuda12" if cuda is not None and cuda < _CUDA_13 else "cuda13"
    facts = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": _versions(_PACKAGES),
        "gpu_packages": _versions(_GPU_PACKAGES),
        "host": {
            "processor": processor(),
            "n_cores": n_cores(),
            "n_threads": thread_budget(),
            "why_no_loops": why_absent(),
            "slow_codecs": slow_codecs(),
            "ignored_variables": ignored_variables(known_options()),
            "memory_nbytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            "available_nbytes": available_nbytes(),
        },
        "gpus": gpu_names(),
        "driver": driver,
        "gpu": None if api is None else _gpu(api),
        "missing_for_cuda": missing,
        "install": _install(extra) if missing else None,
        "device": "host" if api is None else "cuda",
    }
    return Section(name="machine", title="What is here", rows=list(_rows(facts)), facts=facts)


def _install(extra: str) -> str:
    """Return what the user has to install for a GPU; `extra` is the extra of this package that fits the driver."""
    command = f"pip install 'xarray-gpuzarr[{extra}]'"
    if cuda_version() is None:
        return f"the NVIDIA driver first, on a machine with a GPU; then {command}"
    return command


def _rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table: a name and a value."""
    gpu = facts["gpu"]
    host = facts["host"]
    yield "reads go to", "the GPU" if gpu else "the host"
    if gpu:
        capability = f", compute capability {gpu['compute_capability']}" if gpu["compute_capability"] else ""
        memory = f"{format_nbytes(gpu['memory_nbytes'])}, {format_nbytes(gpu['free_nbytes'])} free"
        yield "GPU", f"{gpu['name']}{capability}, {memory}"
    else:
        yield "GPU", ", ".join(facts["gpus"]) or "none"
    if facts["driver"]:
        yield "driver", facts["driver"]
    if gpu:
        yield from _gpu_rows(gpu)
    if facts["missing_for_cuda"]:
        yield "missing", "for device='cuda': " + ", ".join(facts["missing_for_cuda"])
        yield "to install", facts["install"]
    if facts["gpu_packages"]:
        yield "for GPUs", _listed(facts["gpu_packages"])
    yield "host", f"{host['n_cores']} cores of {host['processor']}, {facts['system']}"
    yield "threads", f"{host['n_threads']} decode at once"
    why = host["why_no_loops"]
    yield "loops", "compiled ones are in use" if why is None else f"compiled ones are not in use: {why}"
    for slow in host["slow_codecs"]:
        yield "slow codec", slow
    for ignored in host["ignored_variables"]:
        yield "ignored", ignored
    available = host["available_nbytes"]
    free = f", {format_nbytes(available)} available" if available else ""
    yield "host memory", f"{format_nbytes(host['memory_nbytes'])}{free}; a read takes its result and a few MB a thread"
    yield "packages", f"Python {facts['python']}, {_listed(facts['packages'])}"


def _gpu_rows(gpu: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows about libraries, files and memory of a GPU."""
    yield "libraries", _listed(gpu["versions"]) or "versions unknown"
    why = gpu["why_no_files"]
    yield "files to GPU", f"through host memory: {why}" if why else "GDS can be used"
    pinned = f"{format_nbytes(gpu['pinned_nbytes'])} pinned host memory"
    yield "memory", f"{pinned} and {format_nbytes(gpu['scratch_nbytes'])} of the GPU, at most, for each read"
    yield "reads at once", str(gpu["n_reads"])


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def processor() -> str:
    """Return the name of the host's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu(api: DeviceApi) -> dict[str, Any]:
    """Return the properties of a device, without its serial number or UUID, which would identify the machine."""
    identity = api.identity
    options = resource_options()
    with api.activate():
        free, total = api.memory_nbytes()
    return {
        "name": identity.name if identity else "GPU of unknown name",
        "compute_capability": identity.compute_capability if identity else None,
        "driver": identity.driver if identity else None,
        "versions": dict(identity.versions) if identity else {},
        "free_nbytes": free,
        "memory_nbytes": total,
        "why_no_files": api.why_no_gds(),  # why GPUDirect Storage cannot read files straight into device memory
        "n_reads": options.n_reads,  # largest number of reads at once
        "pinned_nbytes": pinned_nbytes(options),
        "scratch_nbytes": scratch_nbytes(options, total),
    }


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those `packages` that are installed, with any ending: name of distribution -> version."""
    versions = {}
    for name in (f"{package}{ending}" for package in packages for ending in _ENDINGS):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
