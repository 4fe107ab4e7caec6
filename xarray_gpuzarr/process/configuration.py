"""`configure`: one function for all settings of a process; `device_options` and `fetch_options` explain them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process import device_options as decoding
from xarray_gpuzarr.process import fetch_options as fetching
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.fetch_options import FetchOptions
from xarray_gpuzarr.process.settings import InForce

_RESOURCES = frozenset(f.name for f in fields(ResourceOptions))
_FETCHING = frozenset(f.name for f in fields(FetchOptions))
_RECORDS: tuple[tuple[InForce[Any], frozenset[str]], ...] = (
    (fetching.in_force, _FETCHING),
    (decoding.in_force, _RESOURCES),
)


def configure(*, share: bool = False, **options: object) -> dict[str, Any]:
    """Set, for this process and from the next read on, how stores are asked for bytes and what memory a GPU may give.

    Parameters
    ----------
    share : bool
        Also make the memory resource of reads RMM's current one on the current device, and let CuPy allocate through
        RMM: one pool for reads and for what is computed from them. Needs a GPU.
    **options
        Fields of `FetchOptions` and `ResourceOptions`; those left out go back to the environment's value or the
        default. Sizes may carry a unit: ``"64 KiB"``, ``"2GB"``.

    Returns
    -------
    dict
        All options that are in force now, as keywords of this function.

    Raises
    ------
    OptionError
        An unknown name or an unusable value. Nothing has changed then.

    Examples
    --------
    >>> import xarray_gpuzarr
    >>> xarray_gpuzarr.configure(max_requests=32, index_cache_nbytes="1 MiB")["index_cache_nbytes"]
    1048576
    >>> xarray_gpuzarr.configure()["index_cache_nbytes"]  # the default again
    67108864
    """
    check_options(options)
    for in_force, names in _RECORDS:
        in_force.choose({name: options[name] for name in options if name in names})
    if share:
        device = importlib.import_module("xarray_gpuzarr.cuda.device")  # imports CuPy and RMM
        device.native_device().share("always")
    return options_in_force()


def options_in_force() -> dict[str, Any]:
    """Return all options that are in force, as keywords of `configure`."""
    return {**asdict(fetching.fetch_options()), **asdict(decoding.resource_options())}


def check_options(options: Mapping[str, object]) -> None:
    """Raise `OptionError` if `configure` would refuse these options."""
    if unknown := options.keys() - _FETCHING - _RESOURCES:
        raise OptionError(
            "unknown option",
            tried=", ".join(sorted(unknown)),
            found="the known ones are " + ", ".join(sorted(_FETCHING | _RESOURCES)),
            do="give one of them",
        )
    for in_force, names in _RECORDS:
        in_force.chosen({name: options[name] for name in options if name in names})
