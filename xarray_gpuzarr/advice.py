"""Warnings that say what to do, once in a process for each subject; they point at the user's own line."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

from xarray_gpuzarr.errors import GpuZarrWarning
from xarray_gpuzarr.visible_text import visible

_given: set[str] = set()


def advise(subject: str, headline: str, *, found: str, do: str) -> None:
    """Warn of something that works but costs, unless this process was warned of it already.

    Parameters
    ----------
    subject : str
        What was warned of once is not warned of again.
    headline, found, do : str
        As in `GpuZarrError`.
    """
    if subject in _given:
        return
    _given.add(subject)
    text = f"{visible(headline)}\n  found: {visible(found)}\n  do:    {visible(do)}"
    warnings.warn(text, GpuZarrWarning, skip_file_prefixes=_library_folders())


def _library_folders() -> tuple[str, ...]:
    """Return where frames lie that are not the user's."""
    specs = (find_spec(name) for name in ("xarray_gpuzarr", "xarray", "dask", "zarr"))
    return tuple(str(Path(spec.origin).parent) for spec in specs if spec is not None and spec.origin)
