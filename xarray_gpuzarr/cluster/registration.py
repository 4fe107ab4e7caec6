"""`register`: prepares the workers of a cluster. Imports distributed only when it is called."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from xarray_gpuzarr.errors import OptionError

if TYPE_CHECKING:
    from xarray_gpuzarr.cluster.worker import GpuZarrPlugin


def register(client: Any = None, *, device: str = "auto", **options: Any) -> Any:
    """Prepare all workers of a cluster, including those that join later, for reading with this engine.

    This is optional. Without it, the first reads run the self-checks, build kernels and allocate memory. RMM pools that
    dask-cuda or the user installed stay in use, and CuPy allocates from them. A second call with the same arguments
    does nothing; with other arguments, it replaces the settings.

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
        A worker lacks something that the device needs. The message names the worker and what it lacks. All workers are
        asked first whether they can use the device; if one cannot, the settings of an earlier call stay in force. If a
        worker fails later, while it is prepared, no worker keeps any settings.
    """
    from xarray_gpuzarr.cluster.worker import GpuZarrPlugin  # noqa: PLC0415  # imports distributed

    plugin = GpuZarrPlugin(device=device, **options)
    if client is None:
        from distributed import Client  # noqa: PLC0415  # slow to import

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
    """Register a plugin in place of an earlier one, once every worker can use its device.

    If a worker cannot use it, the earlier plugin stays. If workers cannot be prepared for another reason, none is left.
    """
    from xarray_gpuzarr.cluster.worker import check_device  # noqa: PLC0415  # imports distributed

    registered = await client.run_on_scheduler(_registered_settings, name=plugin.name)
    if registered == plugin.settings:
        return
    errors = await client.run(check_device, plugin.settings["device"])
    for error in errors.values():
        if error is not None:
            raise error
    if registered is not None:  # distributed ignores a second plugin of the same name
        await client.unregister_worker_plugin(plugin.name)
    try:
        await client.register_plugin(plugin)
    except BaseException:
        with suppress(ValueError):  # raised if the scheduler does not know the plugin yet
            await client.unregister_worker_plugin(plugin.name)
        raise


def _registered_settings(dask_scheduler: Any, name: str) -> dict[str, Any] | None:
    """Return the settings of the plugin that the scheduler gives to workers, or None if it has none.

    This runs on the scheduler; distributed passes `dask_scheduler`.
    """
    pickled = dask_scheduler.worker_plugins.get(name)
    if pickled is None:
        return None
    settings: dict[str, Any] = pickle.loads(pickled).settings  # noqa: S301  # a client gave it to the scheduler
    return settings


def require_client(client: Any, function: str) -> None:
    """Raise an `OptionError` if the argument of a public function is not a `distributed.Client`.

    Parameters
    ----------
    client
        The argument.
    function : str
        Name of the function, for the message.
    """
    if not (hasattr(client, "sync") and hasattr(client, "run")):
        raise OptionError(
            f"{function} takes a client",
            tried=f"{function} of an instance of {type(client).__module__}.{type(client).__qualname__}",
            found="an object that is not a distributed.Client",
            do=f"give one: {function}(distributed.Client(...))",
        )
