"""Why there is no group where one was to be opened: a mistyped path, an array, a folder, a file of another format.

The store is looked at once more, after zarr-python has failed. And where the arrays of a group are no dataset, what to
read about that.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile, is_zipfile

import zarr
from xarray.backends import ZarrStore
from zarr.errors import ContainsArrayError
from zarr.storage import ZipStore

from xarray_gpuzarr.errors import NoGroupError, perhaps

_MOST_NAMED = 12
_GROUP_FILES = ("zarr.json", ".zgroup")
ALONE = 'recipes for images are in the documentation, "Stores", below "OME-Zarr and single arrays"'


@contextmanager
def naming_absent_groups(where: Any, *, group: Any = None, **options: Any) -> Iterator[None]:
    """Turn what zarr-python raises inside a ``with`` block into a `NoGroupError`, if there is no such group.

    Parameters
    ----------
    where : path, URL, zarr store, or any other input of zarr-python
    group : str, path object or None
    options
        Those of xarray's `ZarrStore.open_group`.
    """
    try:
        yield
    except (AttributeError, ContainsArrayError, FileNotFoundError, KeyError) as err:
        given = {name: options.get(name) for name in ("storage_options", "zarr_format")}
        path = str(group or "").strip("/")
        try:
            why = _why_absent(where, path, given)
        except Exception:  # noqa: BLE001  # of a store that lists nothing, or that is damaged
            why = None
        if why is None:
            raise
        found, do = why
        what = f"group '{path}' of " if path else ""
        tried = "opening " + (f"group={group!r}" if path else "its first group")
        raise NoGroupError(f"cannot open {what}'{where}'", tried=tried, found=found, do=do) from err


@contextmanager
def naming_arrays_apart(group: ZarrStore) -> Iterator[None]:
    """Turn what xarray raises inside a ``with`` block, where arrays of a group are no dataset, into a `NoGroupError`.

    Parameters
    ----------
    group : xarray.backends.ZarrStore
    """
    try:
        yield
    except (KeyError, ValueError) as err:
        has_names = "_ARRAY_DIMENSIONS" not in str(err)
        if has_names and "conflicting sizes" not in str(err):
            raise
        others = _not_fitting(group) if has_names else []
        without = f"leave out those that do not fit: drop_variables={others}; or " if others else ""
        raise NoGroupError(
            f"the arrays in '{group.zarr_group.store_path}' are no dataset",
            tried=f"to open as one dataset: {listed(sorted(group.array_keys()))}",
            found=str(err.args[0]),
            do=f"{without}read one alone: xarray_gpuzarr.read_array(zarr.open_array(...)); {ALONE}",
        ) from err


def _not_fitting(group: ZarrStore) -> list[str]:
    """Name the arrays of a group that have a dimension of another length than arrays before them."""
    lengths: dict[Hashable, int] = {}
    found = []
    for name, variable in sorted(group.get_variables().items()):
        if any(lengths.get(dim, n) != n for dim, n in variable.sizes.items()):
            found.append(name)
        else:
            lengths |= variable.sizes
    return found


def _why_absent(where: Any, path: str, given: dict[str, Any]) -> tuple[str, str] | None:
    """Return what is at a path in place of a group, and what to do; None if that is not the reason."""
    node = _node(where, path, given)
    if isinstance(node, zarr.Array):
        do = "read it alone: xarray_gpuzarr.read_array(zarr.open_array(...)); or open the group that holds it; " + ALONE
        return f"an array, not a group, at '{path}'" if path else "an array, not a group", do
    of_any_format = _node(where, path, given | {"zarr_format": None}) if given["zarr_format"] else None
    if node is None and isinstance(of_any_format, zarr.Group):
        n = of_any_format.metadata.zarr_format
        return f"a group of Zarr format {n}", f"leave zarr_format out, or give zarr_format={n}"
    root = _node(where, "", given) if path else node
    if isinstance(node, zarr.Group) and root is None:
        return f"a group at '{path}' of what is no group itself", f"open {_by_itself(where, path)}"
    if root is None and isinstance(where, ZipStore):
        stores, found = _in_zip(str(where.path)), "no zarr.json or .zgroup at the top of this zip file"
        return (found, f"name a store in it, with consolidated=False: group={listed(stores)}") if stores else None
    if root is None and isinstance(where, str):
        return _no_store(where, given)
    return _other_groups(root, path) if path and node is None and isinstance(root, zarr.Group) else None


def _by_itself(where: Any, path: str) -> str:
    """Say how a group is opened that has no root above it, where xarray would look for consolidated metadata."""
    if not isinstance(where, str):
        return "it with consolidated=False"
    return f"zip://{path}::{where[5:]}" if where.startswith("zip::") else f"{where.rstrip('/')}/{path}"


def _no_store(where: str, given: dict[str, Any]) -> tuple[str, str] | None:
    """Say what a path or URL holds that is no store, or what the group above it holds if it is nothing."""
    place, above = Path(where), where.rstrip("/").rpartition("/")[0]
    if place.is_dir():
        return in_folder(place)
    file = where.removeprefix("zip::")
    stores = _in_zip(file) if is_zipfile(file) else []
    if stores:
        return "a zip file of folders", f"name a store in it: {listed([f'zip://{name}::{file}' for name in stores])}"
    if is_zipfile(place):
        return (
            "a zip file",
            f"open zarr.storage.ZipStore('{where}') in place of its path; on the command line, zip::{where}",
        )
    if place.is_file():
        do = "xarray.open_dataset(path) without engine= reads other formats; gpuzarr demo --source FILE rewrites one"
        return "a file that is no Zarr store", do
    group = _node(above, "", given) if above else None
    names = sorted(group) if isinstance(group, zarr.Group) else []
    return ("nothing is there", f"name what is in the group '{above}': {listed(names)}") if names else None


def in_folder(folder: Path) -> tuple[str, str] | None:
    """Name the stores in a folder that is none; None if it has metadata of a group."""
    if _is_group(folder):
        return None
    stores = sorted(child.name for child in folder.iterdir() if _is_group(child))
    do = f"name a store in it: {listed(stores)}" if stores else "name the folder that holds one of them"
    return "no zarr.json or .zgroup in this folder", do


def _is_group(folder: Path) -> bool:
    return any((folder / name).exists() for name in _GROUP_FILES)


def _in_zip(file: str) -> list[str]:
    """Name the stores in the folders of a zip file; none where the file is a store itself."""
    with ZipFile(file) as zipped:
        parts = [name.split("/") for name in zipped.namelist()]
    if any(len(part) == 1 and part[0] in _GROUP_FILES for part in parts):
        return []
    return sorted({part[0] for part in parts if len(part) == 2 and part[1] in _GROUP_FILES})


def _other_groups(root: zarr.Group, path: str) -> tuple[str, str] | None:
    """Name the groups that are in the lowest group of a path that exists."""
    above, before, rest = root, "", path
    while rest:
        name, _, rest = rest.partition("/")
        names = sorted(above.group_keys())
        if name not in names:
            break
        below = above[name]
        if not isinstance(below, zarr.Group):
            return None
        above, before = below, f"{before}{name}/"
    where = f"in '{before[:-1]}'" if before else "in this store"
    arrays = sorted(above.array_keys())
    besides = f"; the arrays there are {listed(arrays)}" if arrays else ""
    if not names:
        do = f"open '{before[:-1]}'" if before else "leave the group out"
        return f"there are no groups {where}{besides}", do
    paths = [before + each for each in names]
    do = f"name one of the groups {where}{perhaps(before + name, paths)}: {listed(paths)}"
    return f"no group '{path}'{besides}", do


def _node(where: Any, path: str, given: dict[str, Any]) -> zarr.Array[Any] | zarr.Group | None:
    """Return what is at a path, or None if that cannot be opened."""
    try:
        return zarr.open(where, path=path, mode="r", **given)
    except Exception:  # noqa: BLE001  # one failure is being named already; this only looks for its cause
        return None


def listed(names: list[str]) -> str:
    """Name some of many."""
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
