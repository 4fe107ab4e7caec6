"""The real CUDA decoder on a modelled device, in the place that a GPU's would have in this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from benchmarks.timed.device import TimedDevice
from xarray_gpuzarr.decoders import choice, cuda
from xarray_gpuzarr.process import threads
from xarray_gpuzarr.process.device_options import in_force


@contextmanager
def installed(device: TimedDevice, n_cores: int | None = None) -> Iterator[cuda.CudaDecoder]:
    """Let ``device="cuda"`` mean a modelled device inside a ``with`` block.

    Parameters
    ----------
    device : TimedDevice
    n_cores : int or None
        Cores that the engine believes to have; None: those of this process.
    """
    decoder = cuda.CudaDecoder(lambda: device.as_api)
    with ExitStack() as stack:
        stack.enter_context(patch.object(choice, "missing_for_cuda", list))
        stack.enter_context(patch.object(cuda, "CudaDecoder", lambda: decoder))
        # Cores that decode are not modelled here, and have no time to spare beside a modelled device: see `auto`.
        stack.callback(setattr, in_force, "options", in_force.options)
        in_force.choose({"calibration": "off"})
        if n_cores is not None:
            stack.enter_context(patch.object(threads, "n_cores", lambda: n_cores))
        stack.callback(choice.decoder_for.cache_clear)
        stack.callback(decoder.close)
        choice.decoder_for.cache_clear()
        yield decoder


def prepared_pool(decoder: cuda.CudaDecoder, n_threads: int) -> ThreadPoolExecutor:
    """Return a pool for dask, once its reads have their streams and their pinned memory."""
    decoder.prepare_threads(n_threads)
    return ThreadPoolExecutor(n_threads, thread_name_prefix="dask")
