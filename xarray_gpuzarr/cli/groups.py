"""The groups below a group: their paths, how many arrays they hold, how many bytes. Called by ``gpuzarr info``."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import zarr

from xarray_gpuzarr.errors import masked

_MOST_LOOKED_INTO = 100
"""So many groups are looked into where each takes requests: `info` should answer at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBelow:
    """One group of a tree."""

    path: str
    """From the store's root, without a slash at either end."""
    n_arrays: int | None = None
    """Arrays directly in it; None if it was not looked into."""
    decompressed_nbytes: int | None = None
    """Bytes of their elements before compression."""
    failure: str = ""
    """Why it could not be looked into."""


def groups_below(root: zarr.Group, *, is_local: bool = False, whole: bool = False) -> tuple[GroupBelow, ...]:
    """List all groups below one, by path.

    If its metadata are consolidated, nothing else is read. Otherwise local stores (`is_local`: a folder or a zip file)
    are listed, and others only asked for the groups right below it. `whole` looks into all groups of any store.
    """
    is_quick = root.metadata.consolidated_metadata is not None
    n_left: float = float("inf") if whole or is_quick else _MOST_LOOKED_INTO if is_local else 0
    groups: list[GroupBelow] = []
    waiting = deque(group for _, group in root.groups())
    while waiting:
        group = waiting.popleft()
        path = group.path.strip("/")
        n_left -= 1
        if n_left < 0:
            groups.append(GroupBelow(path=path))
            continue
        try:
            members = group.members()
            arrays = [member for _, member in members if isinstance(member, zarr.Array)]
            looked = GroupBelow(
                path=path, n_arrays=len(arrays), decompressed_nbytes=sum(array.nbytes for array in arrays)
            )
        except Exception as err:  # noqa: BLE001  # damaged metadata raise anything; the line of the group names it
            groups.append(GroupBelow(path=path, failure=masked(f"{type(err).__name__}: {err}")))
            continue
        groups.append(looked)
        waiting.extend(member for _, member in members if isinstance(member, zarr.Group))
    return tuple(sorted(groups, key=lambda group: group.path.split("/")))
