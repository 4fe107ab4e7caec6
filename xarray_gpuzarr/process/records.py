"""Records, one for each shard, and columns, which hold a number of each chunk.

Records are frozen for readers and type checkers only: a frozen dataclass takes three times as long to make, 0.1 us a
field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import dataclass_transform

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
"""One number of each of many things, such as chunks; shape (n,), host memory."""


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def record[Record](cls: type[Record]) -> type[Record]:
    """Make a dataclass with slots and keywords only, compared by identity; type checkers take its fields for frozen."""
    return dataclass(slots=True, kw_only=True, eq=False)(cls)
