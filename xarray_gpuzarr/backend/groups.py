"""How groups of a store are opened: by xarray's own code, with fewer questions.

xarray opens the first group. The groups below it, and the members of each, are asked of zarr-python all at once, where
xarray would ask for one after another. If anything is out of the ordinary they are opened as xarray does, so that
values, warnings and errors are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

from xarray.backends import ZarrStore
from xarray.backends.common import _normalize_path
from xarray.backends.zarr import _iter_zarr_groups
from xarray.core.treenode import NodePath
from zarr import Group
from zarr.errors import UnknownCodecError
from zarr.storage import StorePath

from xarray_gpuzarr.backend.absent_groups import naming_absent_groups
from xarray_gpuzarr.backend.caching_store import CachingStore, cached, takes_long
from xarray_gpuzarr.backend.damaged_metadata import naming_damaged_metadata
from xarray_gpuzarr.backend.group_pattern import GroupPattern, is_pattern
from xarray_gpuzarr.backend.group_walk import Members, Wanted, walk
from xarray_gpuzarr.errors import OptionError, UnsupportedCodecError
from xarray_gpuzarr.fetch import run_on_loop


def open_group(
    filename_or_obj: Any, *, group: str | None = None, consolidated: bool | None = None, **options: Any
) -> ZarrStore:
    """Open one group for reading, as xarray's zarr engine does.

    Parameters
    ----------
    filename_or_obj : path, URL, zarr store, or any other input of xarray's zarr engine
    group : str or None
    consolidated : bool or None
        None takes consolidated metadata if there are any.
    **options
        Others of `ZarrStore.open_group`.
    """
    return _open(filename_or_obj, None, group=group, consolidated=consolidated, **options)["/"]


def open_groups(filename_or_obj: Any, *, group: str | None = None, **options: Any) -> dict[str, ZarrStore]:
    """Open a group and all groups below it, by their paths from it; parameters as for `open_group`.

    With a pattern for `group`, such as ``"/*/sweep_0"``, the groups that match it are opened, and those above them.
    """
    if isinstance(group, str) and is_pattern(group):
        pattern = GroupPattern(group)
        stores = _open(filename_or_obj, pattern.leads_to, group="/", **options)
        if pattern.given not in stores:
            below = (f"{path.rstrip('/')}/{name}" for path, each in stores.items() for name in _groups_in(each))
            return pattern.chosen(stores, below)
    parent = str(NodePath("/") / NodePath(group)) if group else "/"
    stores = _open(filename_or_obj, lambda path: True, group=parent, **options)  # noqa: ARG005
    return {path.lstrip("/") or "." if group else path: store for path, store in stores.items()}


def _groups_in(store: ZarrStore) -> Iterator[str]:
    return (name for name, node in store.members.items() if isinstance(node, Group))


def _open(where: Any, wanted: Wanted | None, **options: Any) -> dict[str, ZarrStore]:
    """Open a group, and those below it that are wanted, by their paths from it."""
    where = _normalize_path(where)
    options |= {"mode": "r", "consolidate_on_close": False}
    damaged, absent = naming_damaged_metadata(where, **options), naming_absent_groups(where, **options)
    with _naming_unknown_codecs(where), damaged, absent:
        if not options.get("cache_members", True):
            return {"/": ZarrStore.open_group(where, **options)}
        options["cache_members"] = False
        opened = _open_through_cache(where, wanted, options) if takes_long(where) else None
        return opened or _with_groups_below(ZarrStore.open_group(where, **options), wanted)


def _open_through_cache(where: Any, wanted: Wanted | None, options: dict[str, Any]) -> dict[str, ZarrStore] | None:
    """Open groups of a store that takes long: it is asked for each object and listing once.

    None if that fails, or says anything of the store that stands between: without it, xarray has its own words.
    """
    try:
        cache, path = run_on_loop(str(where), partial(cached, where, options))
    except Exception:  # noqa: BLE001  # of any kind
        return None
    known = StorePath(cache, path) if path or isinstance(where, StorePath) else cache
    try:
        try:
            first = ZarrStore.open_group(known, **options | {"storage_options": None})
        except Exception as err:
            if type(cache).__name__ in str(err) or (cache.itself is not where and repr(cache) in str(err)):
                return None
            raise
        first._close_store_on_close = cache.itself is not where  # noqa: SLF001  # as if it had been given `where`
        opened = _with_groups_below(first, wanted)
    finally:
        cache.give_up()
    for each in opened.values():
        cache.detach(each)
    return opened


def _with_groups_below(first: ZarrStore, wanted: Wanted | None) -> dict[str, ZarrStore]:
    """Return an open group with its members, and the groups below it with theirs, by their paths from it."""
    group, store = first.zarr_group, first.zarr_group.store
    try:
        if takes_long(store) and not isinstance(store, CachingStore):
            raise ValueError("nothing bounds how many requests are under way")  # noqa: TRY301
        found = run_on_loop(str(group.store_path), lambda: walk(group._async_group, wanted))  # noqa: SLF001
    except Exception:  # noqa: BLE001  # of any kind: it comes again, if it is one to xarray
        if isinstance(store, CachingStore) and not store.supports_listing:
            group.store_path.store = store.itself  # zarr-python names its class
        paths = ["/"] if wanted is None else list(_iter_zarr_groups(group))
        groups: dict[str, Any] = {path: group if path == "/" else group[path.removeprefix("/")] for path in paths}
        found = [(path, each, dict(each.members())) for path, each in groups.items()]
    return {path: _of_group(first, each, members) for path, each, members in found}


def _of_group(first: ZarrStore, group: Group, members: Members) -> ZarrStore:
    """Return an open group with the settings of another one, and its members."""
    store = copy(first)
    store.zarr_group = group
    store._group = group.path  # noqa: SLF001  # what ZarrStore.__init__ sets, which would ask for the members
    store._cache_members, store._members = True, members  # noqa: SLF001  # likewise
    return store


def open_already(store: object) -> ZarrStore:
    """Return a group that the caller has opened, if it is one.

    Raises
    ------
    OptionError
    """
    if isinstance(store, ZarrStore):
        return store
    raise OptionError(
        "store= is not an open Zarr store",
        tried="reading store= in place of the path",
        found=f"an instance of {type(store).__module__}.{type(store).__qualname__}",
        do="give an xarray.backends.ZarrStore, or give the path, URL or zarr store as the first argument",
    )


def close_of(group: ZarrStore) -> Callable[[], None] | None:
    """Return what closes the store of a group, if anything does, and holds none of the group's arrays.

    They would be pickled with a dataset that needs them no more, and name the codec pipeline of zarr's settings.
    """
    if type(group) is not ZarrStore:
        return group.close
    return group.zarr_group.store.close if group._close_store_on_close else None  # noqa: SLF001


def require_reading(mode: object) -> None:
    """Refuse to open a store in a mode that lets it be changed.

    Raises
    ------
    OptionError
    """
    if mode != "r":
        raise OptionError(
            'engine="gpuzarr" only reads',
            tried=f"mode={mode!r}",
            found='the one mode of this engine is "r"; others create, change or remove what is stored',
            do="leave mode out to read; write with Dataset.to_zarr",
        )


@contextmanager
def _naming_unknown_codecs(store: object) -> Iterator[None]:
    try:
        yield
    except UnknownCodecError as err:
        raise UnsupportedCodecError(
            f"an array of {store} is stored with a codec that is not installed",
            tried="the codecs of zarr-python and of the packages that register codecs with it",
            found=str(err),
            do=f"{_how_to_install(str(err))}, or leave the array's group out",
        ) from err


_BROUGHT_BY = {
    "imagecodecs_": "imagecodecs",
    "zfpy": "'numcodecs[zfpy]'",
    "pcodec": "'numcodecs[pcodec]'",
    "scale_offset": "'zarr>=3.2'",
    "cast_value": "'zarr>=3.2' cast-value-rs",
}
"""Part of the name of a codec -> what pip is to install."""


def _how_to_install(found: str) -> str:
    package = next((package for part, package in _BROUGHT_BY.items() if part in found), None)
    return "install the package that brings the codec" if package is None else f"pip install {package}"
