"""`GpuZarrPlugin`: prepares a dask worker for reading to a GPU, and cleans up when the worker leaves.

`register` registers it, or ``client.register_plugin(GpuZarrPlugin())``. This module imports distributed.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from distributed import Worker, WorkerPlugin
from distributed.protocol.serialize import dask_serialize

from xarray_gpuzarr.cluster.preparation import preparation
from xarray_gpuzarr.cuda.configuration import check_options
from xarray_gpuzarr.decoders.choice import is_device, resolve_device, similar_device_hint
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
        The device or an option is unknown, or a value is invalid.
    """

    name = "xarray_gpuzarr"
    """Name under which the scheduler knows the plugin."""
    idempotent = True
    """Tells distributed to ignore a second plugin of this name. So `register` unregisters the first one before it
    registers another."""

    def __init__(self, *, device: str = "auto", **options: Any) -> None:
        # Clients may give "workers", which stands for the device of each worker. On a worker it would mean nothing.
        if device == "workers" or not is_device(device):
            raise OptionError(
                "unknown device",
                tried=f"device={device!r}",
                found="valid options on workers: 'auto', 'cuda', 'host', or a GPU by its number, such as 'cuda:1'",
                do="leave device out, or choose one of these" + similar_device_hint(device, ("auto", "cuda", "host")),
            )
        check_options(options)
        self.settings: dict[str, Any] = {"device": device, "options": options}
        self._entered = False
        """Whether the process has been prepared for this worker."""

    async def setup(self, worker: Worker) -> None:
        """Prepare the process, and then its threads. The worker's event loop continues meanwhile.

        Raises
        ------
        GpuZarrError
            The worker lacks something. The message names the worker.
        """
        try:
            device = await asyncio.to_thread(preparation.enter, **self.settings)
            self._entered = True
            if device != "host":
                self._check_serializers()
                executor, n_threads = worker.executors["default"], worker.state.nthreads
                await asyncio.to_thread(preparation.prepare_threads, executor, n_threads, device)
        except GpuZarrError as err:
            await self.teardown(worker)
            raise _on_worker(err, worker) from err

    async def teardown(self, worker: Worker) -> None:  # noqa: ARG002  # distributed's signature
        """Undo what `setup` did, unless other workers of this process still need it."""
        if self._entered:
            self._entered = False
            await asyncio.to_thread(preparation.leave)

    def _check_serializers(self) -> None:
        """Raise an error if distributed cannot send CuPy arrays to other processes.

        With ``device="auto"``, advise the user instead.
        """
        why = why_not_serializable()
        if why is None:
            return
        headline = "CuPy arrays cannot leave this worker"
        do = "pip install numba-cuda, with which distributed moves them"
        if self.settings["device"] == "auto":
            advise("serializers", headline, found=why, do=do)
        else:
            raise DeviceUnavailableError(headline, tried="distributed's serializers for CuPy", found=why, do=do)


def check_device(device: str, dask_worker: Worker) -> GpuZarrError | None:
    """Return an error that names the worker if it lacks something that a device needs, otherwise None.

    distributed passes `dask_worker`. `register` calls this first, because distributed logs an error of
    `GpuZarrPlugin.setup` with a long traceback.
    """
    try:
        resolve_device(device)
    except GpuZarrError as err:
        return _on_worker(err, dask_worker)
    return None


def _on_worker(err: GpuZarrError, worker: Worker) -> GpuZarrError:
    """Return a copy of an error that names the worker."""
    tried = f"{err.tried}, on worker {worker.name} at {worker.address}"
    return type(err)(err.headline, tried=tried, found=err.found, do=err.do)


def why_not_serializable() -> str | None:
    """Return why distributed can neither send nor spill the CuPy arrays of this process.

    None if it can, or if the process has not imported CuPy.
    """
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return None
    try:
        dask_serialize.dispatch(cupy.ndarray)
    except ImportError as err:
        return str(err)
    return None
