"""How often the lines of a kernel run: the kernel's own text, built by g++ and run on the host, every step counted."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from helpers.kernels import on_host as host_kernels  # type: ignore[import-not-found]
from helpers.kernels.ptx_text import without_asm

from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.launch import kernel_source

Line = tuple[str, int]
"""File and number."""

_SHIM = Path(host_kernels.__file__).with_name("cuda_shim.h")
_TRACE = Path(__file__).with_name("trace.h")
_FLAGS = ("-std=c++17", "-fPIC", "-shared", "-ffp-contract=off", "-w", "-g")
_BLOCKS = ("-O0", "-fsanitize-coverage=trace-pc")
_ACCESSES = ("-O1", "-fsanitize=thread", "-fno-tree-loop-distribute-patterns", "-fno-if-conversion")
_ROOM = 1 << 16


@dataclass(slots=True)
class LineCount:
    """What all threads of a launch do in one source line."""

    by_threads: float = 0
    """How often threads run it."""
    by_warps: float = 0
    """How often warps run it: each as often as the busiest of its threads."""
    loaded: float = 0
    """Bytes that threads load in it, of anything but local variables."""
    stored: float = 0


@dataclass(frozen=True, kw_only=True)
class SourceCounts:
    """A launch, as it ran on the host."""

    kernel: Kernel
    n_blocks: int
    n_threads: int
    lines: dict[Line, LineCount] = field(default_factory=dict)


def count_launches(run: Callable[[], object]) -> list[SourceCounts]:
    """Call something that launches kernels through `helpers.kernels.on_host`; return what each launch did."""
    found: list[SourceCounts] = []

    def counted(kernel: Kernel, n_blocks: int, n_threads: int, args: Sequence[int]) -> None:
        lines: dict[Line, LineCount] = defaultdict(LineCount)
        for kinds in (_BLOCKS, _ACCESSES):
            _trace(kernel, kinds, (n_blocks, n_threads, args), lines)
        found.append(SourceCounts(kernel=kernel, n_blocks=n_blocks, n_threads=n_threads, lines=dict(lines)))

    usual = host_kernels.launch
    host_kernels.launch = counted
    try:
        run()
    finally:
        host_kernels.launch = usual
    return found


def _trace(
    kernel: Kernel, flags: Sequence[str], launch: tuple[int, int, Sequence[int]], lines: dict[Line, LineCount]
) -> None:
    with TemporaryDirectory() as folder:
        library = Path(folder) / "traced.so"
        source = f"{without_asm(kernel_source(kernel))}\nSHIM_ENTRY({kernel.name})\n"
        shim = ("-include", str(_SHIM), "-include", str(_TRACE), "-x", "c++", "-")
        # Linked on its own, so that no sanitizer's library comes along.
        unlinked = library.with_suffix(".o")
        compiler = host_kernels.require_compiler()
        subprocess.run(
            [compiler, *_FLAGS, *flags, "-c", *shim, "-o", str(unlinked)], input=source, text=True, check=True
        )
        subprocess.run([compiler, "-shared", "-g", str(unlinked), "-o", str(library)], check=True)
        _add(_run(library, *launch), _lines_of_places(library), lines)


def _run(library: Path, n_blocks: int, n_threads: int, args: Sequence[int]) -> npt.NDArray[np.uint64]:
    loaded = ctypes.CDLL(str(library))
    loaded.shim_entry.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p]
    status = loaded.shim_entry(n_blocks, n_threads, len(args), (ctypes.c_ulonglong * len(args))(*args))
    if status:
        raise ValueError(f"the kernel takes another number of arguments than {len(args)}")
    rows = np.zeros((_ROOM, 5), np.uint64)
    n = loaded.trace_result(rows.ctypes.data_as(ctypes.c_void_p), _ROOM)
    return rows[:n]


def _lines_of_places(library: Path) -> dict[int, list[Line]]:
    """Return the lines that each traced place stands for: an access, for its own; a block, for all up to the next.

    A place is named by where its call returns to.
    """
    dump = _output("objdump", "--dwarf=decodedline", str(library))
    rows = re.finditer(r"^(\S+\.\w+) +(\d+) +(0x[0-9a-f]+)", dump, re.MULTILINE)
    table = sorted((int(m[3], 16), (m[1], int(m[2]))) for m in rows)
    starts = np.array([at for at, _ in table])
    code = _output("objdump", "-d", "--no-show-raw-insn", str(library))
    steps = [(int(m[1], 16), m[2]) for m in re.finditer(r"^ *([0-9a-f]+):\s+(.*)$", code, re.MULTILINE)]
    places = [(at, after) for (at, step), (after, _) in pairwise(steps) if re.search(r"trace_pc|__tsan_", step)]
    ends = [*(call for call, _ in places[1:]), places[-1][1] + 1]
    found = {}
    for (call, place), end in zip(places, ends, strict=True):
        first, last = np.searchsorted(starts, call, "right") - 1, np.searchsorted(starts, end, "left")
        found[place] = [line for _, line in table[max(first, 0) : max(last, first + 1)]]
    return found


def _add(rows: npt.NDArray[np.uint64], table: dict[int, list[Line]], lines: dict[Line, LineCount]) -> None:
    for line in {line for place in table.values() for line in place}:
        lines[line]  # those that never run are counted, too
    for address, kind, nbytes, by_threads, by_warps in rows.tolist():
        first = table[address][0]
        if kind == 0:
            for line in set(table[address]):
                count = lines[line]
                count.by_threads, count.by_warps = max(count.by_threads, by_threads), max(count.by_warps, by_warps)
        elif kind == 1:
            lines[first].loaded += nbytes * by_threads
        else:
            lines[first].stored += nbytes * by_threads


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
