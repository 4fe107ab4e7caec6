"""`configure`, the one function for all options of a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from xarray_gpuzarr.errors import OptionError, similar_name_hint
from xarray_gpuzarr.process import device_options, fetch_options
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.fetch_options import FetchOptions
from xarray_gpuzarr.process.settings import ENVIRONMENT_ONLY, ActiveSettings, environment_variable

_RECORDS: tuple[tuple[ActiveSettings[Any], frozenset[str]], ...] = (
    (fetch_options.in_force, frozenset(field.name for field in fields(FetchOptions))),
    (device_options.in_force, frozenset(field.name for field in fields(ResourceOptions))),
)
"""The two records of options that are in force, each with the names of its fields."""


def options_in_force() -> dict[str, Any]:
    """Return the values of all options now, as keywords of `configure`."""
    return {**asdict(fetch_options.fetch_options()), **asdict(device_options.resource_options())}


def known_options() -> list[str]:
    """Return the names of all options of `configure`, in alphabetical order."""
    return sorted({"engine"}.union(*(names for _, names in _RECORDS)))


def check_options(options: Mapping[str, object]) -> None:
    """Raise `OptionError` if `configure` would refuse these options."""
    options = device_options.with_engine(options)
    known = known_options()
    unknown = sorted(options.keys() - known)
    if unknown:
        do = f"choose one of these{similar_name_hint(unknown[0], known)}"
        if unknown[0] in ENVIRONMENT_ONLY:
            variable = environment_variable(unknown[0])
            do = f"set {variable} in the environment before Python starts; configure cannot change {unknown[0]}"
        raise OptionError("unknown option", tried=", ".join(unknown), found="valid options: " + ", ".join(known), do=do)
    for in_force, names in _RECORDS:
        # A record of options checks its values when it is made. This one is made for the check alone.
        in_force.with_changes({name: options[name] for name in options if name in names})


def configure(**options: object) -> dict[str, Any]:
    """Configure requests to stores and GPU memory for this process, from the next read on.

    Parameters
    ----------
    **options
        Fields of `FetchOptions` and `ResourceOptions`; those left out go back to the environment's value or the
        default. Sizes may carry a unit: ``"64 KiB"``, ``"2GB"``. ``engine="plain"`` stands for the most cautious
        values of five options: there is one read and one batch at a time, the device also decodes short reads, a failed
        self-check is an error, and the host decodes every chunk again, to compare.

    Returns
    -------
    dict
        The values of all options now, as keywords of this function. None stands for a default that depends on the
        store, the machine or the read.

    Raises
    ------
    OptionError
        If a name is unknown or a value is unusable. No option has changed then.

    Examples
    --------
    >>> import xarray_gpuzarr
    >>> xarray_gpuzarr.configure(max_requests=32, index_cache_nbytes="1 MiB")["index_cache_nbytes"]
    1048576
    >>> xarray_gpuzarr.configure()["index_cache_nbytes"]  # the default again
    67108864
    """
    check_options(options)
    chosen = device_options.with_engine(options)
    for in_force, names in _RECORDS:
        in_force.choose({name: chosen[name] for name in chosen if name in names})
    return options_in_force()
