"""`in_use`: let ``device="cuda"`` mean a simulated GPU, for reads, commands and batches alike."""

from __future__ import annotations

import pytest

from helpers.kernels import on_host as host_kernels
from helpers.simulated.gpu import SimulatedGpu
from xarray_gpuzarr.backend import lazy_array, open_options
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.process.device_options import in_force
from xarray_gpuzarr.read import reading


def in_use(patch: pytest.MonkeyPatch) -> SimulatedGpu:
    """Return a simulated GPU that reads go to, with options that a test may change."""
    host_kernels.require_compiler()
    gpu = SimulatedGpu()
    use(gpu, patch)
    patch.setattr(in_force, "options", in_force.get())
    return gpu


def use(gpu: SimulatedGpu, patch: pytest.MonkeyPatch) -> None:
    """Let reads with ``device="cuda"`` go to the simulator; the host's stay there."""
    decoders = {"cuda": CudaDecoder(lambda: gpu.api), "host": HostDecoder(), "workers": decoder_for("workers")}
    for module in (reading, lazy_array):
        patch.setattr(module, "decoder_for", lambda device: decoders[device.partition(":")[0]])
    patch.setattr(open_options, "resolve_device", lambda device: device)
