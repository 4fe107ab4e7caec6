"""What does not survive a fork: clients with threads or sessions of their own, whose answers would never come."""

from __future__ import annotations

import os
from weakref import WeakValueDictionary

from xarray_gpuzarr.errors import StoreReadError

_used: WeakValueDictionary[int, object] = WeakValueDictionary()
_used_names: set[str] = set()
_lost: dict[int, object] = {}
"""By their ids, which no other object can have as long as these are kept."""
_lost_names: set[str] = set()


def note(client: object) -> None:
    """Remember that a client, or a library of a name whose clients share their threads, is used in this process."""
    if isinstance(client, str):
        _used_names.add(client)
    elif id(client) not in _used:
        _used[id(client)] = client


def use(client: object, name: str) -> None:
    """Remember that a client is used in this process to read `name`; see `note`.

    Raises `StoreReadError` if it was used before this process was forked off.
    """
    if client in _lost_names if isinstance(client, str) else id(client) in _lost:
        raise StoreReadError(
            f"cannot read {name} in a forked process",
            tried="the client that its parent had used before the fork",
            found="its threads, connections and open files did not come along",
            do='start processes with "spawn" or "forkserver", or open the store for the first time in each of them',
        )
    note(client)


def _after_fork() -> None:
    _lost.update(_used)
    _lost_names.update(_used_names)
    _used.clear()
    _used_names.clear()


os.register_at_fork(after_in_child=_after_fork)
