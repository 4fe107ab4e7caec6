"""Cases to rows of a table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from benchmarks.kernel_counts.cases import Case
from benchmarks.kernel_counts.flow import find_flow
from benchmarks.kernel_counts.machine_code import MachineCode, read_machine_code
from benchmarks.kernel_counts.source_counts import SourceCounts, count_launches
from benchmarks.kernel_counts.throughput import budget, occupancy, pipe_of, share_of_copy


@dataclass(frozen=True, kw_only=True)
class Column:
    """What one architecture makes of a case."""

    instructions: float
    """Per element."""
    registers: int
    occupancy: float
    spills: int
    share: float
    """Of the rate of a copy, at most."""
    bound: str
    """What that share is due to."""
    misfit: float
    """What lines contradict, as a part of all instructions: a large one makes the count doubtful."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case, counted."""

    case: Case
    budget: float
    """Instructions per element that a copy of as many bytes leaves time for."""
    columns: dict[int, Column]
    """By architecture."""


def count(case: Case) -> Row:
    """Count what a case executes."""
    launches = [launch for launch in count_launches(case.run) if launch.kernel.name == case.kernel and launch.n_blocks]
    if len(launches) != 1:
        raise ValueError(f"{case.kernel}, {case.what}: launched {len(launches)} times")
    codes = [read_machine_code(launches[0].kernel, arch) for arch in (90, 120)]
    columns = {code.arch: _column(case, launches[0], code) for code in codes}
    return Row(case=case, budget=budget(case.nbytes), columns=columns)


def _column(case: Case, launch: SourceCounts, code: MachineCode) -> Column:
    flow = find_flow(code.blocks, launch)
    each = launch.n_blocks * launch.n_threads / case.n_elements
    by_pipe: dict[str, float] = defaultdict(float)
    total = 0.0
    for runs, block in zip(flow.by_warps, code.blocks, strict=True):
        total += runs * len(block.instructions) * each
        for instruction in block.instructions:
            if pipe := pipe_of(instruction.name, instruction.opcode):
                by_pipe[pipe] += runs * each
    share, bound = share_of_copy(code.arch, case.nbytes, total, by_pipe)
    return Column(
        instructions=total,
        registers=code.registers,
        occupancy=occupancy(
            code.arch, registers=code.registers, shared_nbytes=code.shared_nbytes, n_threads=launch.n_threads
        ),
        spills=code.spills,
        share=share,
        bound=bound,
        misfit=flow.misfit,
    )


_HEAD = "| kernel | what | chunk | instructions | budget | share | bound by | registers | occupancy |"


def markdown(rows: list[Row]) -> str:
    """Return the table; of two numbers the first is of sm_90, the second of sm_120."""
    lines = [_HEAD, "|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        first, second = row.columns[90], row.columns[120]
        cells = (
            f"`{row.case.kernel}`",
            row.case.what,
            row.case.shape,
            f"{first.instructions:.1f} / {second.instructions:.1f}",
            f"{row.budget:.0f}",
            f"{first.share:.2f}",
            first.bound,
            f"{first.registers} / {second.registers}",
            f"{first.occupancy:.0%} / {second.occupancy:.0%}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
