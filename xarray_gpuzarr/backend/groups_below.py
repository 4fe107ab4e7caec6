"""Opens the members of a group, and the groups below it with their members, concurrently.

`walk_on_loop` requests them from zarr-python on zarr's event loop; xarray would request one after another. If it fails
for any reason but a failed request, `open_as_xarray` opens them as xarray does, so that values, warnings and errors are
those of xarray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from xarray.backends.zarr import _iter_zarr_groups
from zarr import Array, AsyncGroup, Group

from xarray_gpuzarr.backend.caching_store import CachingStore, takes_long
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop

type GroupFilter = Callable[[str], bool]
"""Takes the path of a group, relative to the first one. Returns whether it or groups below it are to be opened."""
type Members = dict[str, Array[Any] | Group]
type OpenedGroups = list[tuple[str, Group, Members]]
"""Path from the first group, group, members. A group comes before the groups below it, as in xarray."""

_LISTED_DOCUMENTS = {2: (".zarray", ".zgroup", ".zattrs", ".zmetadata"), 3: ("zarr.json",)}
"""Format of a group -> names in its listing that are documents of the group. All other names are opened as members, so
that zarr-python warns of those that are none."""


def walk_on_loop(group: Group, is_wanted: GroupFilter | None) -> OpenedGroups | None:
    """Open the groups below a group that are wanted, and the members of all of them, concurrently.

    Parameters
    ----------
    group : zarr.Group
        The first group.
    is_wanted : callable or None
        Selects groups by their paths. With None, the members of `group` alone are opened.

    Returns
    -------
    list of (str, zarr.Group, dict), or None
        Path from `group`, group and members of each, with `group` first. None if `open_as_xarray` has to open them.

    Raises
    ------
    Exception
        A request has failed in a `CachingStore`, with this error.
    """
    store = group.store
    # A `CachingStore` bounds the number of requests; for other slow stores nothing would. For a single group of a fast
    # store, `open_as_xarray` is enough.
    if not isinstance(store, CachingStore) and (is_wanted is None or takes_long(store)):
        return None
    try:
        return run_on_loop(str(group.store_path), lambda: _walk(group._async_group, is_wanted))  # noqa: SLF001
    except Exception as err:  # noqa: BLE001  # xarray raises an error of its own for the same cause
        request_error = store.find_request_error(err) if isinstance(store, CachingStore) else None
        if request_error is not None:
            raise request_error from None
        return None


def open_as_xarray(group: Group, is_wanted: GroupFilter | None) -> OpenedGroups:
    """Return a group and, unless `is_wanted` is None, all groups below it, wanted or not, with their members.

    They are requested one after another, as in xarray.
    """
    store = group.store
    if isinstance(store, CachingStore) and not store.supports_listing:
        # zarr-python refuses to list it, and its error shall name the class of the wrapped store.
        group.store_path.store = store.wrapped_store
    paths = ["/"] if is_wanted is None else list(_iter_zarr_groups(group))
    groups: dict[str, Any] = {path: group if path == "/" else group[path.removeprefix("/")] for path in paths}
    return [(path, opened_group, dict(opened_group.members())) for path, opened_group in groups.items()]


async def _walk(group: AsyncGroup, is_wanted: GroupFilter | None, path: str = "/") -> OpenedGroups:
    """Return a group and the groups below it that are wanted, with their members.

    The store is a local one or a `CachingStore`. Without `is_wanted`, the group alone is returned. Any error is
    possible: a name may be neither a group nor an array, a document may be damaged, or only some groups may have
    consolidated metadata.
    """
    if group.metadata.consolidated_metadata is not None:
        # The metadata of all members are in memory, so nothing is requested.
        nodes = [await _walk_member(group, path, name, node, is_wanted) async for name, node in group.members()]
    elif not group.store.supports_listing:
        # `open_as_xarray` then raises the error of zarr-python, which refuses to list the store.
        raise ValueError("the store cannot be listed")
    else:
        documents = _LISTED_DOCUMENTS[group.metadata.zarr_format]
        names = [name async for name in group.store.list_dir(group.path) if name not in documents]
        # Members are listed before it is known that they are groups, unless that would delay documents of arrays. Each
        # member then takes two requests or more: for its documents, and for its listing.
        lists_early = isinstance(group.store, CachingStore) and group.store.has_room(2 * len(names))
        async with asyncio.TaskGroup() as task_group:
            tasks = [
                task_group.create_task(_open_member(group, path, name, is_wanted, lists_early=lists_early))
                for name in names
            ]
        nodes = [task.result() for task in tasks]
    members: Members = {}
    groups_below: OpenedGroups = []
    for name, node, opened in nodes:
        members[name] = Group(node) if isinstance(node, AsyncGroup) else Array(node)
        groups_below += opened
    return [(path, Group(group), members), *groups_below]


async def _open_member(
    parent: AsyncGroup, path: str, name: str, is_wanted: GroupFilter | None, *, lists_early: bool
) -> tuple[str, Any, OpenedGroups]:
    """Open a member of a group, and return it as `_walk_member` does.

    Parameters
    ----------
    parent : AsyncGroup
        The group.
    path : str
        Path of `parent` from the first group.
    name : str
        Name of the member in `parent`.
    is_wanted : callable or None
        As for `_walk`.
    lists_early : bool
        Whether the member, if it is wanted, is listed while its metadata are requested. It may be an array, and then
        the listing is cancelled.
    """
    node = None
    listing = None
    may_list = lists_early and is_wanted is not None and is_wanted(join_path(path, name))
    if may_list and isinstance(parent.store, CachingStore):
        listing = parent.store.request_listing((parent.store_path / name).path)
    try:
        node = await parent.getitem(name)
    finally:
        if listing is not None and not isinstance(node, AsyncGroup):
            listing.cancel()
    return await _walk_member(parent, path, name, node, is_wanted)


async def _walk_member(
    parent: AsyncGroup, path: str, name: str, node: Any, is_wanted: GroupFilter | None
) -> tuple[str, Any, OpenedGroups]:
    """Return the name of a member, the member, and what `_walk` returns for it if it is a group that is wanted.

    `path` is that of `parent` from the first group, and `node` is the member.
    """
    path = join_path(path, name)
    if not isinstance(node, AsyncGroup) or is_wanted is None or not is_wanted(path):
        return name, node, []
    if (node.metadata.consolidated_metadata is None) != (parent.metadata.consolidated_metadata is None):
        # xarray would read some of the groups below from the consolidated metadata of one of the two, and others from
        # their own documents. `open_as_xarray`, which opens them after this error, leaves that choice to xarray.
        raise ValueError("only one of a group and its parent has consolidated metadata")
    return name, node, await _walk(node, is_wanted, path)


def join_path(path: str, name: str) -> str:
    """Return the path of a member from the path of its group."""
    return f"{path.rstrip('/')}/{name}"
