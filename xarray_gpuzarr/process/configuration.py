"""All settings of a process, whichever record they belong to; `device_options` and `fetch_options` explain them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from xarray_gpuzarr.errors import OptionError, perhaps
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


def choose_options(options: Mapping[str, object]) -> None:
    """Put options in force, from the next read on; those left out go back to the environment's value or the default.

    Raises
    ------
    OptionError
        An unknown name or an unusable value. Nothing has changed then.
    """
    check_options(options)
    options = decoding.with_engine(options)
    for in_force, names in _RECORDS:
        in_force.choose({name: options[name] for name in options if name in names})


def options_in_force() -> dict[str, Any]:
    """Return all options that are in force, as keywords of `configure`."""
    return {**asdict(fetching.fetch_options()), **asdict(decoding.resource_options())}


def check_options(options: Mapping[str, object]) -> None:
    """Raise `OptionError` if `configure` would refuse these options."""
    options = decoding.with_engine(options)
    known = sorted({"engine"} | _FETCHING | _RESOURCES)
    if unknown := sorted(options.keys() - known):
        raise OptionError(
            "unknown option",
            tried=", ".join(unknown),
            found="valid options: " + ", ".join(known),
            do=f"choose one of these{perhaps(unknown[0], known)}",
        )
    for in_force, names in _RECORDS:
        in_force.chosen({name: options[name] for name in options if name in names})
