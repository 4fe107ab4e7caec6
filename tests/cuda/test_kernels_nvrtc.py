"""The kernels through NVIDIA's compiler, which needs no GPU: it is what compiles them on a user's machine."""

from __future__ import annotations

import itertools
import re
from importlib import resources

import pytest
from helpers.kernels import nvrtc

from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.blosc import blosc_kernels
from xarray_gpuzarr.cuda.checksum import checksum_kernels
from xarray_gpuzarr.cuda.elements import REAL_DTYPES
from xarray_gpuzarr.cuda.filters import filter_kernels
from xarray_gpuzarr.cuda.launch import COMPILE_OPTIONS, all_kernels, kernel_source

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason=f"the wheel {nvrtc.WHEEL} is not installed")

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
    *chosen("elements", ("f4", "i2", "cast_value"), ("i2", "f8", "scaled")),
    *chosen("delta", ("2", "4")),
    *chosen("float_delta", ("f8",)),
    *chosen("points", ("f4", "f8")),
]
EDGES = [k for k in kernels("scatter") if len(pair(k)) == 3 or pair(k)[0] == "i2" or pair(k)[1] == "f4"]
RULES = ("astype", "scaled", "cast_value")
FILTERS = [
    *(k for name in ("delta", "float_delta", "packbits") for k in kernels(name)),
    *chosen("elements", *itertools.product(("i2", "f8", "u8", "f4"), ("f4",), RULES)),
    *chosen("elements", *itertools.product(("f4", "f8", "u8"), ("i2",), RULES)),
    *chosen("elements", ("i2", "i2", "scaled_integer"), ("u8", "u8", "scaled_integer")),
    *chosen("elements", ("f2", "f8", "scaled"), ("f8", "f2", "scaled")),
]


def lines_of(file: str) -> list[str]:
    return (resources.files("xarray_gpuzarr.cuda") / "kernels" / file).read_text().splitlines()


def named(kernel: Kernel) -> str:
    return "-".join((kernel.name, *pair(kernel)))


REFUSED = re.compile(r"\S*\.ftz\S*|fma\.\S*|abs\.\S*")
"""Instructions that flush or fuse, or that look at a NaN as at a number: its bits are looked at, never its value."""

IS_FINITE = re.compile(r"abs(?:\.ftz)?\.f32\s+(%\w+), %\w+;\s+setp\.(?:equ|ne)(?:\.ftz)?\.f32\s+%\w+, \1, 0f7F800000;")
"""Says the same of every value as its bits do, flushed or not."""


def ptx_of(kernel: Kernel, arch: int) -> str:
    ptx = nvrtc.compile_ptx(kernel_source(kernel), [*OPTIONS, f"-arch=compute_{arch}"])
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


@pytest.mark.parametrize("arch", nvrtc.generations())
def test_kernels_assemble_for_every_generation(arch: int) -> None:
    for kernel in VARIED:
        assert nvrtc.compile_cubin(kernel_source(kernel), [*OPTIONS, f"-arch=sm_{arch}"])


def test_errors_name_the_file_and_the_line() -> None:
    kernel = VARIED[-1]
    number = next(i for i, line in enumerate(lines_of("points.cu"), 1) if "extern" in line)
    broken = kernel_source(kernel).replace('extern "C"', "oops extern", 1)
    with pytest.raises(nvrtc.CompileError, match=rf"points\.cu\({number}\): error"):
        nvrtc.compile_ptx(broken, [*OPTIONS, "-arch=compute_75"])


def test_errors_name_an_included_file() -> None:
    number = next(i for i, line in enumerate(lines_of("element.cuh"), 1) if line.startswith("struct Cast"))
    broken = kernel_source(VARIED[-1]).replace("struct Cast", "oops struct Cast", 1)
    with pytest.raises(nvrtc.CompileError, match=rf"element\.cuh\({number}\): error"):
        nvrtc.compile_ptx(broken, [*OPTIONS, "-arch=compute_75"])
