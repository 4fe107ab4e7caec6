"""Where this package keeps what it has found out about a machine. Nothing is made or written here."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return ``$XARRAY_GPUZARR_CACHE_DIR``, else ``xarray-gpuzarr`` in ``$XDG_CACHE_HOME``, else in ``~/.cache``."""
    named = os.environ.get("XARRAY_GPUZARR_CACHE_DIR")
    if named:
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "xarray-gpuzarr"
