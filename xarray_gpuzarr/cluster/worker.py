"""`GpuZarrPlugin` prepares a dask worker for reading on a GPU, and cleans up when the worker leaves.

Imports distributed. Registered by `register`, or by hand with ``client.register_plugin(GpuZarrPlugin())``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from distributed import Worker, WorkerPlugin
from distributed.protocol.serialize import dask_serialize

from xarray_gpuzarr.cluster.preparation import preparation
from xarray_gpuzarr.cuda.configuration import check_options
from xarray_gpuzarr.decoders.choice import is_device, perhaps_device, resolve_device
from xarray_gpuzarr.errors import DeviceUnavailableError, GpuZarrError, OptionError
from xarray_gpuzarr.process.advice import advise


class GpuZarrPlugin(WorkerPlugin):
    """Worker plugin that checks the GPU, shares RMM's pool with CuPy, builds kernels and reserves memory.

    Parameters
    ----------
    device : "auto", "cuda", "cuda:1" (any number, as the worker counts its GPUs) or "host"
        "cuda" raises an error on a worker that cannot use a GPU; "auto" leaves such a worker unchanged.
    **options
        Fields of `ResourceOptions`.

    Raises
    ------
    OptionError
        An unknown device or option, or an unusable value.
    """

    name = "xarray_gpuzarr"
    idempotent = True

    def __init__(self, *, device: str = "auto", **options: Any) -> None:
        if device == "workers" or not is_device(device):
            raise OptionError(
                "unknown device",
                tried=f"device={device!r}",
                found="valid options on workers: 'auto', 'cuda', 'host', or a GPU by its number, such as 'cuda:1'",
                do="leave device out, or choose one of these" + perhaps_device(device, ("auto", "cuda", "host")),
            )
        check_options(options)
        self.settings: dict[str, Any] = {"device": device, "options": options}
        self._entered = False

    async def setup(self, worker: Worker) -> None:
        """Prepare the process, then what its threads will use; messages are answered meanwhile."""
        try:
            device = await asyncio.to_thread(preparation.enter, **self.settings)
            self._entered = True
            # CuPy arrays would be stuck in this process: said before the first one is.
            if device != "host" and (why := why_not_serializable()) is not None:
                headline = "CuPy arrays cannot leave this worker"
                do = "pip install numba-cuda, with which distributed moves them"
                if self.settings["device"] != "auto":
                    tried = "distributed's serializers for CuPy"
                    raise DeviceUnavailableError(headline, tried=tried, found=why, do=do)
                advise("serializers", headline, found=why, do=do)
            if device != "host":
                executor, n_threads = worker.executors["default"], worker.state.nthreads
                await asyncio.to_thread(preparation.prepare_threads, executor, n_threads, device)
        except GpuZarrError as err:
            await self.teardown(worker)
            raise _on_worker(err, worker) from err

    async def teardown(self, worker: Worker) -> None:  # noqa: ARG002  # distributed's signature
        """Give back what `setup` took, unless other workers of this process still use it."""
        if self._entered:
            self._entered = False
            await asyncio.to_thread(preparation.leave)


def why_refused(device: str, dask_worker: Worker) -> GpuZarrError | None:
    """Return the error of a worker that lacks something for a device; what `setup` raises is logged at length."""
    try:
        resolve_device(device)
    except GpuZarrError as err:
        return _on_worker(err, dask_worker)
    return None


def _on_worker(err: GpuZarrError, worker: Worker) -> GpuZarrError:
    """Return an error that names the worker."""
    where = f"{err.tried}, on worker {worker.name} at {worker.address}"
    return type(err)(err.headline, tried=where, found=err.found, do=err.do)


def why_not_serializable() -> str | None:
    """Say why distributed can neither send nor spill the CuPy arrays of this process; None if it can."""
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return None
    try:
        dask_serialize.dispatch(cupy.ndarray)
    except ImportError as err:
        return str(err)
    return None
