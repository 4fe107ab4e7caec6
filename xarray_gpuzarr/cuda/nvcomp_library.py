"""Load the nvCOMP library, and check its version."""

from __future__ import annotations

import ctypes
import importlib

from xarray_gpuzarr.cuda.nvcomp import library_version, version_text
from xarray_gpuzarr.errors import DeviceUnavailableError

_FIRST_VERSION = 5300
"""Oldest supported version, 5.3.0; see `nvcomp` for the reason."""
_END_VERSION = 7000
"""First version that is not supported, 7.0.0."""
_SUPPORTED_VERSIONS = ">=5.3,<7"


def load_nvcomp() -> ctypes.CDLL:
    """Return the nvCOMP library. Loading it needs no driver and no GPU.

    The function ``load_library`` of the ``nvidia-libnvcomp`` package looks for the library in the package and on the
    system's library path.

    Raises
    ------
    DeviceUnavailableError
        If the package or the library is missing, or the library's version is not supported.
    """
    try:
        libnvcomp = importlib.import_module("nvidia.libnvcomp")
    except ImportError as error:
        raise _unavailable("the package nvidia.libnvcomp", str(error)) from error
    tried = f"libnvcomp in {', '.join(libnvcomp.__path__)} and on the system's library path"
    try:
        library: ctypes.CDLL | None = libnvcomp.load_library()
    except OSError as error:
        raise _unavailable(tried, str(error)) from error
    if library is None:
        raise _unavailable(tried, f"the package's version is {libnvcomp.__version__}, but no library loads")
    version = library_version(library)
    if not _FIRST_VERSION <= version < _END_VERSION:
        raise _unavailable(tried, f"nvCOMP {version_text(version)}; supported are {_SUPPORTED_VERSIONS}")
    return library


def _unavailable(tried: str, cause: str) -> DeviceUnavailableError:
    return DeviceUnavailableError(
        "nvCOMP cannot be loaded",
        tried=tried,
        found=cause,
        do="pip install 'xarray-gpuzarr[cuda13]' (or [cuda12] for a CUDA 12 driver), or read with device='host'",
    )
