"""Finds the device that reads go to, and runs reads and copies on it until it is idle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zarr

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.cuda.current import native_device
from xarray_gpuzarr.decoders import decoder_for
from xarray_gpuzarr.machine.diagnosis.samples import Values
from xarray_gpuzarr.read import read_array
from xarray_gpuzarr.stored.cf import Cast


def current_device(device: str = "cuda") -> DeviceApi:
    """Return the GPU that the calling thread reads to: its current one with ``"cuda"``, another with its number.

    Raises
    ------
    CudaError
        It cannot be used.
    """
    number = device.partition(":")[2]
    return native_device(int(number) if number else None)


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """Ways of an array to one device."""

    api: DeviceApi

    @property
    def device(self) -> str:
        """What reads call it."""
        return f"cuda:{self.api.index}"

    def read(self, array: zarr.Array[Any]) -> Any:
        """Read as everybody does, as the options in force say."""
        return read_array(array, device=self.device)

    def upload(self, values: Values) -> Any:
        """Bring up values that lie in ordinary host memory, as the decoder does it."""
        return decoder_for(self.device).upload(values, Cast(dtype=values.dtype.str))

    def whole(self, run: Callable[[], object]) -> Callable[[], object]:
        """Return a call that lasts until the device has done what `run` gives it."""

        def until_idle() -> object:
            with self.api.activate():  # to which CuPy copies
                result = run()
                self.api.synchronize(self.api.consumer_stream())
            return result

        return until_idle
