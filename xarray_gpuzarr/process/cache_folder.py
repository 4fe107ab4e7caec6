"""Where this package keeps between processes what it has found out about a machine; nothing there is needed."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder: ``XARRAY_GPUZARR_CACHE_DIR``, else ``xarray-gpuzarr`` in the user's caches. It may not exist.

    References
    ----------
    XDG Base Directory Specification 0.8: ``XDG_CACHE_HOME``, else ``~/.cache``.
    """
    setting = os.environ.get("XARRAY_GPUZARR_CACHE_DIR")
    if setting:
        return Path(setting)
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # without a home, too
    return Path(caches) / "xarray-gpuzarr"
