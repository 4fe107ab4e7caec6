"""Runs CUDA kernels as loosely as CUDA allows, and fails where they rely on more: see ``strict_runtime.cpp``.

Far slower than `host_kernels`, whose launches it stands in for: for tests of their own.
"""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from helpers.kernels import on_host as host_kernels
from helpers.kernels.on_host import built, built_behind, require_compiler
from helpers.kernels.ptx_text import without_asm
from xarray_gpuzarr.cuda import launch
from xarray_gpuzarr.cuda.api import Kernel

_HERE = Path(__file__).parent
_RUNTIME = tuple(_HERE / n for n in ("strict_runtime.cpp", "strict_accesses.h", "strict_runtime.h", "host_stacks.h"))
_HEADERS = tuple(_HERE / n for n in ("strict_shim.h", "strict_runtime.h", "cuda_words.h", "ptx_arithmetic.h"))
_COMMON = ("-std=c++17", "-fPIC", "-w")
_UNDEFINED = ("undefined", "float-cast-overflow")
_WATCHED = (
    *("-Og", "-g1", "-ffp-contract=off", "-ftrivial-auto-var-init=pattern", "-fno-sanitize-recover=all"),
    *("-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"),
    *(f"-fsanitize={name}" for name in _UNDEFINED),
    "-fno-sanitize=vptr,null",
)
_MESSAGE_NBYTES = 1000


class KernelError(AssertionError):
    """A kernel relies on what no GPU promises."""


@contextmanager
def strictly(seed: int) -> Iterator[None]:
    """Let `host_kernels.HostLaunches` run kernels as loosely as CUDA allows, in an order drawn from `seed`."""
    run = functools.partial(run_strictly, seed=seed)
    with mock.patch.object(host_kernels, "launch", run):
        yield


@contextmanager
def kernels_from(folder: Path) -> Iterator[None]:
    """Take the kernels' sources from ``folder/kernels``."""
    with mock.patch.object(launch.resources, "files", return_value=folder):
        launch.kernel_source.cache_clear()
        yield
    launch.kernel_source.cache_clear()


def run_strictly(kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int], *, seed: int) -> None:
    """Run `kernel` on a one-dimensional grid, on host addresses.

    Raises
    ------
    KernelError
        It relies on an order that nothing gives, or on what C++ leaves undefined.
    """
    run_source(f"{launch.kernel_source(kernel)}\nSHIM_ENTRY({kernel.name})\n", (n_blocks, n_threads), args, seed)


def run_source(source: str, shape: tuple[int, int], args: Sequence[int], seed: int) -> None:
    """Run the kernel that a source has an entry for, with ``shape`` (blocks, threads)."""
    library = _library(without_asm(source))
    message = ctypes.create_string_buffer(_MESSAGE_NBYTES)
    status = _entry(library)(*shape, len(args), (ctypes.c_ulonglong * len(args))(*args), seed, message)
    assert status != -1, f"it takes another number of arguments than {len(args)}"
    if status:
        raise KernelError(re.sub(r"<(0x\w+)>", lambda at: _line(library, at[1]), message.value.decode()))


@functools.cache
def _entry(library: Path) -> Callable[..., int]:
    run = ctypes.CDLL(str(library)).shim_entry
    run.argtypes = [
        *(ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_ulonglong)),
        *(ctypes.c_ulonglong, ctypes.c_char_p),
    ]
    run.restype = ctypes.c_int
    return run


def _library(source: str) -> Path:
    include = f'#include "{_RUNTIME[0].name}"'
    runtime = built("strict_runtime.o", [*_COMMON, "-O2", "-c", "-x", "c++", "-"], include, _RUNTIME)
    watched = built_behind(_HEADERS, "strict_kernel.o", [*_COMMON, *_WATCHED, "-c"], source)
    return built("strict_kernel.so", ["-shared", "-Wl,-Bsymbolic", str(runtime), str(watched)], "", ())


def _line(library: Path, offset: str) -> str:
    """Return the file and line of a place in a library."""
    tool = Path(require_compiler()).with_name("addr2line")
    done = subprocess.run([tool, "-e", library, offset], check=True, capture_output=True, text=True)
    return Path(done.stdout.split()[0]).name
