"""`register` prepares the workers of a cluster from its client. Imports distributed only when it is called."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from xarray_gpuzarr.errors import OptionError

if TYPE_CHECKING:
    from xarray_gpuzarr.cluster.worker import GpuZarrPlugin


def register(client: Any = None, *, device: str = "auto", **options: Any) -> Any:
    """Prepare all workers, and those that come later, for reading with this engine.

    You can work without it; then the first reads check, compile and allocate. Pools that dask-cuda or you have
    installed stay in use, and CuPy allocates from them. Calling it again with the same arguments does nothing, and with
    other arguments replaces the settings.

    Parameters
    ----------
    client : distributed.Client, optional
        Client of a `LocalCluster`, a `LocalCUDACluster` or any other cluster. By default the current client.
    device : "auto", "cuda", "cuda:1" (any number, as each worker counts its GPUs) or "host"
        "cuda" raises an error if a worker cannot use a GPU; "auto" leaves such workers unchanged.
    **options
        Fields of `ResourceOptions`, such as ``slot_nbytes``, for the workers.

    Returns
    -------
    None
        With an asynchronous client, an awaitable.

    Raises
    ------
    OptionError
        An option is unknown or has an invalid value, `client` is not a client, or there is no current one.
    DeviceUnavailableError
        A worker lacks something; the message names both. Then no worker keeps the plugin.
    """
    from xarray_gpuzarr.cluster.worker import GpuZarrPlugin  # noqa: PLC0415  # imports distributed

    plugin = GpuZarrPlugin(device=device, **options)
    if client is None:
        from distributed import Client  # noqa: PLC0415  # takes long

        try:
            client = Client.current()  # type: ignore[no-untyped-call]
        except ValueError:
            raise OptionError(
                "there is no cluster to prepare",
                tried="register() with the current client of distributed",
                found="no client in this process",
                do="create one first, client = distributed.Client(...), or pass one: register(client)",
            ) from None
    require_client(client, "register")
    return client.sync(_register, client, plugin)


async def _register(client: Any, plugin: GpuZarrPlugin) -> None:
    from xarray_gpuzarr.cluster.worker import why_refused  # noqa: PLC0415  # likewise

    before = await client.run_on_scheduler(_registered, name=plugin.name)
    if before == plugin.settings:
        return
    if before is not None:
        await client.unregister_worker_plugin(plugin.name)
    refusals = await client.run(why_refused, plugin.settings["device"])
    for refusal in filter(None, refusals.values()):
        raise refusal
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


def require_client(client: Any, asked: str) -> None:
    """Raise `OptionError` unless `client` can call the workers of a cluster."""
    if not (hasattr(client, "sync") and hasattr(client, "run")):
        raise OptionError(
            f"{asked} takes a client",
            tried=f"{asked} of an instance of {type(client).__module__}.{type(client).__qualname__}",
            found="an object that is not a distributed.Client",
            do=f"give one: {asked}(distributed.Client(...))",
        )
