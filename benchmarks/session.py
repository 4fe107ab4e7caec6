"""What every reader gives the harness: a function to time, and what is needed to check its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt

Array = npt.NDArray[Any]

Side = Literal["ours", "peer", "limit"]


def _unchanged(result: Array) -> Array:
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An opened store, ready to be read again and again."""

    run: Callable[[], Array]
    """Read everything; the timed part. Every call starts from the stored bytes."""
    restore: Callable[[Array], Array] = field(default=_unchanged)
    """Bring a result into the order that all readers are compared in; not timed."""
