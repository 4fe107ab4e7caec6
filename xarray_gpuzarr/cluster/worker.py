"""`GpuZarrPlugin`: what a dask worker does before its first read on a GPU, and what it gives back when it goes.

Imports distributed. Registered by `register`, or by hand with ``client.register_plugin(GpuZarrPlugin())``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Worker, WorkerPlugin

from xarray_gpuzarr.cluster.preparation import preparation
from xarray_gpuzarr.configuration import check_options
from xarray_gpuzarr.errors import GpuZarrError, OptionError

_DEVICES = ("auto", "cuda", "host")


class GpuZarrPlugin(WorkerPlugin):
    """Checks GPU and nvCOMP, shares a pool, builds kernels, takes streams and pinned memory; cleans up behind itself.

    Parameters
    ----------
    device : "auto", "cuda" or "host"
        "cuda" fails on a worker that cannot use a GPU; "auto" leaves such a worker as it is.
    pool : bool
        Install a pool for reads, RMM and CuPy on a worker that has none.
    **options
        Fields of `ResourceOptions`.

    Raises
    ------
    OptionError
        An unknown device or option, or an unusable value.
    """

    name = "xarray_gpuzarr"
    idempotent = True

    def __init__(self, *, device: str = "auto", pool: bool = False, **options: Any) -> None:
        if device not in _DEVICES:
            raise OptionError(
                "unknown device",
                tried=f"device={device!r}",
                found=f"workers know {', '.join(map(repr, _DEVICES))}",
                do="leave device out, or give one of them",
            )
        check_options(options)
        self.settings: dict[str, Any] = {"device": device, "pool": pool, "options": options}
        self._entered = False

    async def setup(self, worker: Worker) -> None:
        """Prepare the process, then every thread of the worker; messages are answered meanwhile."""
        try:
            device = await asyncio.to_thread(preparation.enter, **self.settings)
            self._entered = True
            if device == "cuda":
                await asyncio.to_thread(preparation.warm_threads, worker.executors["default"], worker.state.nthreads)
        except GpuZarrError as err:
            await self.teardown(worker)
            where = f"{err.tried}, on worker {worker.name} at {worker.address}"
            raise type(err)(err.headline, tried=where, found=err.found, do=err.do) from err

    async def teardown(self, worker: Worker) -> None:  # noqa: ARG002  # distributed's signature
        """Give back what `setup` took, unless other workers of this process still use it."""
        if self._entered:
            self._entered = False
            await asyncio.to_thread(preparation.leave)
