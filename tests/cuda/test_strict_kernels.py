"""Kernels run as loosely as CUDA allows; and small kernels with mistakes, which such a run must find."""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers.kernels.mutants import mutants, stale
from helpers.kernels.on_host import run_child
from helpers.kernels.ptx_text import UnknownInstructionError, without_asm
from helpers.kernels.strict_cases import CHECKS
from helpers.kernels.strict_kernels import KernelError, run_source, strictly

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kernel", CHECKS)
def test_kernel_relies_on_no_more_than_cuda_promises(kernel: str, seed: int) -> None:
    with strictly(seed):
        CHECKS[kernel]()


# ---- small kernels: 64 threads a block, two blocks, an array of 128 zeros

N_BLOCKS, N_THREADS = 2, 64


def run(body: str, n_blocks: int = N_BLOCKS, seed: int = 0) -> np.ndarray:
    """Run the body of a kernel; `t`, `g`, `out` are the thread in its block, in the grid, and the array."""
    out = np.zeros(2 * N_THREADS, np.uint64)
    source = f"""
    typedef unsigned u4; typedef unsigned long long u8;
    extern "C" __global__ void k(u8 address) {{
        u8* const out = (u8*)address;
        const u4 t = threadIdx.x, g = blockIdx.x * blockDim.x + t;
        __shared__ u8 shared[64];
        {body}
    }}
    SHIM_ENTRY(k)"""
    run_source(source, (n_blocks, N_THREADS), [out.ctypes.data], seed)
    return out


MISTAKES = {
    "no barrier": ("shared[t] = g; out[g] = shared[63 - t];", "race in shared memory"),
    "barrier of a warp": ("shared[t] = g; __syncwarp(); out[g] = shared[63 - t];", "race in shared memory"),
    "barrier of other threads": (
        "shared[t] = g; __syncwarp(0xffu << t % 32 / 8 * 8); out[g] = shared[t ^ 31];",
        "race in shared memory",
    ),
    "within a warp": ("shared[t] = g; out[g] = shared[t ^ 1];", "race in shared memory"),
    "a vote is no barrier": ("shared[t] = g; __ballot_sync(~0u, 1); out[g] = shared[t ^ 1];", "race in shared memory"),
    "written too soon": (
        "shared[t] = g; __syncthreads(); out[g] = shared[63 - t]; shared[t] = 0;",
        "race in shared memory",
    ),
    "two values": ("out[0] = g;", "race in global memory: write"),
    "half of a word": ("((u4*)out)[1] = g; if (t == 9) out[0] = 1;", "race in global memory: write"),
    "between blocks": ("out[g] = t; out[127 - g] = 7;", "race in global memory"),
    "a barrier is not for other blocks": ("out[g] = 1; __syncthreads(); shared[t] = out[127 - g];", "race in global"),
    "read and atomic": ("if (t == 9) out[g] = out[0]; atomicAdd(out, 1ull);", "race in global memory"),
    "write and atomic": ("if (g == 9) out[0] = 5; atomicAdd(out, 1ull);", "race in global memory"),
    "ended before a barrier": ("if (t == 9) return; __syncthreads();", r"__syncthreads at .* thread 9 has ended"),
    "ended before a warp's": ("if (t == 9) return; __syncwarp();", r"__syncwarp at .* thread 9 has ended"),
    "two kinds of barrier": ("if (t == 9) __syncthreads(); else __syncwarp();", r"thread \d+ waits at"),
    "not named": ("__syncwarp(2u);", "__syncwarp of other threads"),
    "another thread's memory": (
        "u8 mine = g; shared[t] = (u8)&mine; __syncthreads(); out[g] = *(u8*)shared[63 - t];",
        "local memory of another thread",
    ),
    "shift by the width": ("out[g] = 1u << t;", "undefined: a shift"),
    "integer that does not hold it": ("double x = -1.0 - out[g]; out[g] = (u4)x;", "undefined: an integer that"),
    "not a number": ("double x = 0.0 / out[g]; out[g] = (long long)x;", "undefined: an integer that does not hold"),
    "outside of an array": ("shared[t + 1] = g;", "undefined: an index"),
    "division by zero": ("out[g] = 7 / out[g];", "undefined: a division"),
    "misaligned": ("*(u8*)((char*)out + 4) = 1;", "undefined: an address"),
    "memory that is not shared": ("static u8 kept; out[g] = kept; kept = t;", "memory of no kind"),
}


@pytest.mark.parametrize(("body", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_found(body: str, said: str) -> None:
    with pytest.raises(KernelError, match=said):
        run(body)


# ---- assembly


@pytest.mark.parametrize(("sign", "product"), [("s", -6), ("u", 3 * (2**32 - 2))])
def test_wide_product_and_sum(sign: str, product: int) -> None:
    asm = f'asm("mad.wide.{sign}32 %0, %1, %2, %3;" : "=l"(r) : "r"(a), "r"(b), "l"(c));'
    out = run(f"int a = 3, b = -2; u8 r, c = 1ull << 40; {asm} out[g] = r;")
    assert set(out.tolist()) == {2**40 + product}


@pytest.mark.parametrize(
    "statement",
    [
        'asm("mul.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));',
        'asm("div.approx.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));',
        'asm("mul.rn.ftz.f64 %0, %1, %2;" : "=d"(r) : "d"(a), "d"(b));',
        'asm("mul.rn.f32 %0, %1, %2;" : "=d"(r) : "f"(a), "f"(b));',
        'asm("mul.rn.f32 %0, %1, %1;" : "=f"(r) : "f"(a), "f"(b));',
        'asm("cvt.f32.f64 %0, %1;" : "=f"(r) : "d"(a));',
        'asm("cvt.rn.f64.f32 %0, %1;" : "=d"(r) : "f"(a));',
        'asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(r) : "r"(a), "r"(b), "r"(c));',
        'asm volatile("bar.sync 0;");',
        'asm("mul.rn.f32 %0, %1, %2; neg.f32 %0, %0;" : "=f"(r) : "f"(a), "f"(b));',
    ],
)
def test_assembly_that_is_not_understood_is_refused(statement: str) -> None:
    with pytest.raises(UnknownInstructionError):
        without_asm(statement)


# ---- mistakes put into the kernels on purpose


def test_every_kernel_has_mutants() -> None:
    assert {m.kernel for m in mutants()} == {*CHECKS}


def test_mistakes_that_are_written_down_can_be_made() -> None:
    assert stale() == []


@pytest.mark.parametrize("part", range(3))
def test_mutants_are_shown(part: int) -> None:
    kernels = [*CHECKS][part::3]
    child = run_child({**os.environ}, "-m", "helpers.kernels.mutants", *kernels)

    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert [line for line in lines if not line.startswith("shown: ")] == []
    assert len(lines) == sum(m.kernel in kernels for m in mutants())
