"""Opens groups of a store with xarray's own code, in fewer round trips.

xarray opens the first group, and `groups_below` those below it. Slow stores are opened through a `CachingStore`, which
requests each object and listing once. `require_reading` checks the keywords `mode` and `store`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from xarray.backends import ZarrStore
from xarray.backends.common import _normalize_path
from xarray.core.treenode import NodePath
from zarr import Group, config
from zarr.storage import StorePath

from xarray_gpuzarr.backend.caching_store import open_caching_store, takes_long
from xarray_gpuzarr.backend.groups_below import GroupFilter, join_path, open_as_xarray, walk_on_loop
from xarray_gpuzarr.backend.open_errors import explaining_failures
from xarray_gpuzarr.errors import OptionError, StoreReadError
from xarray_gpuzarr.fetch.remote.under_way import run_on_loop


def open_group(
    filename_or_obj: Any, *, group: str | None = None, consolidated: bool | None = None, **options: Any
) -> ZarrStore:
    """Open one group for reading, as xarray's zarr engine does.

    Parameters
    ----------
    filename_or_obj : path, URL, zarr store, or any other input of xarray's zarr engine
    group, consolidated, **options
        Keywords of xarray's `ZarrStore.open_group`.

    Raises
    ------
    NoGroupError, MetadataError, UnsupportedCodecError
        The group cannot be opened, and the cause was found. Otherwise the error of xarray is raised.
    """
    return _open(filename_or_obj, None, group=group, consolidated=consolidated, **options)["/"]


def open_groups(filename_or_obj: Any, *, group: str | None = None, **options: Any) -> dict[str, ZarrStore]:
    """Open a group and all groups below it, or the groups that match a pattern.

    Parameters
    ----------
    filename_or_obj : path, URL, zarr store, or any other input of xarray's zarr engine
    group : str, optional
        Path of the first group, or a pattern such as ``"/*/sweep_0"``. With a pattern, the groups that match it and the
        groups above them are opened.
    **options
        Keywords of xarray's `ZarrStore.open_group`.

    Returns
    -------
    dict of str to ZarrStore
        The groups by their paths, in xarray's form. If `group` is a path, paths start from this group and have no
        leading slash, and the group itself is ".". Otherwise they start from the root, which is "/".

    Raises
    ------
    OptionError
        No group matches the pattern.
    NoGroupError, MetadataError, UnsupportedCodecError
        As for `open_group`.
    """
    if isinstance(group, str) and any(wildcard in group for wildcard in "*?["):
        pattern = NodePath(group)
        stores = _open(filename_or_obj, partial(_may_lead_to_matches, pattern), group="/", **options)
        # There may be a group whose name is the pattern itself. The rest of this function then opens it, like any other
        # group.
        if str(NodePath("/") / pattern) not in stores:
            return _select_matches(stores, str(pattern))
    if not group:
        return _open(filename_or_obj, _every_group, group="/", **options)
    stores = _open(filename_or_obj, _every_group, group=str(NodePath("/") / NodePath(group)), **options)
    return {path.lstrip("/") or ".": store for path, store in stores.items()}


def _may_lead_to_matches(pattern: NodePath, path: str) -> bool:
    """Return whether a group or a group below it may match a pattern, by the path of the group from the root."""
    # A pattern that does not begin with a slash is compared with the end of a path.
    if not pattern.root:
        return True
    # The name of a group may be the pattern itself, such as "*". `path` may be that group, or one above it.
    if f"{pattern}/".startswith(f"{path}/"):
        return True
    parts = NodePath(path).parts
    return len(parts) <= len(pattern.parts) and all(map(fnmatchcase, parts, pattern.parts))


def _every_group(path: str) -> bool:  # noqa: ARG001
    """Return True: a `GroupFilter` with which all groups are opened."""
    return True


def _open(location: Any, is_wanted: GroupFilter | None, **options: Any) -> dict[str, ZarrStore]:
    """Open a group and the groups below it that are wanted. Return them by their paths from the first one.

    Without `is_wanted`, the group alone is opened. `options` are those of `ZarrStore.open_group`.
    """
    location = _normalize_path(location)
    options |= {"mode": "r", "consolidate_on_close": False}
    with explaining_failures(location, **options):
        # Only `open_dataset` takes the keyword `cache_members`. If it is false, xarray opens each member later.
        if not options.get("cache_members", True):
            return {"/": ZarrStore.open_group(location, **options)}
        options["cache_members"] = False  # `_add_groups_below` opens the members, concurrently
        if takes_long(location):
            stores = _open_through_cache(location, is_wanted, options)
            if stores is not None:
                return stores
        return _add_groups_below(ZarrStore.open_group(location, **options), is_wanted)


def _open_through_cache(
    location: Any, is_wanted: GroupFilter | None, options: dict[str, Any]
) -> dict[str, ZarrStore] | None:
    """Open groups of a slow store with one request for each object and listing.

    Returns None if the `CachingStore` cannot be made, or if opening the group raises an error that names it. The caller
    then opens the store without it, which raises xarray's own error. The error of a failed request is raised as it is.
    """
    try:
        cache, path = run_on_loop(str(location), partial(open_caching_store, location, options))
    except TimeoutError as err:  # without the `CachingStore`, the same request would wait as long again
        raise TimeoutError(f"no answer in {config.get('async.timeout', None)} s, zarr's async.timeout") from err
    except StoreReadError:  # in a forked process: without the `CachingStore`, the same request might wait forever
        raise
    except Exception:  # noqa: BLE001
        return None
    is_callers_store = cache.wrapped_store is location
    # A `StorePath` lacks the attribute `supports_consolidated_metadata`, by which xarray sees that a store has no
    # consolidated metadata. So a store is given as a store wherever `location` is one.
    cached_location = StorePath(cache, path) if path or isinstance(location, StorePath) else cache
    try:
        try:
            first = ZarrStore.open_group(cached_location, **options | {"storage_options": None})
        except Exception as err:
            # `repr(cache)` is that of the wrapped store, which means nothing to a caller who gave a path or URL.
            names_cache = type(cache).__name__ in str(err) or (not is_callers_store and repr(cache) in str(err))
            if names_cache and not cache.has_raised(err):
                return None
            raise
        # xarray would have set this if it had opened `location`.
        first._close_store_on_close = not is_callers_store  # noqa: SLF001
        stores = _add_groups_below(first, is_wanted)
    finally:
        # After an error or an interrupt, this cancels the requests that are not answered.
        cache.give_up()
    for store in stores.values():
        cache.detach(store)
    return stores


def _add_groups_below(first: ZarrStore, is_wanted: GroupFilter | None) -> dict[str, ZarrStore]:
    """Return an open group and the groups below it that are wanted, with their members, by their paths from it.

    Without `is_wanted`, the group alone is returned. Each value is a copy of `first` with a group and its members.
    """
    group = first.zarr_group
    opened = walk_on_loop(group, is_wanted)
    if opened is None:
        opened = open_as_xarray(group, is_wanted)
    stores = {}
    for path, opened_group, members in opened:
        # `ZarrStore.__init__` sets the same attributes, but would request the members.
        store = copy(first)
        store.zarr_group = opened_group
        store._group = opened_group.path  # noqa: SLF001
        store._cache_members = True  # noqa: SLF001
        store._members = members  # noqa: SLF001
        stores[path] = store
    return stores


def closing_function(group: ZarrStore) -> Callable[[], None] | None:
    """Return the function that closes the store of a group. None if the caller has to close it.

    The function does not refer to the group's arrays. Otherwise they would be pickled with a dataset that no longer
    needs them.
    """
    if type(group) is not ZarrStore:  # a subclass may close it in another way
        return group.close
    return group.zarr_group.store.close if group._close_store_on_close else None  # noqa: SLF001


def require_reading(mode: object, store: object = None) -> None:
    """Raise an `OptionError` unless `mode` is "r" and `store` is None or an open group."""
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


def _select_matches(stores: Mapping[str, ZarrStore], pattern: str) -> dict[str, ZarrStore]:
    """Return those of the groups in `stores` that match a pattern, and the groups above them, by path.

    Raises `OptionError` if none matches.
    """
    matching = [path for path in map(NodePath, stores) if path.match(pattern)]
    if not matching:
        paths = set(stores)  # the groups that were opened; the names of groups below them were compared as well
        for path, store in stores.items():
            paths.update([join_path(path, name) for name, node in store.members.items() if isinstance(node, Group)])
        raise OptionError(
            "no group matches",
            tried=f"group={pattern!r}",
            found=f"groups that were looked at: {', '.join(sorted(paths))}",
            do="give a pattern of whole names: from the root if it begins with /, else from the end of a path",
        )
    selected_paths = set()
    for match in matching:
        selected_paths.update([str(match), *map(str, match.parents)])
    return {path: store for path, store in stores.items() if path in selected_paths}
