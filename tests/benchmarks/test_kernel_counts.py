"""How `benchmarks.kernel_counts` reads machine code, and what its page says."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from helpers.kernels import nvrtc
from helpers.kernels.on_host import require_compiler

from benchmarks.kernel_counts.cases import Case, all_cases
from benchmarks.kernel_counts.flow import find_flow
from benchmarks.kernel_counts.machine_code import (
    Block,
    MissingToolError,
    disassembler,
    find_blocks,
    parse_listing,
    read_machine_code,
)
from benchmarks.kernel_counts.source_counts import LineCount, SourceCounts, count_launches
from benchmarks.kernel_counts.throughput import budget, occupancy, share_of_copy
from xarray_gpuzarr.cuda.api import Kernel

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
NONE = Kernel(file="sum.cu", name="sum")


def is_disassembler_installed() -> bool:
    try:
        return bool(disassembler())
    except MissingToolError:
        return False


needs_scipy = pytest.mark.skipif(util.find_spec("scipy") is None, reason="scipy is not installed")
needs_tools = pytest.mark.skipif(
    nvrtc.library() is None or not is_disassembler_installed(), reason="the extra kernel-counts is not installed"
)

LISTING = """
sum:
.text.sum:
	//## File "/where/ever/sum.cu", line 3
        /*0000*/                   LDC R1, c[0x0][0x28] ;
	//## File "/where/ever/load.cuh", line 9 inlined at "/where/ever/sum.cu", line 4
	//## File "/where/ever/sum.cu", line 4
        /*0010*/                   LDG.E.64 R2, desc[UR4][R8.64+0x18] ;
	//## File "/where/ever/sum.cu", line 5
        /*0020*/              @!P0 BRA `(.L_x_2) ;
.L_x_1:
        /*0030*/               @P1 LDG.E.U16.CONSTANT R4, desc[UR4][R2.64] ;
        /*0040*/                   STG.E.128 desc[UR4][R8.64], R4 ;
        /*0050*/                   BRA.U UP0, `(.L_x_1) ;
.L_x_2:
        /*0060*/                   EXIT ;
.L_x_3:
        /*0070*/                   BRA `(.L_x_3);
        /*0080*/                   NOP;
"""


def test_listing_becomes_instructions_with_their_lines() -> None:
    instructions, labels = parse_listing(LISTING)
    assert [i.opcode for i in instructions] == [
        "LDC",
        "LDG.E.64",
        "BRA",
        "LDG.E.U16.CONSTANT",
        "STG.E.128",
        "BRA.U",
        "EXIT",
    ]
    assert [i.predicate for i in instructions] == ["", "", "@!P0", "@P1", "", "", ""]
    assert instructions[1].lines == (("load.cuh", 9), ("sum.cu", 4))
    assert instructions[2].lines == (("sum.cu", 5),)
    assert [i.nbytes for i in instructions if i.is_load] == [8, 2]
    assert [i.nbytes for i in instructions if i.is_store] == [16]
    assert labels[".L_x_1"] == 0x30


def test_branches_join_blocks() -> None:
    blocks = find_blocks(*parse_listing(LISTING))
    assert [len(b.instructions) for b in blocks] == [3, 3, 1]
    assert [sorted(b.followers) for b in blocks] == [[1, 2], [1, 2], []]
    assert [b.may_end for b in blocks] == [False, False, True]


SUBROUTINE = """
        /*0000*/                   CALL.REL.NOINC `($__internal_0_$__div) ;
        /*0010*/               @P0 EXIT ;
        /*0020*/                   CALL.REL.NOINC `($__internal_0_$__div) ;
        /*0030*/                   EXIT ;
$__internal_0_$__div:
        /*0040*/                   RET.REL.NODEC R2 `(sum) ;
"""


def test_a_subroutine_returns_to_all_of_its_callers() -> None:
    blocks = find_blocks(*parse_listing(SUBROUTINE))
    assert [b.followers for b in blocks] == [[4], [2], [4], [], [1, 3]]


# Four elements at a time, then one by one.
UNROLLED = """
	//## File "sum.cu", line 1
        /*0000*/              @!P0 BRA `(.L_rest) ;
.L_main:
	//## File "sum.cu", line 2
        /*0010*/                   STG.E [R2], R3 ;
        /*0020*/                   STG.E [R2+0x4], R3 ;
        /*0030*/                   STG.E.64 [R2+0x8], R4 ;
	//## File "sum.cu", line 1
        /*0040*/               @P0 BRA `(.L_main) ;
.L_rest:
        /*0050*/              @!P0 BRA `(.L_end) ;
.L_one:
	//## File "sum.cu", line 2
        /*0060*/                   STG.E [R2], R3 ;
	//## File "sum.cu", line 1
        /*0070*/               @P0 BRA `(.L_one) ;
.L_end:
        /*0080*/                   EXIT ;
"""


def counts(lines: dict[int, LineCount], n_threads: int = 32) -> SourceCounts:
    return SourceCounts(
        kernel=NONE, n_blocks=1, n_threads=n_threads, lines={("sum.cu", n): c for n, c in lines.items()}
    )


def without_main_loop(blocks: list[Block]) -> list[Block]:
    blocks[0].followers.remove(1)
    return blocks


@needs_scipy
@pytest.mark.parametrize(("n", "runs"), [(12, [1, 3, 1, 0, 1]), (2, [1, 0, 1, 2, 1])])
def test_bytes_tell_how_often_the_copies_of_a_loop_run(n: int, runs: list[int]) -> None:
    blocks = find_blocks(*parse_listing(UNROLLED))
    blocks = blocks if n == 12 else without_main_loop(blocks)
    stores = LineCount(by_threads=32 * n, by_warps=n, stored=32 * n * 4)
    found = find_flow(blocks, counts({1: LineCount(by_threads=32, by_warps=1), 2: stores}))
    np.testing.assert_allclose(found.by_threads, runs, atol=1e-6)


@needs_scipy
def test_a_loop_that_nobody_enters_does_not_run() -> None:
    blocks = without_main_loop(find_blocks(*parse_listing(UNROLLED)))
    stores = LineCount(by_threads=32 * 8, by_warps=8, stored=32 * 8 * 4)
    found = find_flow(blocks, counts({1: LineCount(by_threads=32 * 8, by_warps=8), 2: stores}))
    np.testing.assert_allclose(found.by_threads, [1, 0, 1, 8, 1], atol=1e-6)


@needs_scipy
def test_a_warp_spends_the_time_of_all_its_threads() -> None:
    blocks = find_blocks(*parse_listing(UNROLLED))
    one_of_32 = LineCount(by_threads=8, by_warps=8, stored=8 * 4)
    found = find_flow(blocks, counts({1: LineCount(by_threads=32, by_warps=1), 2: one_of_32}))
    assert found.by_warps[1] == pytest.approx(32 * found.by_threads[1])


def test_bounds() -> None:
    assert budget(6) == pytest.approx(51.2)
    assert occupancy(90, registers=48, shared_nbytes=1472, n_threads=256) == 0.625
    assert occupancy(120, registers=56, shared_nbytes=1472, n_threads=256) == pytest.approx(2 / 3)
    assert occupancy(90, registers=32, shared_nbytes=100 << 10, n_threads=256) == 0.25
    assert share_of_copy(90, 6, 30, {"integer": 10}) == (1, "memory")
    assert share_of_copy(90, 6, 102.4, {"integer": 10}) == (pytest.approx(0.5), "instructions")
    assert share_of_copy(120, 6, 30, {"double": 1.6}) == (pytest.approx(0.5), "double units")


def named(case: Case) -> str:
    return f"{case.kernel}, {case.what}, {case.shape}"


def test_source_is_counted_by_line() -> None:
    require_compiler()
    case = next(c for c in all_cases() if c.what == "u2 -> f4")
    (launch,) = (found for found in count_launches(case.run) if found.n_blocks)
    text = (Path(util.find_spec("xarray_gpuzarr.cuda").origin).parent / "kernels" / "scatter.cu").read_text()
    (line,) = (n for n, row in enumerate(text.splitlines(), 1) if "*(RESULT*)to[i] = result[i]" in row)
    count = launch.lines["scatter.cu", line]
    assert count.stored == 4 * case.n_elements
    assert count.by_warps * 32 >= count.by_threads >= case.n_elements


def test_the_page_has_a_row_for_every_case() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    assert [", ".join(row) for row in rows] == [named(case) for case in all_cases()]


def first_of_each_kernel() -> list[Case]:
    return list({case.kernel: case for case in reversed(all_cases())}.values())


@needs_tools
@pytest.mark.parametrize("arch", [90, 120])
@pytest.mark.parametrize("case", first_of_each_kernel(), ids=named)
def test_no_kernel_spills(case: Case, arch: int) -> None:
    require_compiler()
    launched: list[Kernel] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("helpers.kernels.on_host.launch", lambda kernel, *_: launched.append(kernel))
        with suppress(AssertionError):  # nothing was computed
            case.run()
    code = read_machine_code(next(k for k in launched if k.name == case.kernel), arch)
    assert code.spills == 0
    assert code.registers > 8
    assert sum(len(b.instructions) for b in code.blocks) == code.n_instructions > 50
