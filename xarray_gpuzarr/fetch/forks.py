"""What does not survive a fork: clients with threads or sessions of their own, whose answers would never come."""

from __future__ import annotations

import os
from collections.abc import Hashable

from xarray_gpuzarr.errors import StoreReadError

_used: set[Hashable] = set()
_lost: set[Hashable] = set()


def use(client: Hashable, name: str) -> None:
    """Note that a client is used in this process.

    Parameters
    ----------
    client : hashable
        The client, or the library if all its clients have their threads in common.
    name : str
        Of what is to be read.

    Raises
    ------
    StoreReadError
        It was used before this process was forked off.
    """
    if client in _lost:
        raise StoreReadError(
            f"cannot read {name} in a forked process",
            tried="the client that its parent had used before the fork",
            found="its threads and connections did not come along",
            do='start processes with "spawn" or "forkserver", or open the store for the first time in each of them',
        )
    _used.add(client)


def _after_fork() -> None:
    _lost.update(_used)
    _used.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
