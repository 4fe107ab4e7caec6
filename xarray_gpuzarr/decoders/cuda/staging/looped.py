"""Chunks of local files that the compiled loops read and decode into a pinned slot, without Python's lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from xarray_gpuzarr.cuda.api import Bytes
from xarray_gpuzarr.decoders.cuda.batches.pieces import Piece
from xarray_gpuzarr.decoders.host.local_files import local_files
from xarray_gpuzarr.decoders.host.native_program import NativeProgram
from xarray_gpuzarr.decoders.host.native_rows import Axes, Boxes, NativeJob, NativeRows
from xarray_gpuzarr.fetch import ByteSource
from xarray_gpuzarr.native import Loops, address
from xarray_gpuzarr.plan.axis_pieces import AxisPieces
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.selection import Column
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.records import record


@record
class Looped:
    """What became of chunks, by their numbers in the slot."""

    left: Sequence[tuple[ReadPlan, int, int]]
    """Those that were left: plan, row and number."""
    absent: Sequence[int]
    """Those whose file does not exist."""


def read_local(
    loops: Loops, program: NativeProgram, source: ByteSource, pieces: Sequence[Piece], out: Bytes, n_threads: int
) -> Looped:
    """Read and decode the chunks of pieces, each to its row of `out`.

    Parameters
    ----------
    loops : Loops
    program : NativeProgram
        From encoded chunks to their bytes.
    source : ByteSource
        Local.
    pieces : sequence of Piece
    out : uint8, shape (n, bytes of a chunk)
        Pinned memory, rows at any distance.
    n_threads : int
        Threads that may decode, if cores are free for them.
    """
    left: list[tuple[ReadPlan, int, int]] = []
    absent: list[int] = []
    n, nbytes = out.shape
    job = NativeJob(loops, program, Axes.of_pieces(_stack(n, nbytes)), ((1, nbytes), (0, 1)), out)
    for part, at in _parts(pieces):
        n = part.n_stored
        files = local_files(part, source)
        if files is None:
            left += [(part, row, at + row) for row in range(n)]
            continue
        boxes = np.zeros((n, 2), np.int64)
        boxes[:, 0] = np.arange(at, at + n)
        rows = NativeRows(job, Boxes(at=address(boxes), first=None, kept=boxes), part)
        with crew.taking(min(n, n_threads)) as n_taken:
            found = rows.read(range(n), files, n_taken)
        counters.add(read_nbytes=found.n_read)
        left += [(part, row, at + row) for row in found.left]
        absent += [at + row for row in found.absent]
    return Looped(left=left, absent=absent)


def _stack(n: int, nbytes: int) -> tuple[AxisPieces, AxisPieces]:
    """Return the axes of a stack of chunks of so many bytes, each a piece of the first."""
    return _axis(np.arange(n), np.ones(n, np.int64)), _axis(np.zeros(1, np.int64), np.full(1, nbytes))


def _axis(first: Column, count: Column) -> AxisPieces:
    zeros, length = np.zeros_like(first), int(count.sum())
    return AxisPieces(chunk=first, out_start=first, count=count, in_start=zeros, step=1, index=None, length=length)


def _parts(pieces: Sequence[Piece]) -> Iterator[tuple[ReadPlan, int]]:
    """Yield the rows of each plan as a plan of their own, and the number of the first of them."""
    at = 0
    for plan, group in groupby(pieces, key=lambda piece: piece.plan):
        rows = np.concatenate([np.arange(piece.lo, piece.hi) for piece in group])
        columns = plan.object.take(rows), plan.offset.take(rows), plan.nbytes.take(rows)
        yield ReadPlan.of(plan.spec, plan.target, plan.keys, columns, plan.row.take(rows, axis=0)), at
        at += len(rows)
