"""Columns of whole numbers that are the rows of one table: what is known of many streams or blocks at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]

NO_ROWS = np.zeros(0, np.int64)


class Column:
    """One column of a `Columns`, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __get__(self, columns: Columns, kind: type[Columns]) -> Rows:
        column: Rows = columns.table[self.number]
        return column


class Columns:
    """Columns of int64 that are the rows of one table.

    Parameters
    ----------
    table : int64, shape (k, n)
    one_each : bool
        Whether row i is the only one of chunk i, for all chunks, and all rows are of one format: so it mostly is, and
        then nothing has to be sorted out.
    """

    n_columns: ClassVar[int]
    chunk = Column(0)
    """Number of the chunk that a row belongs to."""

    def __init__(self, table: Rows, *, one_each: bool = False) -> None:
        self.table = table
        self.one_each = one_each
        self._n = int(table.shape[1])

    def __len__(self) -> int:
        return self._n

    @classmethod
    def of(cls, n: int, **columns: npt.NDArray[Any] | int) -> Self:
        """Return `n` rows; columns that are not given are 0."""
        table = np.zeros((cls.n_columns, n), np.int64)
        rows = cls(table)
        for name, column in columns.items():
            getattr(rows, name)[:] = column
        return rows

    @classmethod
    @cache
    def none(cls) -> Self:
        """Return no rows."""
        return cls.of(0)

    def per_row[Scalar: np.generic](self, of_chunks: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Return, for each row, what a column of chunks holds."""
        return of_chunks if self.one_each else of_chunks.take(self.chunk)

    def numbered(self, numbers: Rows) -> Self:
        """Return the rows with other numbers for their chunks."""
        table = self.table.copy()
        table[0] = numbers[table[0]]
        return type(self)(table)


def join[C: Columns](parts: Sequence[C], n_chunks: Sequence[int]) -> C:
    """Put columns of several runs of chunks together; `n_chunks` are the lengths of the runs."""
    if len(parts) == 1 or not any(map(len, parts)):
        return parts[0]
    table = np.concatenate([p.table for p in parts], axis=1)
    row = first = 0
    for part, n in zip(parts, n_chunks, strict=True):
        table[0, row : row + len(part)] += first
        row, first = row + len(part), first + n
    return type(parts[0])(table, one_each=all(part.one_each for part in parts))
