"""How often each basic block of machine code runs, from how often the source lines behind it do.

Threads flow through the blocks: as many leave one as come to it. Of all such flows the one is taken that agrees best
with what the source was seen to do (bytes loaded and stored in each line, runs of each line), and among equals the one
with the fewest instructions. That is a linear program.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.kernel_counts.machine_code import HOW_TO_INSTALL, Block, Instruction, MissingToolError
from benchmarks.kernel_counts.source_counts import LineCount, SourceCounts

STORE, LOAD, IDLE, LINE, INSTRUCTION = 300.0, 100.0, 30.0, 1.0, 0.02
"""What it costs if a store, a load or a line runs once more or less often than it was seen to; if a block runs most of
whose lines never did; that an instruction runs at all."""

Row = dict[int, float]
"""Factors of variables, or of blocks."""
_NONE = 1e-9
_WITHOUT_LINE = ("BRA", "BSSY", "BSYNC", "NOP", "WARPSYNC", "BMOV")
"""Instructions that join threads again: the compiler gives them the line of any branch."""
Lines = Mapping[tuple[str, int], LineCount]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """How often blocks run, for each thread that is launched."""

    by_threads: npt.NDArray[np.float64]
    """Shape (n_blocks,)."""
    by_warps: npt.NDArray[np.float64]
    """The same, a warp counting for all its threads."""
    misfit: float
    """What the counts of lines contradict, as a part of all instructions."""


def find_flow(blocks: list[Block], counts: SourceCounts) -> Flow:
    """Return how often blocks run.

    Parameters
    ----------
    blocks : list of Block
        The first one is the entry.
    counts : SourceCounts
        A launch of the same kernel on the host.
    """
    n_threads = counts.n_blocks * counts.n_threads
    lines = {line: _each(count, n_threads) for line, count in counts.lines.items()}
    program = _Program(blocks)
    for is_kind, told, cost in _ANCHORS:
        _add_anchors(program, lines, is_kind, told, cost)
    _add_lines(program, lines)
    runs, misfit = program.solve_connected(lines)
    return Flow(by_threads=runs, by_warps=runs * _spread(blocks, lines), misfit=misfit)


def _each(count: LineCount, n_threads: int) -> LineCount:
    return LineCount(
        by_threads=count.by_threads / n_threads,
        by_warps=count.by_warps * 32 / n_threads,
        loaded=count.loaded / n_threads,
        stored=count.stored / n_threads,
    )


_ANCHORS: tuple[tuple[Callable[[Instruction], bool], Callable[[LineCount], float], float], ...] = (
    (lambda i: i.is_store, lambda c: c.stored, STORE),
    (lambda i: i.is_load, lambda c: c.loaded, LOAD),
)


class _Program:
    """A linear program over the branches between blocks."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks = blocks
        self._costs: list[float] = []
        self._equal: list[tuple[Row, float]] = []
        self._at_most: list[tuple[Row, float]] = []
        self._slack: list[int] = []
        self._edge: dict[tuple[int, int], int] = {}
        into: list[list[int]] = [[] for _ in blocks]
        out: list[list[int]] = [[] for _ in blocks]
        for at, block in enumerate(blocks):
            for follower in block.followers:
                edge = self._variable(0)
                self._edge[at, follower] = edge
                out[at].append(edge)
                into[follower].append(edge)
            if block.may_end:
                out[at].append(self._variable(0))
        self._into = into
        for at in range(len(blocks)):
            row = dict.fromkeys(into[at], 1.0)
            for edge in out[at]:
                row[edge] = row.get(edge, 0.0) - 1.0
            self._equal.append((row, -1.0 if at == 0 else 0.0))
            for edge in into[at]:
                self._costs[edge] += INSTRUCTION * len(blocks[at].instructions)

    def _variable(self, cost: float) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1

    def runs(self, factors: Mapping[int, float]) -> tuple[Row, float]:
        """Return the sum over blocks of factor times how often they run, as variables and a constant."""
        row: Row = defaultdict(float)
        for block, factor in factors.items():
            for edge in self._into[block]:
                row[edge] += factor
        return dict(row), factors.get(0, 0.0)

    def add_cost(self, block: int, cost: float) -> None:
        """Let each run of a block cost more."""
        for edge in self._into[block]:
            self._costs[edge] += cost

    def between(
        self, least: Mapping[int, float], most: Mapping[int, float], value: float, *, above: float, below: float
    ) -> None:
        """Ask for sum(least) <= value <= sum(most), at a price for what is above or below."""
        for factors, sign, cost in ((least, 1.0, above), (most, -1.0, below)):
            row, constant = self.runs(factors)
            slack = self._variable(cost)
            self._slack.append(slack)
            signed = {v: sign * f for v, f in row.items()}
            signed[slack] = -1.0
            self._at_most.append((signed, sign * (value - constant)))

    def solve_connected(self, lines: Lines) -> tuple[npt.NDArray[np.float64], float]:
        """Solve, so that every loop is entered, as often as the lines in it allow."""
        while True:
            taken, misfit = self.solve()
            runs = np.array([sum(taken[edge] for edge in edges) for edges in self._into])
            runs[0] += 1
            followers = self._followers(taken)
            apart = set(np.flatnonzero(runs > _NONE).tolist()) - _reached(followers, 0)
            if not apart:
                total = sum(r * len(b.instructions) for r, b in zip(runs, self.blocks, strict=True))
                return runs, misfit / total
            while apart:
                loop = _reached(followers, min(apart))
                self._enter(loop, _rounds(self.blocks, loop, lines))
                apart -= loop

    def _followers(self, taken: npt.NDArray[np.float64]) -> dict[int, list[int]]:
        """Return which blocks come next where threads flow."""
        found: dict[int, list[int]] = defaultdict(list)
        for (at, follower), edge in self._edge.items():
            if taken[edge] > _NONE:
                found[at].append(follower)
        return found

    def _enter(self, loop: set[int], most: float) -> None:
        """Ask for a way into a loop for every `most` runs of its blocks."""
        row, _ = self.runs(dict.fromkeys(loop, 1.0 / (most * len(loop))))
        for at, block in enumerate(self.blocks):
            for follower in set(block.followers) & loop:
                if at not in loop:
                    edge = self._edge[at, follower]
                    row[edge] = row.get(edge, 0.0) - 1.0
        self._at_most.append((row, 0.0))

    def solve(self) -> tuple[npt.NDArray[np.float64], float]:
        """Return the values of all variables, and what their misfit costs."""
        try:
            from scipy.optimize import linprog  # noqa: PLC0415 - an extra
            from scipy.sparse import coo_array  # noqa: PLC0415
        except ImportError as error:
            raise MissingToolError(f"scipy is not installed: {HOW_TO_INSTALL}") from error

        def matrix(rows: list[tuple[Row, float]]) -> tuple[object, npt.NDArray[np.float64]]:
            entries = [(i, v, f) for i, (row, _) in enumerate(rows) for v, f in row.items()]
            at, variable, factor = (np.array(c) for c in zip(*entries, strict=True))
            shape = (len(rows), len(self._costs))
            return coo_array((factor, (at, variable)), shape=shape), np.array([b for _, b in rows])

        equal, at_most = matrix(self._equal), matrix(self._at_most)
        found = linprog(self._costs, A_ub=at_most[0], b_ub=at_most[1], A_eq=equal[0], b_eq=equal[1], method="highs")
        if found.x is None:
            raise ValueError(f"no flow through the blocks was found: {found.message}")
        return found.x, float(sum(found.x[s] * self._costs[s] for s in self._slack) / STORE)


def _add_anchors(
    program: _Program,
    lines: Lines,
    is_kind: Callable[[Instruction], bool],
    told: Callable[[LineCount], float],
    cost: float,
) -> None:
    """Ask for the bytes that each line was seen to load, or to store."""
    surely: dict[tuple[str, int], Row] = defaultdict(lambda: defaultdict(float))
    perhaps: dict[tuple[str, int], Row] = defaultdict(lambda: defaultdict(float))
    width: dict[tuple[str, int], int] = defaultdict(lambda: 16)
    for at, block in enumerate(program.blocks):
        for instruction in block.instructions:
            line = instruction.line
            if not is_kind(instruction) or line not in lines or not told(lines[line]):
                continue
            perhaps[line][at] += instruction.nbytes
            width[line] = min(width[line], instruction.nbytes)
            if not instruction.predicate:
                surely[line][at] += instruction.nbytes
    for line, factors in perhaps.items():
        # A compiler may load less often than another one; it may not store less often.
        below = cost if cost == STORE else cost / 10
        program.between(surely[line], factors, told(lines[line]), above=cost / width[line], below=below / width[line])


def _add_lines(program: _Program, lines: Lines) -> None:
    """Ask for the runs that each line was seen to have; and of a block, for no more than its lines allow."""
    copies: dict[tuple[str, int], Row] = defaultdict(dict)
    bounds = _bounds(program.blocks, lines)
    for at, block in enumerate(program.blocks):
        known = [(i, line) for i in block.instructions if (line := _known_line(i, lines))]
        idle = [not _most(i, lines) for i, _ in known if i.name not in _WITHOUT_LINE]
        if idle and 2 * sum(idle) >= len(idle):
            program.add_cost(at, IDLE)
        elif at in bounds:
            program.between({at: 1.0}, {}, bounds[at], above=IDLE, below=0.0)
        for line in {line for _, line in known}:
            # An unrolled body has each of its instructions several times.
            names = Counter(i.name for i, of in known if of == line)
            copies[line][at] = min(names.values())
    for line, factors in copies.items():
        if lines[line].by_threads:
            program.between(factors, factors, lines[line].by_threads, above=LINE, below=LINE)


def _bounds(blocks: list[Block], lines: Lines) -> dict[int, float]:
    """Return, for blocks whose lines are known, how often they run at most."""
    told = [
        [_most(i, lines) for i in block.instructions if _known_line(i, lines) and i.name not in _WITHOUT_LINE]
        for block in blocks
    ]
    return {at: max(most) for at, most in enumerate(told) if most and max(most)}


def _rounds(blocks: list[Block], loop: set[int], lines: Lines) -> float:
    """Return how many rounds a loop makes at most each time that it is entered: runs of its lines by calls of it."""
    chains = [i.lines for at in loop for i in blocks[at].instructions if i.name not in _WITHOUT_LINE]
    n, depth, calls = len(chains), 0, 1.0
    while chains:
        # Most of a loop is in one function, however deep that is inlined; what was moved into it is not.
        (call, n_called) = Counter(c[-depth - 1] for c in chains).most_common(1)[0]
        inner = [c for c in chains if c[-depth - 1] == call and len(c) > depth + 1]
        if 2 * n_called <= n or 2 * len(inner) <= n or call not in lines:
            break
        chains, depth, calls = inner, depth + 1, lines[call].by_threads
    inside = [lines[c[-depth - 1]].by_threads for c in chains if c[-depth - 1] in lines]
    return max(1.0, max(inside, default=1.0) / calls) if calls else 1.0


def _known_line(instruction: Instruction, lines: Lines) -> tuple[str, int] | None:
    """Return the innermost line that the host runs, too: arithmetic is written twice, in assembly for the device."""
    return next((line for line in instruction.lines if line in lines), None)


def _most(instruction: Instruction, lines: Lines) -> float:
    """Return how often an instruction runs at most: as its line; never, if a call of it never ran."""
    told = [lines[line].by_threads for line in instruction.lines if line in lines]
    return told[0] if all(told) else 0.0


def _spread(blocks: list[Block], lines: Lines) -> npt.NDArray[np.float64]:
    """Return, per block, how many threads' time a warp spends for each thread that does something."""
    found = np.ones(len(blocks))
    for at, block in enumerate(blocks):
        known = [lines[line] for i in block.instructions if (line := _known_line(i, lines))]
        spread = [count.by_warps / count.by_threads for count in known if count.by_threads]
        found[at] = np.median(spread) if spread else 1.0
    return found


def _reached(followers: Mapping[int, list[int]], first: int) -> set[int]:
    found, queue = {first}, [first]
    while queue:
        for follower in followers.get(queue.pop(), []):
            if follower not in found:
                found.add(follower)
                queue.append(follower)
    return found
