"""Open groups of a store by xarray's own code, with fewer requests.

xarray opens the first group. The groups below it and their members are requested from zarr-python concurrently; xarray
would request one after another. After any error of `_walk` other than of a request, they are opened as xarray does, so
that values, warnings and errors are those of xarray.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import copy
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from xarray.backends import ZarrStore
from xarray.backends.common import _normalize_path
from xarray.backends.zarr import _iter_zarr_groups
from xarray.core.treenode import NodePath
from zarr import Array, AsyncGroup, Group, config
from zarr.storage import StorePath

from xarray_gpuzarr.backend.caching_store import CachingStore, cached, takes_long
from xarray_gpuzarr.backend.open_errors import explaining_failures
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop

type IsAskedFor = Callable[[str], bool]
"""Whether to open a group, by its path from the first one, or groups below it."""
type Members = dict[str, Array[Any] | Group]
type OpenedGroups = list[tuple[str, Group, Members]]
"""Path from the first group, group, members; each group before those below it, as in xarray."""

_DOCUMENTS = {2: (".zarray", ".zgroup", ".zattrs", ".zmetadata"), 3: ("zarr.json",)}
"""Format of a group -> names in it that are no members; zarr-python warns of all others."""


def open_group(
    filename_or_obj: Any, *, group: str | None = None, consolidated: bool | None = None, **options: Any
) -> ZarrStore:
    """Open one group for reading, as xarray's zarr engine does; options are those of `ZarrStore.open_group`."""
    return _open(filename_or_obj, None, group=group, consolidated=consolidated, **options)["/"]


def open_groups(filename_or_obj: Any, *, group: str | None = None, **options: Any) -> dict[str, ZarrStore]:
    """Open a group and all groups below it, by their paths from it.

    With a pattern for `group`, such as ``"/*/sweep_0"``, the groups that match it and the groups above them are opened.
    """
    if isinstance(group, str) and any(mark in group for mark in "*?["):
        pattern, as_path = NodePath(group), str(NodePath("/") / NodePath(group))

        def may_lead_to_matches(path: str) -> bool:
            if not pattern.root or f"{as_path}/".startswith(f"{path}/"):
                return True
            parts = NodePath(path).parts
            return len(parts) <= len(pattern.parts) and all(map(fnmatchcase, parts, pattern.parts))

        stores = _open(filename_or_obj, may_lead_to_matches, group="/", **options)
        if as_path not in stores:  # a group whose name is the pattern itself
            return _chosen(stores, str(pattern))
    parent = str(NodePath("/") / NodePath(group)) if group else "/"
    stores = _open(filename_or_obj, lambda path: True, group=parent, **options)  # noqa: ARG005
    return {path.lstrip("/") or "." if group else path: store for path, store in stores.items()}


def _open(where: Any, is_asked_for: IsAskedFor | None, **options: Any) -> dict[str, ZarrStore]:
    """Open a group, and the groups below it that are asked for, by their paths from it."""
    where = _normalize_path(where)
    options |= {"mode": "r", "consolidate_on_close": False}
    with explaining_failures(where, **options):
        if not options.get("cache_members", True):
            return {"/": ZarrStore.open_group(where, **options)}
        options["cache_members"] = False
        opened = _open_through_cache(where, is_asked_for, options) if takes_long(where) else None
        return opened or _with_groups_below(ZarrStore.open_group(where, **options), is_asked_for)


def _open_through_cache(
    where: Any, is_asked_for: IsAskedFor | None, options: dict[str, Any]
) -> dict[str, ZarrStore] | None:
    """Open groups of a slow store with one request for each object and listing.

    Returns None if the store cannot be made, or if an error names the `CachingStore`: xarray then opens the store
    itself. What a request has ended in is raised.
    """
    try:
        cache, path = run_on_loop(str(where), partial(cached, where, options))
    except TimeoutError as err:  # what xarray asks for next is what was not answered
        raise TimeoutError(f"no answer in {config.get('async.timeout', None)} s, zarr's async.timeout") from err
    except Exception:  # noqa: BLE001
        return None
    known = StorePath(cache, path) if path or isinstance(where, StorePath) else cache
    try:
        try:
            first = ZarrStore.open_group(known, **options | {"storage_options": None})
        except Exception as err:
            names_cache = type(cache).__name__ in str(err) or (cache.itself is not where and repr(cache) in str(err))
            if names_cache and not cache.has_raised(err):
                return None
            raise
        first._close_store_on_close = cache.itself is not where  # noqa: SLF001  # as xarray sets it for `where`
        opened = _with_groups_below(first, is_asked_for)
    finally:
        cache.give_up()
    for each in opened.values():
        cache.detach(each)
    return opened


def _with_groups_below(first: ZarrStore, is_asked_for: IsAskedFor | None) -> dict[str, ZarrStore]:
    """Return an open group with its members, and the groups below it with theirs, by their paths from it."""
    group, store = first.zarr_group, first.zarr_group.store
    opened: OpenedGroups | None = None
    # A `CachingStore` bounds the number of requests. zarr-python itself lists a single group of a local store.
    if isinstance(store, CachingStore) or (is_asked_for is not None and not takes_long(store)):
        try:
            opened = run_on_loop(str(group.store_path), lambda: _walk(group._async_group, is_asked_for))  # noqa: SLF001
        except Exception as err:  # noqa: BLE001  # xarray raises it again, unless a request has ended in it
            ended = store.error_within(err) if isinstance(store, CachingStore) else None
            if ended is not None:
                raise ended from None
    if opened is None:
        if isinstance(store, CachingStore) and not store.supports_listing:
            group.store_path.store = store.itself  # zarr-python names its class
        paths = ["/"] if is_asked_for is None else list(_iter_zarr_groups(group))
        groups: dict[str, Any] = {path: group if path == "/" else group[path.removeprefix("/")] for path in paths}
        opened = [(path, each, dict(each.members())) for path, each in groups.items()]
    stores = {}
    for path, each, members in opened:
        stores[path] = opened_store = copy(first)
        opened_store.zarr_group = each
        # What ZarrStore.__init__ sets, which would request the members.
        opened_store._group = each.path  # noqa: SLF001
        opened_store._cache_members, opened_store._members = True, members  # noqa: SLF001
    return stores


async def _walk(group: AsyncGroup, is_asked_for: IsAskedFor | None, path: str = "/") -> OpenedGroups:
    """Return a group and the groups below it that are asked for, with their members.

    The store is a local one or a `CachingStore`. Without `is_asked_for`, the group alone is returned. Any error is
    possible: a name is neither a group nor an array, a document is damaged, or only some groups have consolidated
    metadata.
    """
    if group.metadata.consolidated_metadata is not None:
        nodes = [await _with_below(group, path, name, node, is_asked_for) async for name, node in group.members()]
    elif not group.store.supports_listing:
        raise ValueError("xarray raises the error for this")
    else:
        documents = _DOCUMENTS[group.metadata.zarr_format]
        names = [name async for name in group.store.list_dir(group.path) if name not in documents]
        # Members are listed before it is known that they are groups, unless that would delay documents of arrays.
        early = isinstance(group.store, CachingStore) and group.store.has_room(2 * len(names))
        async with asyncio.TaskGroup() as tasks:
            started = [tasks.create_task(_member(group, path, name, is_asked_for, lists_early=early)) for name in names]
        nodes = [task.result() for task in started]
    members = {name: Group(node) if isinstance(node, AsyncGroup) else Array(node) for name, node, _ in nodes}
    return [(path, Group(group), members), *(each for _, _, below in nodes for each in below)]


async def _member(
    parent: AsyncGroup, path: str, name: str, is_asked_for: IsAskedFor | None, *, lists_early: bool = False
) -> tuple[str, Any, OpenedGroups]:
    """Return a member of a group by its name, and the groups from it on if they are asked for."""
    node, listing = None, None
    may_list = lists_early and is_asked_for is not None and is_asked_for(_join(path, name))
    if may_list and isinstance(parent.store, CachingStore):
        listing = parent.store.names((parent.store_path / name).path)
    try:
        node = await parent.getitem(name)
    finally:
        if listing is not None and not isinstance(node, AsyncGroup):
            listing.cancel()
    return await _with_below(parent, path, name, node, is_asked_for)


async def _with_below(
    parent: AsyncGroup, path: str, name: str, node: Any, is_asked_for: IsAskedFor | None
) -> tuple[str, Any, OpenedGroups]:
    """Return a member of a group, and the groups from it on if they are asked for."""
    path = _join(path, name)
    if not isinstance(node, AsyncGroup) or is_asked_for is None or not is_asked_for(path):
        return name, node, []
    if (node.metadata.consolidated_metadata is None) != (parent.metadata.consolidated_metadata is None):
        raise ValueError("xarray reads the groups below this one from two places")
    return name, node, await _walk(node, is_asked_for, path)


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def close_of(group: ZarrStore) -> Callable[[], None] | None:
    """Return the function that closes the store of a group, or None. It refers to none of the group's arrays.

    They would be pickled with a dataset that no longer needs them.
    """
    if type(group) is not ZarrStore:
        return group.close
    return group.zarr_group.store.close if group._close_store_on_close else None  # noqa: SLF001


def require_reading(mode: object, store: object = None) -> None:
    """Raise an `OptionError` unless `mode` is "r" and `store`, if there is one, an open group."""
    if mode != "r":
        raise OptionError(
            'engine="gpuzarr" only reads',
            tried=f"mode={mode!r}",
            found='the one mode of this engine is "r"; others create, change or remove what is stored',
            do="leave mode out to read; write with Dataset.to_zarr",
        )
    if store is not None and not isinstance(store, ZarrStore):
        raise OptionError(
            "store= is not an open Zarr store",
            tried="reading store= in place of the path",
            found=f"an instance of {type(store).__module__}.{type(store).__qualname__}",
            do="give an xarray.backends.ZarrStore, or give the path, URL or zarr store as the first argument",
        )


def _chosen(stores: Mapping[str, ZarrStore], pattern: str) -> dict[str, ZarrStore]:
    """Return the groups that match a pattern, those above them, and the root; an `OptionError` if none matches."""
    matching = [path for path in map(NodePath, stores) if path.match(pattern)]
    if not matching:
        members = ((path, *member) for path, each in stores.items() for member in each.members.items())
        below = (_join(path, name) for path, name, node in members if isinstance(node, Group))
        raise OptionError(
            "no group matches",
            tried=f"group={pattern!r}",
            found=f"groups that were looked at: {', '.join(sorted({*stores, *below}))}",
            do="give a pattern of whole names: from the root if it begins with /, else from the end of a path",
        )
    chosen_paths = {str(each) for path in matching for each in (path, *path.parents)}
    return {path: store for path, store in stores.items() if path in chosen_paths}
