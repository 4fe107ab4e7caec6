"""`advise`: warnings that say what to do, once in a process for each subject.

They name the user's line even if dask runs this package on another thread.
"""

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

warned: set[str] = set()
"""Subjects that this process has warned of."""


def advise(subject: str, headline: str, *, found: str, do: str) -> None:
    """Emit a `GpuZarrWarning` about something that works but is slow or incomplete.

    Parameters
    ----------
    subject : str
        Only the first warning of a process about a subject is emitted.
    headline, found, do : str
        The problem, its cause, and what the user can do; see `GpuZarrError`.
    """
    if subject not in warned:
        warned.add(subject)
        _warn(headline, found, do)


def advise_each_time(headline: str, *, found: str, do: str) -> None:
    """Emit a `GpuZarrWarning` about something that may spoil data, each time that it happens; see `advise`."""
    _warn(headline, found, do, repeats=True)


def _warn(headline: str, found: str, do: str, *, repeats: bool = False) -> None:
    """Emit a `GpuZarrWarning`. If `repeats` is set, a line of the user's code may cause it any number of times."""
    text = f"{visible(headline)}\n  found: {visible(found)}\n  do:    {visible(do)}"
    frame = _users_frame()
    if frame is None:  # no code of the user called, as on a thread of a pool
        # The warning names a line of the standard library.
        warnings.warn(text, GpuZarrWarning, skip_file_prefixes=_library_folders())
        return
    path, name = frame.f_code.co_filename, frame.f_globals.get("__name__")
    # Python remembers in the registry which warnings a line has caused, to show each of them once.
    registry = {} if repeats else frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, GpuZarrWarning, path, frame.f_lineno, name, registry)


def _users_frame() -> FrameType | None:
    """Return the innermost frame of the user's code, or None if there is none.

    It is looked for on this thread, and then on the main thread, which waits if this is a thread of dask.
    """
    frame = _innermost_users_frame(sys._getframe(1))  # noqa: SLF001
    main_thread = threading.main_thread()
    if frame is None and threading.current_thread() is not main_thread:
        frame = _innermost_users_frame(sys._current_frames().get(main_thread.ident or 0))  # noqa: SLF001
    return frame


def _innermost_users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the first frame of the user's code among a frame and its callers; None if there is none.

    All code outside of the standard library and of `_LIBRARIES` counts as the user's.
    """
    library_folders = _library_folders()
    while frame is not None:
        path = frame.f_code.co_filename
        is_standard_library = path.startswith(_STANDARD_LIBRARY) and not _INSTALLED.intersection(Path(path).parts)
        is_frozen = path.startswith("<frozen ")  # a module inside the interpreter, such as importlib
        if not is_standard_library and not is_frozen and not path.startswith(library_folders):
            return frame
        frame = frame.f_back
    return None


_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders with installed packages. These lie inside the folder of the standard library."""
_LIBRARIES = ("xarray_gpuzarr", "xarray", "dask", "distributed", "zarr", "tornado", "IPython", "ipykernel", "traitlets")
"""Packages that may call this one, or that run the user's code."""


@cache
def _library_folders() -> tuple[str, ...]:
    """Return the folders of `_LIBRARIES`, each with a separator at its end."""
    specs = map(find_spec, _LIBRARIES)
    return tuple(f"{Path(spec.origin).parent}{os.sep}" for spec in specs if spec is not None and spec.origin)
