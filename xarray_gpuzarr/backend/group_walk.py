"""All groups below a group, with their members: asked of zarr-python at once, each of them one time.

xarray asks zarr-python for a group's groups, then for each of these by its name, then for its members, and waits for
every answer. Here the answers come together, and what zarr-python makes of the first ones is made while others are
awaited. Whatever is out of the ordinary raises an error, of which nobody hears: xarray's own way is taken then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from zarr import Array, AsyncGroup, Group

from xarray_gpuzarr.backend.caching_store import CachingStore

type Wanted = Callable[[str], bool]
"""Whether a group, by its path from the first one, or groups below it are to be opened."""
type Members = dict[str, Array[Any] | Group]
type Opened = list[tuple[str, Group, Members]]
"""Path from the first group, group, members; each group before those below it, as xarray orders them."""

_NO_NODES = {2: (".zarray", ".zgroup", ".zattrs", ".zmetadata"), 3: ("zarr.json",)}
"""Format of a group -> names in it that are not those of members; zarr-python warns of others that are none."""


async def walk(group: AsyncGroup, wanted: Wanted | None, path: str = "/") -> Opened:
    """Return a group and the groups below it that are wanted, with their members.

    Parameters
    ----------
    group : zarr.AsyncGroup
        Its store takes no time to answer, or is a `CachingStore`.
    wanted : callable or None
        None: the group alone is wanted.
    path : str
        That of the group from the first one.

    Raises
    ------
    Exception
        Of any kind: a name is neither a group nor an array, a document is damaged, or some groups have consolidated
        metadata and others have none.
    """
    if group.metadata.consolidated_metadata is not None:
        found = [await _with_below(group, path, name, node, wanted) async for name, node in group.members()]
    elif not group.store.supports_listing:
        raise ValueError("zarr-python says so in words of its own")
    else:
        no_nodes = _NO_NODES[group.metadata.zarr_format]
        names = [name async for name in group.store.list_dir(group.path) if name not in no_nodes]
        # Groups are listed before it is known that they are, unless arrays' documents would have to wait for it.
        early = isinstance(group.store, CachingStore) and group.store.has_room(2 * len(names))
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_member(group, path, name, wanted, lists_early=early)) for name in names]
        found = [task.result() for task in asked]
    members = {name: Group(node) if isinstance(node, AsyncGroup) else Array(node) for name, node, _ in found}
    return [(path, Group(group), members), *(each for _, _, below in found for each in below)]


async def _member(
    parent: AsyncGroup, path: str, name: str, wanted: Wanted | None, *, lists_early: bool = False
) -> tuple[str, Any, Opened]:
    """Return a member of a group by its name, and the groups from it on if they are wanted."""
    node, listing = None, None
    if lists_early and isinstance(parent.store, CachingStore) and wanted is not None and wanted(_join(path, name)):
        listing = parent.store.names((parent.store_path / name).path)
    try:
        node = await parent.getitem(name)
    finally:
        if listing is not None and not isinstance(node, AsyncGroup):
            listing.cancel()
    return await _with_below(parent, path, name, node, wanted)


async def _with_below(
    parent: AsyncGroup, path: str, name: str, node: Any, wanted: Wanted | None
) -> tuple[str, Any, Opened]:
    """Return a member of a group, and the groups from it on if they are wanted."""
    path = _join(path, name)
    if not isinstance(node, AsyncGroup) or wanted is None or not wanted(path):
        return name, node, []
    if (node.metadata.consolidated_metadata is None) != (parent.metadata.consolidated_metadata is None):
        raise ValueError("xarray takes the groups below this one from two places")
    return name, node, await walk(node, wanted, path)


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"
