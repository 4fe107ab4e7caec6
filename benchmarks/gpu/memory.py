"""Device memory of one contestant that works below the readers, all of it on one stream."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from benchmarks.gpu.device import Gpu
from benchmarks.gpu.resident import Workspace as Space
from xarray_gpuzarr.cuda.address import Address


class Workspace(Space):
    """A stream, and memory on it that lives as long as this.

    Parameters
    ----------
    gpu : Gpu
    """

    def __init__(self, gpu: Gpu) -> None:
        super().__init__(gpu.api)
        self.gpu = gpu

    def filled(self, nbytes: int, values: npt.NDArray[Any]) -> Address:
        """Return memory that holds the bytes of an array over and over; as many as were asked for."""
        to, done = self.empty(nbytes), min(nbytes, values.nbytes)
        self.gpu.copy_within(to, self.put(values), done, self.stream)
        while done < nbytes:
            more = min(done, nbytes - done)
            self.gpu.copy_within(Address(to + done), to, more, self.stream)
            done += more
        return to
