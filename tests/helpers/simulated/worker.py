"""The simulated GPU inside the real workers of a real cluster, in place of the module that needs CuPy and RMM.

Arrays of the device may travel between workers, as CuPy's may; where there is no device they cannot be unpacked.
"""

import copyreg
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from distributed import Worker, WorkerPlugin

from helpers.simulated.array import SimulatedArray
from helpers.simulated.simulator import SimulatedDevice
from xarray_gpuzarr import cuda
from xarray_gpuzarr.decoders import choice

MODULE = "xarray_gpuzarr.cuda.device"
_seeds = itertools.count(os.getpid())


class SimulatedGpu(WorkerPlugin):
    """Gives a GPU, with the options of `SimulatedDevice`, to the process of each worker that has none yet."""

    name = "simulated GPU"
    idempotent = True

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, worker: Worker) -> None:
        if not isinstance(sys.modules.get(MODULE), SimulatedModule):
            install(**self.options)


class SimulatedModule(ModuleType):
    """`xarray_gpuzarr.cuda.device` with one simulated device."""

    def __init__(self, **options: Any) -> None:
        super().__init__(MODULE)
        self.device = SimulatedDevice(**{"seed": next(_seeds), **options})

    def native_device(self, index: int | None = None) -> SimulatedDevice:
        return self.device

    def forget_devices(self) -> None:
        pass


def install(**options: Any) -> SimulatedModule:
    """Let this process believe that it has a GPU."""
    module = SimulatedModule(**options)
    sys.modules[MODULE] = cuda.device = module
    choice.missing_for_cuda = list
    choice.decoder_for.cache_clear()
    copyreg.pickle(SimulatedArray, lambda array: (unpack, (array.get(),)))
    return module


@contextmanager
def installed(**options: Any) -> Iterator[SimulatedDevice]:
    """Give this process a GPU for the time of a ``with`` block."""
    had = sys.modules.get(MODULE), getattr(cuda, "device", None), choice.missing_for_cuda
    try:
        yield install(**options).device
    finally:
        module, attribute, choice.missing_for_cuda = had
        choice.decoder_for.cache_clear()
        copyreg.dispatch_table.pop(SimulatedArray, None)
        if module is None:
            del sys.modules[MODULE], cuda.device
        else:
            sys.modules[MODULE], cuda.device = module, attribute


def unpack(values: np.ndarray) -> SimulatedArray:
    """Bring an array that another process has packed to the device of this one."""
    return here().place(values)


def here() -> SimulatedDevice:
    module = sys.modules.get(MODULE)
    if not isinstance(module, SimulatedModule):
        raise RuntimeError("cudaErrorNoDevice: this process has no GPU")  # noqa: TRY004
    return module.device
