"""The kernels through NVIDIA's compiler, which needs no GPU: it is what compiles them on a user's machine."""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest
from helpers.every_pair import FULL
from helpers.kernels.on_host import kept, unfinished

from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.blosc import blosc_kernels
from xarray_gpuzarr.cuda.cast import REAL_DTYPES
from xarray_gpuzarr.cuda.checksum import checksum_kernels
from xarray_gpuzarr.cuda.filters import filter_kernels
from xarray_gpuzarr.cuda.launch import COMPILE_OPTIONS, all_kernels, kernel_source

WHEEL = "nvidia-cuda-nvrtc"


class CompileError(AssertionError):
    """The compiler refused a program; carries its log."""


@functools.cache
def library() -> Any:
    """Return the compiler's shared library, or None if the wheel is not installed."""
    try:
        files = metadata.files(WHEEL) or []
    except metadata.PackageNotFoundError:
        return None
    found = [f for f in files if f.name.startswith("libnvrtc.so")]
    return ctypes.CDLL(str(found[0].locate())) if found else None


def architectures() -> list[int]:
    """Return the architectures that the compiler makes code for, such as 75 and 90; none without one."""
    if library() is None:
        return []
    n = ctypes.c_int()
    _check(library().nvrtcGetNumSupportedArchs(ctypes.byref(n)))
    found = (ctypes.c_int * n.value)()
    _check(library().nvrtcGetSupportedArchs(found))
    return list(found)


def generations() -> list[int]:
    """Return the first architecture of each generation from Turing on; usually three of them."""
    first = {arch // 10: arch for arch in reversed(architectures()) if arch >= 75}
    found = sorted(first.values())
    return found if FULL else sorted({found[i * (len(found) - 1) // 2] for i in range(3) if found})


def compile_ptx(source: str, options: Sequence[str]) -> str:
    return _compiled(source, options, "PTX").rstrip(b"\0").decode()


def _compiled(source: str, options: Sequence[str], kind: str) -> bytes:
    """Return what is kept of an earlier session, or compile."""

    def write(result: Path) -> None:
        made = unfinished(result)
        made.write_bytes(_compile(source, options, kind))
        made.replace(result)

    return kept(f"kernel.{kind.lower()}", [metadata.version(WHEEL), *options, source], write).read_bytes()


def _compile(source: str, options: Sequence[str], kind: str) -> bytes:
    nvrtc, program = library(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        arguments = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
        log = _text(program, "ProgramLog")
        # Warnings that the compiler has no error for are in the log only.
        if status or log.strip(b"\0\n "):
            raise CompileError(f"{' '.join(options)}\n{log.decode()}")
        return _text(program, kind)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(program: ctypes.c_void_p, what: str) -> bytes:
    nbytes = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{what}Size")(program, ctypes.byref(nbytes)))
    text = ctypes.create_string_buffer(nbytes.value)
    _check(getattr(library(), f"nvrtcGet{what}")(program, text))
    return text.raw


def _check(status: int) -> None:
    assert status == 0, f"NVRTC status {status}"


pytestmark = pytest.mark.skipif(library() is None, reason=f"the wheel {WHEEL} is not installed")

ADDED_BY_CUPY = ("-ftz=true", "--device-as-default-execution-space")
OPTIONS = (*COMPILE_OPTIONS, *ADDED_BY_CUPY)


def pair(kernel: Kernel) -> tuple[str, ...]:
    return tuple(value for _, value in kernel.defines)


def kernels(name: str) -> list[Kernel]:
    return [k for k in all_kernels() if k.name == name]


def chosen(name: str, *pairs: tuple[str, ...]) -> list[Kernel]:
    return [k for k in kernels(name) if pair(k) in pairs]


VARIED = [
    *(k for name in ("move", "unshuffle", "blosclz", "checksum", "packbits") for k in kernels(name)),
    *chosen("scatter", ("f8", "f2")),
    *chosen("element_codec", ("f4", "i2", "cast_value"), ("i2", "f8", "scaled")),
    *chosen("delta", ("2", "4")),
    *chosen("float_delta", ("f8",)),
    *chosen("points", ("f4", "f8")),
]
EDGES = [k for k in kernels("scatter") if len(pair(k)) == 3 or pair(k)[0] == "i2" or pair(k)[1] == "f4"]
RULES = ("astype", "scaled", "cast_value")
FILTERS = [
    *(k for name in ("delta", "float_delta", "packbits") for k in kernels(name)),
    *chosen("element_codec", *itertools.product(("i2", "f8", "u8", "f4"), ("f4",), RULES)),
    *chosen("element_codec", *itertools.product(("f4", "f8", "u8"), ("i2",), RULES)),
    *chosen("element_codec", ("i2", "i2", "scaled_integer"), ("u8", "u8", "scaled_integer")),
    *chosen("element_codec", ("f2", "f8", "scaled"), ("f8", "f2", "scaled")),
]


def named(kernel: Kernel) -> str:
    return "-".join((kernel.name, *pair(kernel)))


REFUSED = re.compile(r"\S*\.ftz\S*|fma\.\S*|abs\.\S*")
"""Instructions that flush or fuse, or that look at a NaN as at a number: its bits are looked at, never its value."""

IS_FINITE = re.compile(r"abs(?:\.ftz)?\.f32\s+(%\w+), %\w+;\s+setp\.(?:equ|ne)(?:\.ftz)?\.f32\s+%\w+, \1, 0f7F800000;")
"""Says the same of every value as its bits do, flushed or not."""


def ptx_of(kernel: Kernel, arch: int) -> str:
    ptx = compile_ptx(kernel_source(kernel), [*OPTIONS, f"-arch=compute_{arch}"])
    assert f".entry {kernel.name}(" in ptx
    return ptx


def refused(kernel: Kernel, arch: int) -> list[str]:
    return REFUSED.findall(IS_FINITE.sub("", ptx_of(kernel, arch)))


@pytest.mark.parametrize("kernel", [*kernels("move"), *kernels("points"), *EDGES, *FILTERS], ids=named)
def test_kernel_compiles_without_flushing_or_fusing(kernel: Kernel) -> None:
    assert refused(kernel, 75) == []


FLOATING = [
    *(k for k in kernels("points") if pair(k) in itertools.product(("f2", "f4", "f8"), repeat=2)),
    *chosen("scatter", ("i2", "f4"), ("u1", "f8"), ("f8", "f4")),
    *kernels("float_delta"),
]


@pytest.mark.parametrize("arch", [90, 100, 120])
@pytest.mark.parametrize("kernel", FLOATING, ids=named)
def test_other_compilers_neither_flush_nor_fuse(kernel: Kernel, arch: int) -> None:
    # compute_100 and newer have one of their own, which sees through more.
    assert refused(kernel, arch) == []


WIDE = {"unshuffle": "st.v4.", "checksum": "ld.v4."}


@pytest.mark.parametrize("kernel", [k for name in (*WIDE, "blosclz") for k in kernels(name)], ids=named)
def test_registers_hold_what_threads_work_on(kernel: Kernel) -> None:
    ptx = ptx_of(kernel, 75)
    assert ".local" not in ptx
    assert WIDE.get(kernel.name, "") in ptx
    assert ".nc." not in ptx or kernel.name != "blosclz"  # a stream's target is read as others have written it


def test_every_family_is_among_the_compiled() -> None:
    assert set(all_kernels()) >= {*blosc_kernels(), *checksum_kernels(), *filter_kernels()}


def test_every_cast_is_among_the_compiled() -> None:
    casts = {pair(k) for k in kernels("points") if len(pair(k)) == 2}
    assert {s for s, _ in casts} == {r for _, r in casts} == set(REAL_DTYPES)
    assert casts == {pair(k) for k in kernels("scatter") if len(pair(k)) == 2}


@pytest.mark.parametrize("arch", generations())
def test_kernels_assemble_for_every_generation(arch: int) -> None:
    for kernel in VARIED:
        assert _compiled(kernel_source(kernel), [*OPTIONS, f"-arch=sm_{arch}"], "CUBIN")


@pytest.mark.parametrize(("file", "text"), [("points.cu", 'extern "C"'), ("cast.cuh", "struct Cast")])
def test_errors_name_the_file_and_the_line(file: str, text: str) -> None:
    lines = (resources.files("xarray_gpuzarr.cuda") / "kernels" / file).read_text().splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.startswith(text))
    broken = kernel_source(VARIED[-1]).replace(text, f"oops {text}", 1)
    with pytest.raises(CompileError, match=rf"{re.escape(file)}\({number}\): error"):
        compile_ptx(broken, [*OPTIONS, "-arch=compute_75"])
