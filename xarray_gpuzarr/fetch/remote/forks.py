"""Clients that cannot be used after a fork, because their threads or sessions exist in the parent only.

A read with such a client would wait for an answer that never comes. So clients are remembered when they are used, and a
forked process refuses those of its parent.
"""

from __future__ import annotations

import os
from weakref import WeakValueDictionary

from xarray_gpuzarr.errors import StoreReadError

_used: WeakValueDictionary[int, object] = WeakValueDictionary()
"""Clients that this process has used, by their ids."""
_used_libraries: set[str] = set()
"""Names of libraries whose clients this process has used, and which share their threads."""
_lost: dict[int, object] = {}
"""Clients that the parent has used, by their ids. They are kept alive, so that no other object gets their ids."""
_lost_libraries: set[str] = set()
"""Names of such libraries that the parent has used."""


def remember(client: object) -> None:
    """Remember that this process uses a client. A string is the name of a library whose clients share threads."""
    if isinstance(client, str):
        _used_libraries.add(client)
    elif id(client) not in _used:
        _used[id(client)] = client


def check_usable(client: object, name: str) -> None:
    """Remember that this process uses a client, as `remember` does, before it reads `name`.

    Raises `StoreReadError` if the parent of this forked process has used the client.
    """
    is_lost = client in _lost_libraries if isinstance(client, str) else id(client) in _lost
    if is_lost:
        raise StoreReadError(
            f"cannot read {name} in a forked process",
            tried="the client that its parent had used before the fork",
            found="its threads, connections and open files exist in the parent only",
            do='start processes with "spawn" or "forkserver", or open the store for the first time in each of them',
        )
    remember(client)


def _after_fork() -> None:
    _lost.update(_used)
    _lost_libraries.update(_used_libraries)
    _used.clear()
    _used_libraries.clear()


os.register_at_fork(after_in_child=_after_fork)
