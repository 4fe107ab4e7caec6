"""The client of a dask cluster: the current one, or one that is given. Imports no distributed before it is asked."""

from __future__ import annotations

from typing import Any

from xarray_gpuzarr.errors import OptionError


def current_client() -> Any:
    """Return the client that dask computes with now."""
    from distributed import Client  # noqa: PLC0415  # takes long

    try:
        return Client.current()  # type: ignore[no-untyped-call]
    except ValueError:
        raise OptionError(
            "there is no cluster to prepare",
            tried="register() with the current client of distributed",
            found="no client in this process",
            do="create one first, client = distributed.Client(...), or pass one: register(client)",
        ) from None


def require_client(client: Any, asked: str) -> None:
    """Raise `OptionError` unless `client` can call the workers of a cluster."""
    if not (hasattr(client, "sync") and hasattr(client, "run")):
        raise OptionError(
            f"{asked} takes a client",
            tried=f"{asked} of an instance of {type(client).__module__}.{type(client).__qualname__}",
            found="an object that is not a distributed.Client",
            do=f"give one: {asked}(distributed.Client(...))",
        )
