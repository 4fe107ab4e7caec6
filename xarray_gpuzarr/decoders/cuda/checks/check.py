"""What a check is: something that a device does, and values that it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xarray_gpuzarr.cuda.resources import Workspace


@dataclass(frozen=True, slots=True)
class Check:
    """Something that a device does, and values that it must give."""

    name: str
    """Unique; remembered together with its outcome."""
    run: Callable[[Workspace], int]
    """Decodes on the workspace's device and returns the bytes that were compared; raises if they are wrong."""
