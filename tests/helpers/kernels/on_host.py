"""Runs CUDA kernels on the host: the same source, built by a C++ compiler through ``cuda_shim.h``.

Libraries are kept in a directory of the user's own below the system's temporary one, named by a hash of all that they
are made of, so that test processes and clones share them.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.kernels.ptx_text import without_asm
from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.launch import kernel_source

_HERE = Path(__file__).parent
_HEADERS = tuple(_HERE / n for n in ("cuda_shim.h", "cuda_words.h", "host_stacks.h", "ptx_arithmetic.h"))
_TESTS = Path(__file__).parents[2]
_ALONE = "-fno-gnu-unique"
"""Without it kernels with arguments of the same types share `Shim::kernel`, and threads may run but one of them."""
_FLAGS = (
    *("-std=c++17", "-fPIC", "-shared", _ALONE, "-ffp-contract=off"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
)
_ALL_IS_LOADED = "-nostdlib"
"""The interpreter has what kernels call, all of it the C library's; a linker takes half as long if it need not look."""
_FAST = ("-O1", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error", _ALL_IS_LOADED)
_SANITIZED = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_CHILD_S = 170
"""Seconds after which a child hangs."""
_loading = threading.Lock()


class BuildError(AssertionError):
    """The compiler refused a program; carries what it said."""


def launch(kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int]) -> None:
    """Run `kernel` on a one-dimensional grid, on host addresses; done on return."""
    assert n_blocks > 0, f"{kernel.name}: CUDA takes no empty grid"
    run, lock = _load(kernel)
    with lock:
        status = run(n_blocks, n_threads, len(args), (ctypes.c_ulonglong * len(args))(*args))
    assert status == 0, f"{kernel.name} takes another number of arguments than {len(args)}"


def build(kernel: Kernel) -> Kernel:
    """Build `kernel`, so that no launch has to; return it."""
    _load(kernel)
    return kernel


class HostLaunches:
    """As much of a `DeviceApi` as the typed launches need."""

    def launch(self, kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int], _stream: object) -> None:
        launch(kernel, n_blocks, n_threads, args)


def require_compiler() -> str:
    """Return the path of the compiler; skip the test if there is none, or no GPU could be here."""
    if sys.platform != "linux":
        pytest.skip("kernels are built for the host on Linux, where GPUs are")
    found = shutil.which("g++")
    if found is None:
        missing = pytest.fail if os.environ.get("XARRAY_GPUZARR_REQUIRE_COMPILER") == "1" else pytest.skip
        missing("g++ is not installed: kernels cannot be built for the host")
    return found


def sanitized_environment() -> dict[str, str]:
    """Return the environment of a child process in which kernels abort on any access outside of an allocation."""
    compiler = require_compiler()
    names = ("libasan.so", "libubsan.so", "libstdc++.so")
    paths = [_output((compiler, f"-print-file-name={name}")).strip() for name in names]
    return {
        **os.environ,
        "XARRAY_GPUZARR_SANITIZE": "1",
        "HYPOTHESIS_PROFILE": "few",
        "LD_PRELOAD": " ".join(paths),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter leaks by design
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def run_child(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in another process, where this package's tests can be imported; one that hangs says where."""
    environment = environment | {"PYTHONPATH": f"{_TESTS}:{_TESTS}/cuda:{_TESTS.parent}", "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_TESTS.parent
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=_CHILD_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            stdout, stderr = process.communicate(timeout=20)
            pytest.fail(f"{arguments} hang:\n{stdout[-3000:]}\n{stderr[-12000:]}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def assert_sanitizers_catch(program: str, *, harmless: Sequence[object], aborted: Sequence[object]) -> str:
    """Have ``run(*case)`` of a program end well or not, under sanitizers, in a fork each; return what they say."""
    cases = [(case, True) for case in harmless] + [(case, False) for case in aborted]
    forks = f"""
import os
for case, is_harmless in {cases!r}:
    if not os.fork():
        run(*case)
        os._exit(0)
    assert (os.wait()[1] == 0) == is_harmless, case
"""
    child = run_child(sanitized_environment(), "-c", program + forks)
    assert child.returncode == 0, child.stderr
    return child.stderr


@functools.cache
def _load_once(kernel: Kernel) -> tuple[Callable[..., int], threading.Lock]:
    run = ctypes.CDLL(str(_build(kernel))).shim_entry
    run.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_ulonglong)]
    run.restype = ctypes.c_int
    return run, threading.Lock()


def _load(kernel: Kernel) -> tuple[Callable[..., int], threading.Lock]:
    with _loading:
        return _load_once(kernel)


def _build(kernel: Kernel) -> Path:
    """Return the shared library of `kernel`, built if need be."""
    mode = _SANITIZED if os.environ.get("XARRAY_GPUZARR_SANITIZE") == "1" else _FAST
    source = f"{without_asm(kernel_source(kernel))}\nSHIM_ENTRY({kernel.name})\n"
    return built_behind(_HEADERS, f"{kernel.name}.so", [*_FLAGS, *mode], source)


def built_behind(headers: Sequence[Path], name: str, flags: Sequence[str], source: str) -> Path:
    """Return what the compiler makes of `source` behind the first of `headers`, parsed once for all."""
    text = f'#include "{headers[0].name}"\n'
    header = _made(headers[0].name, [*flags, "-x", "c++-header"], text, headers, _precompile)
    return built(name, [*flags, "-include", str(header), "-x", "c++", "-"], source, headers)


def built(name: str, command: Sequence[str], source: str, files: Sequence[Path]) -> Path:
    """Return what the compiler makes of `source`, which is read from stdin and may include `files`; made only once."""
    return _made(name, command, source, files, _compile)


def _made(
    name: str,
    command: Sequence[str],
    source: str,
    files: Sequence[Path],
    make: Callable[[Sequence[str], str, Path], subprocess.CompletedProcess[str]],
) -> Path:
    compiler = require_compiler()
    parts = [*command, _output((compiler, "--version")), *(f"{f.name}\0{f.read_text()}" for f in files), source]

    def build(result: Path) -> None:
        done = make([compiler, *sorted({f"-I{f.parent}" for f in files}), *command], source, result)
        if done.returncode:
            raise BuildError(f"{name} does not compile for the host:\n{done.stderr}")

    return kept(name, parts, build)


def kept(name: str, parts: Sequence[str], make: Callable[[Path], object]) -> Path:
    """Return a file named by a hash of what it is made of; of all processes one makes it, and the others wait."""
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"xarray_gpuzarr_kernels_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    result = folder / f"{key}_{name}"
    if not result.exists():
        with _alone(folder / f"lock_{key[:2]}"):
            if not result.exists():
                make(result)
    return result


def unfinished(result: Path) -> Path:
    """Return where this process writes a file that appears whole or not at all."""
    return result.with_name(f"{os.getpid()}_{result.name}")


def _compile(command: Sequence[str], source: str, result: Path) -> subprocess.CompletedProcess[str]:
    made = unfinished(result)
    done = _run([*command, "-o", str(made)], source)
    if not done.returncode:
        made.replace(result)
    return done


def _precompile(command: Sequence[str], source: str, result: Path) -> subprocess.CompletedProcess[str]:
    """Write a header, and behind it what the compiler takes in its stead."""
    folder = unfinished(result)
    folder.mkdir(exist_ok=True)
    header, parsed = folder / result.name, folder / f"{result.name}.gch"
    header.write_text(source)
    done = _run([*command, str(header), "-o", str(parsed)], "")
    if not done.returncode:
        parsed.replace(result.with_name(parsed.name))
        header.replace(result)
    shutil.rmtree(folder)
    return done


def _run(command: Sequence[str], source: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    return subprocess.run(command, input=source, text=True, capture_output=True, check=False, env=environment)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Keep other threads and processes out; a process that dies lets them in."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def _output(command: tuple[str, ...]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
