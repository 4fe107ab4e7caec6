"""Columns of int64 that belong to the chunks of a batch, all in one array.

So it takes one NumPy call to select, sort or join rows, whatever the number of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
"""One integer per row, often the row numbers of chunks; shape (n,), host memory."""

NO_ROWS = np.zeros(0, np.int64)


class TableColumn:
    """Descriptor for one column of a `Columns`; `number` is its position in the table."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __get__(self, columns: Columns, kind: type[Columns]) -> Rows:
        column: Rows = columns.table[self.number]
        return column


class Columns:
    """Named columns of int64 of equal length.

    Parameters
    ----------
    table : int64, shape (n_columns, n)
        One column after another, in the order of their numbers. It is not copied.
    is_one_per_chunk : bool
        Whether there is one row for each chunk, in the order of the chunks. This is the usual case, in which nothing
        has to be sorted or looked up. `Streams` have this flag only if each is a whole chunk. Then all have the format
        of the read's compressor, on which `Streams.by_format` relies.
    """

    n_columns: ClassVar[int]
    chunk = TableColumn(0)
    """Number of the chunk that a row belongs to."""

    def __init__(self, table: Rows, *, is_one_per_chunk: bool = False) -> None:
        self.table = table
        self.is_one_per_chunk = is_one_per_chunk
        self._n = int(table.shape[1])

    def __len__(self) -> int:
        return self._n

    @classmethod
    def from_columns(cls, n: int, **columns: npt.NDArray[Any] | int) -> Self:
        """Return `n` rows with the named columns; the columns left out are 0."""
        table = np.zeros((cls.n_columns, n), np.int64)
        rows = cls(table)
        for name, column in columns.items():
            getattr(rows, name)[:] = column
        return rows

    @classmethod
    @cache
    def empty(cls) -> Self:
        """Return columns without rows."""
        return cls.from_columns(0)

    def per_row[Scalar: np.generic](self, chunk_column: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        """Return, for each row, the value that `chunk_column` has for the row's chunk."""
        return chunk_column if self.is_one_per_chunk else chunk_column.take(self.chunk)

    def renumbered(self, numbers: Rows) -> Self:
        """Return the rows with chunk ``numbers[i]`` in place of chunk i."""
        table = self.table.copy()
        table[0] = numbers[table[0]]
        return type(self)(table)


def join[C: Columns](parts: Sequence[C], n_chunks: Sequence[int]) -> C:
    """Concatenate columns, and number their chunks consecutively.

    Parameters
    ----------
    parts : sequence of Columns, at least one
        Columns of the same class.
    n_chunks : sequence of int
        Number of chunks of each part. With zeros, chunks keep their numbers; no part may then be one of
        `is_one_per_chunk`, since another part could have the same chunks.
    """
    if len(parts) == 1 or not any(map(len, parts)):
        return parts[0]
    table = np.concatenate([part.table for part in parts], axis=1)
    row = 0
    first_chunk = 0
    for part, n in zip(parts, n_chunks, strict=True):
        table[0, row : row + len(part)] += first_chunk
        row += len(part)
        first_chunk += n
    return type(parts[0])(table, is_one_per_chunk=all(part.is_one_per_chunk for part in parts))
