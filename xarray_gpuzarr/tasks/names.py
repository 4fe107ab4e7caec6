"""Names of dask tasks: what progress bars and dashboards show, and what makes two opens of one store the same tasks.

dask shows a name up to the first word that it takes for a token, and merges tasks of the same name. Called by
`chunkmanager`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dask.base import tokenize
from dask.utils import key_split

from xarray_gpuzarr.fetch import LocalSource
from xarray_gpuzarr.metadata import ArraySpec, Unplanned
from xarray_gpuzarr.read import StoredArray
from xarray_gpuzarr.visible_text import visible

_GENERIC_PREFIXES = ("open_dataset-", "xarray-")
"""What xarray writes before names that the user has not chosen."""
_METADATA_OBJECTS = ("zarr.json", ".zarray")


def task_name(stored: StoredArray, given: str | None, *content: Any) -> str:
    """Return the name of the tasks that read an array.

    Parameters
    ----------
    stored : StoredArray
    given : str or None
        The name that xarray has made; kept if its prefix is the user's.
    *content
        All else that the values of the tasks depend on.

    Returns
    -------
    str
        ``gpuzarr-<variable>-<token>``, with an underscore where dask would not show the variable otherwise. For local
        files the token depends on nothing but when their metadata were written, and `content`; elsewhere on `given`,
        for which xarray asks the store.
    """
    if given is not None and not given.startswith(_GENERIC_PREFIXES):
        return given
    written = _last_written(stored)
    content = content if written is not None or given is None else (given, _path(stored))
    return f"{_shown(stored)}-{tokenize(written, content)}"


def _shown(stored: StoredArray) -> str:
    variable = visible(_path(stored).rpartition("/")[2]) or "array"
    name = f"gpuzarr-{variable}"
    return name if key_split(f"{name}-0") == name else f"gpuzarr_{variable.replace('-', '_')}"


def _path(stored: StoredArray) -> str:
    if isinstance(stored.spec, Unplanned):
        assert stored.zarr_array is not None
        return stored.zarr_array.path
    return stored.spec.path


def _last_written(stored: StoredArray) -> int | None:
    """Return when the metadata of a local array were written, in nanoseconds; None elsewhere."""
    source, spec = stored.source, stored.spec
    if not isinstance(source, LocalSource) or not isinstance(spec, ArraySpec):
        return None
    for name in _METADATA_OBJECTS:
        try:
            return Path(f"{source.root}{spec.path.rstrip('/')}/{name}").stat().st_mtime_ns
        except OSError:
            continue
    return None
