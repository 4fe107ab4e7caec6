"""Two clocks: the wall until the device is idle, and a stream's own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from benchmarks.gpu.device import Gpu
from benchmarks.runner.results import Sample
from xarray_gpuzarr.cuda.api import Stream


def wall_seconds(gpu: Gpu, run: Callable[[], Any]) -> Sample:
    """Return how long a call takes until the device is idle; what it returns is dropped after the clock has stopped."""
    gpu.synchronize()
    gc.disable()  # another contestant's garbage is nobody's time
    try:
        cpu, start = time.process_time(), time.perf_counter()
        result = run()
        gpu.synchronize()
        took = Sample(wall_s=time.perf_counter() - start, cpu_s=time.process_time() - cpu)
    finally:
        gc.enable()
    del result
    return took


def device_seconds(gpu: Gpu, stream: Stream, launch: Callable[[], object]) -> float:
    """Return how long a stream works on what `launch` gives it."""
    first = gpu.mark(stream)
    launch()
    return gpu.seconds(first, gpu.mark(stream))
