"""Warnings that say what to do, given once in a process for each subject, at the user's line from any thread."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from xarray_gpuzarr.errors import GpuZarrWarning, visible

said: set[str] = set()
"""Subjects that this process was warned of."""


def advise(subject: str, headline: str, *, found: str, do: str) -> None:
    """Warn of something that works but costs, once in a process for each subject; texts as in `GpuZarrError`."""
    if subject in said:
        return
    said.add(subject)
    text = f"{visible(headline)}\n  found: {visible(found)}\n  do:    {visible(do)}"
    frame = _users_frame()
    if frame is None:
        warnings.warn(text, GpuZarrWarning, skip_file_prefixes=_library_folders())
        return
    path, name = frame.f_code.co_filename, frame.f_globals.get("__name__")
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, GpuZarrWarning, path, frame.f_lineno, name, registry)


def _users_frame() -> FrameType | None:
    """Return the innermost frame that is the user's: of this thread, or of the main one, which waits for dask's."""
    folders = _library_folders()
    for start in (sys._getframe(1), sys._current_frames().get(threading.main_thread().ident or 0)):  # noqa: SLF001
        frame = start
        while frame is not None:
            name = frame.f_code.co_filename
            is_pythons = name.startswith(_PYTHON) and not _INSTALLED.intersection(Path(name).parts)
            if not is_pythons and not name.startswith((*folders, "<frozen ")):
                return frame
            frame = frame.f_back
    return None


_PYTHON = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = {"site-packages", "dist-packages"}
_BETWEEN = ("xarray_gpuzarr", "xarray", "dask", "distributed", "zarr", "tornado", "IPython", "ipykernel", "traitlets")


@cache
def _library_folders() -> tuple[str, ...]:
    """Return where frames lie that are not the user's."""
    specs = map(find_spec, _BETWEEN)
    return tuple(f"{Path(spec.origin).parent}{os.sep}" for spec in specs if spec is not None and spec.origin)
