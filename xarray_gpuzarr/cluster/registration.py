"""Preparing the workers of a cluster from its client, in one line. Imports no distributed before that line."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from xarray_gpuzarr.errors import OptionError

if TYPE_CHECKING:
    from xarray_gpuzarr.cluster.worker import GpuZarrPlugin


def register(client: Any = None, *, device: str = "auto", pool: bool = False, **options: Any) -> Any:
    """Prepare all workers, and those that come later, for reading with this engine.

    Workers read without it as well; then the first reads check, compile and allocate. Calling it again
    with the same arguments does nothing, with others replaces what was set.

    Parameters
    ----------
    client : distributed.Client, optional
        Of a `LocalCluster`, a `LocalCUDACluster` or any other cluster; the current one if left out.
    device : "auto", "cuda", "cuda:1" (any number, as each worker counts its GPUs) or "host"
        "cuda" refuses workers that cannot use a GPU; "auto" leaves them as they are.
    pool : bool
        Let reads, RMM and CuPy use one pool on workers that have none. Pools that dask-cuda or you have installed stay
        in use either way, and CuPy allocates from them.
    **options
        Fields of `ResourceOptions`, such as ``slot_nbytes``, for the workers.

    Returns
    -------
    None
        With an asynchronous client, an awaitable.

    Raises
    ------
    OptionError
        An unknown option or an unusable value; no client, and none that is current.
    DeviceUnavailableError
        A worker has not what it needs; says which and what. No worker keeps the plugin then.
    """
    from xarray_gpuzarr.cluster.worker import GpuZarrPlugin  # noqa: PLC0415  # imports distributed

    plugin = GpuZarrPlugin(device=device, pool=pool, **options)
    client = _current_client() if client is None else client
    return client.sync(_register, client, plugin)


def _current_client() -> Any:
    """Return the client that dask computes with now."""
    from distributed import Client  # noqa: PLC0415  # likewise

    try:
        return Client.current()  # type: ignore[no-untyped-call]
    except ValueError:
        raise OptionError(
            "there is no cluster to prepare",
            tried="register() with the current client of distributed",
            found="no client in this process",
            do="make one first, client = distributed.Client(...), or give one: register(client)",
        ) from None


async def _register(client: Any, plugin: GpuZarrPlugin) -> None:
    before = await client.run_on_scheduler(_registered, name=plugin.name)
    if before not in (None, plugin.settings):
        await client.unregister_worker_plugin(plugin.name)
    try:
        await client.register_plugin(plugin)
    except BaseException:
        with suppress(ValueError):  # it came no further than the client
            await client.unregister_worker_plugin(plugin.name)
        raise


def _registered(dask_scheduler: Any, name: str) -> dict[str, Any] | None:
    """Return the settings of the plugin that the scheduler hands to workers, None if it has none."""
    pickled = dask_scheduler.worker_plugins.get(name)
    if pickled is None:
        return None
    settings: dict[str, Any] = pickle.loads(pickled).settings  # noqa: S301  # the scheduler was given it by a client
    return settings
