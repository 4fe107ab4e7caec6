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

from xarray_gpuzarr.backend.metadata_ahead import NO_NODES, MetadataAhead, takes_long

type Wanted = Callable[[str], bool]
"""Whether a group, by its path from the first one, or groups below it are to be opened."""
type Members = dict[str, Array[Any] | Group]
type Opened = list[tuple[str, Group, Members]]
"""Path from the first group, group, members; each group before those below it, as xarray orders them."""


async def walk(top: AsyncGroup, wanted: Wanted | None) -> Opened:
    """Return a group and the groups below it that are wanted, with their members.

    Parameters
    ----------
    top : zarr.AsyncGroup
    wanted : callable or None
        None: the group alone is wanted.

    Raises
    ------
    Exception
        Of any kind: a name is neither a group nor an array, a document is damaged, or some groups have consolidated
        metadata and others have none.
    """
    store = top.store
    ahead = store if isinstance(store, MetadataAhead) else None
    if ahead is None and takes_long(store):
        raise ValueError("nothing bounds how many requests are under way")
    return await _Walk(ahead, wanted).group(top, "/")


class _Walk:
    def __init__(self, ahead: MetadataAhead | None, wanted: Wanted | None) -> None:
        self._ahead = ahead
        self._wanted = wanted

    async def group(self, group: AsyncGroup, path: str) -> Opened:
        """Return a group with its members, then the groups below it."""
        if group.metadata.consolidated_metadata is None:
            if not group.store.supports_listing:
                raise ValueError("zarr-python says so in words of its own")
            no_nodes = NO_NODES[group.metadata.zarr_format]
            names = [name async for name in group.store.list_dir(group.path) if name not in no_nodes]
            # Groups are listed before it is known that they are, unless arrays' documents would have to wait for it.
            lists_early = self._ahead is not None and self._ahead.has_room(2 * len(names))
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(self._node(group, path, name, lists_early=lists_early)) for name in names]
            found = [task.result() for task in asked]
        else:
            found = [(name, node, await self._below(group, path, name, node)) async for name, node in group.members()]
        members = {name: Group(node) if isinstance(node, AsyncGroup) else Array(node) for name, node, _ in found}
        return [(path, Group(group), members), *(each for _, _, below in found for each in below)]

    async def _node(self, parent: AsyncGroup, path: str, name: str, *, lists_early: bool) -> tuple[str, Any, Opened]:
        if self._ahead is None or not lists_early or not self._goes_on(_join(path, name)):
            node = await parent.getitem(name)
            return name, node, await self._below(parent, path, name, node)
        listing = asyncio.ensure_future(self._ahead.names((parent.store_path / name).path))
        try:
            node = await parent.getitem(name)
            if isinstance(node, AsyncGroup):
                await asyncio.wait([listing])
            return name, node, await self._below(parent, path, name, node)
        finally:
            if not listing.cancel() and not listing.cancelled():
                listing.exception()  # asyncio is not to log it: whoever asks again gets it

    async def _below(self, parent: AsyncGroup, path: str, name: str, node: Any) -> Opened:
        path = _join(path, name)
        if not isinstance(node, AsyncGroup) or not self._goes_on(path):
            return []
        if (node.metadata.consolidated_metadata is None) != (parent.metadata.consolidated_metadata is None):
            raise ValueError("xarray takes the groups below this one from two places")
        return await self.group(node, path)

    def _goes_on(self, path: str) -> bool:
        return self._wanted is not None and self._wanted(path)


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"
