"""The time of a read under other options than the usual ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.clocks import wall_seconds
from benchmarks.gpu.device import Gpu
from benchmarks.results import Sample
from xarray_gpuzarr import configure


def seconds_with(gpu: Gpu, run: Callable[[], Any], **options: Any) -> Sample:
    """Return how long a read takes with options of `configure`, which are put back; a read before it warms up.

    Other options make streams and pinned memory anew, and that is not what is asked.
    """
    configure(**options)
    try:
        run()
        return wall_seconds(gpu, run)
    finally:
        configure()
