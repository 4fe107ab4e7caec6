"""`record`: the decorator of dataclasses with an instance for each shard; `Column`: an array with a number per chunk.

Only type checkers treat records as frozen. Making an instance of a dataclass that is really frozen takes three times
as long, 0.1 us more for each field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import dataclass_transform

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
"""One number for each of many things, such as chunks. Usually of shape (n,); in host memory."""


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def record[Record](cls: type[Record]) -> type[Record]:
    """Return a class as a dataclass with slots, keyword-only fields and comparison by identity.

    Type checkers treat its fields as frozen.
    """
    return dataclass(slots=True, kw_only=True, eq=False)(cls)
