"""The whole matrix under every decoder: tests written for the host decoder run unchanged over the CUDA decoder.

What is marked ``every_decoder`` runs on the host, on the simulator and, marked ``gpu``, on a GPU; ``both_ways`` adds
the host without the compiled loops. Results come down before a test looks at them. What the device could not decode,
the host decodes again: that would hide a fault of the device, so only tests marked ``doubtful_frames`` may need it.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from helpers.loops import without_loops
from helpers.simulated.simulator import SimulatedDevice
from xarray_gpuzarr.backend import lazy_array
from xarray_gpuzarr.cuda.find_gpu import native_device
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force
from xarray_gpuzarr.read import reading

SMALL = ResourceOptions(
    slot_nbytes=64 * 1024,
    n_slots=2,
    batch_nbytes=96 * 1024,
    batch_chunks=3,
    scratch_nbytes=1 << 28,
    little="device",
)
"""So small that ordinary tests need several segments and several batches; a device decodes all that it can."""

_seeds = itertools.count()


class Downloaded:
    """The CUDA decoder, posing as the host's: its results come down, in the byte order that was asked for."""

    device = "host"

    def __init__(self, current_device: Callable[[], Any]) -> None:
        self._current_device = current_device
        self._cuda = CudaDecoder(current_device)

    def route(self, spec: Any, cast: Any) -> Any:
        return HostDecoder().route(spec, cast)

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        return dtype

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def read_without_plan(self, *_: Any) -> None:
        return None

    def decode(self, plans: Iterator[Any], source: Any, *, out: Any = None, **keywords: Any) -> np.ndarray:
        return self._down(self._cuda.decode(plans, source, **keywords), keywords["cast"])

    def as_caller(self, stream_of: Any = None) -> Any:
        return self._cuda.as_caller(stream_of)

    def may_retry(self, err: Exception) -> bool:
        return self._cuda.may_retry(err)

    def alone(self, read: Callable[[], Any]) -> Any:
        return self._cuda.alone(read)

    def upload(self, block: np.ndarray, cast: Any) -> np.ndarray:
        return self._down(self._cuda.upload(block, cast), cast)

    def _down(self, array: Any, cast: Any) -> np.ndarray:
        assert array.dtype == np.dtype(cast.dtype).newbyteorder("=")
        assert array.dtype.isnative
        with self._current_device().activate():
            return array.get().astype(cast.dtype)


decoded_again: list[str] = []
"""Keys of objects with chunks that the device could not decode and the host then did, since the test began."""


def _noting(stage_decoded: Callable[..., Any]) -> Callable[..., Any]:
    def noting(stager: Any, pieces: Any, numbers: Any) -> Any:
        decoded_again.extend(piece.plan.keys[0] for piece in pieces[:1])
        return stage_decoded(stager, pieces, numbers)

    return noting


def use(decoder: str, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let reads that ask for the host be decoded as `decoder` says; return a check of what is left behind."""
    if decoder == "interpreted":
        without_loops(patch)
    if decoder in ("host", "interpreted"):
        return lambda: None
    device = SimulatedDevice(seed=next(_seeds), memory_nbytes=1 << 30) if decoder == "simulated" else None
    patch.setattr(in_force, "options", SMALL)
    patch.setattr(Stager, "stage_decoded", _noting(Stager.stage_decoded))
    downloaded = Downloaded(native_device if device is None else lambda: device)
    for module in (reading, lazy_array):
        patch.setattr(module, "decoder_for", lambda _: downloaded)
    return lambda: None if device is None else device.check()
