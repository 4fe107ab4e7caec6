"""How much memory reads on a GPU may use, and from where: one small record, checked when it is made.

Nothing is allocated here. `resources` keeps the record in force; lanes, batches and the device read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, get_args

from xarray_gpuzarr.errors import OptionError

MemoryChoice = Literal["auto", "pool", "async", "current"]
"""Where device memory comes from; see `ResourceOptions.memory`."""

_PREFIX = "XARRAY_GPUZARR_"
_MIB = 1024**2
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}
_AT_LEAST = {"slot_nbytes": 64 * 1024, "n_slots": 2, "batch_nbytes": 1, "scratch_nbytes": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOptions:
    """Memory that reads on one device may use.

    Raises
    ------
    OptionError
        A value is of the wrong type, too small, or not among the known ones.
    """

    slot_nbytes: int = 64 * _MIB
    """Length of a pinned staging slot in bytes, at least 64 KiB. A chunk that is longer crosses in pieces."""
    n_slots: int = 3
    """Pinned staging slots of each thread, at least 2: one is filled while the device reads another."""
    batch_nbytes: int = 512 * _MIB
    """Decoded bytes that one batch of chunks aims at."""
    scratch_nbytes: int | None = None
    """Device memory in bytes that one thread may use besides results; None: a quarter of what is free when the thread
    first reads."""
    memory: MemoryChoice = "auto"
    """RMM resource that device memory is taken from. ``auto``: the caller's current one, unless that is a plain
    `CudaMemoryResource`, whose every allocation stalls the device; then as ``async``. ``async``: a private
    `CudaAsyncMemoryResource`, or as ``pool`` where the driver has none. ``pool``: a private `PoolMemoryResource` that
    grows. ``current``: the caller's current one, whatever it is."""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is None and name == "scratch_nbytes":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise _unusable(name, f"{name}={value!r}", f"not a whole number of at least {least}")
        if self.memory not in get_args(MemoryChoice):
            raise _unusable("memory", f"memory={self.memory!r}", _KNOWN_MEMORY)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> ResourceOptions:
        """Return the options that ``XARRAY_GPUZARR_<FIELD>`` variables ask for; defaults where there is none.

        Parameters
        ----------
        environ : mapping of str to str
            Sizes may carry a unit: ``67108864``, ``64 MiB``, ``2GB``.

        Raises
        ------
        OptionError
            A variable holds something unusable.
        """
        given: dict[str, Any] = {}
        for field in fields(cls):
            text = environ.get(_variable(field.name))
            if text is not None:
                given[field.name] = text if field.name == "memory" else _parse_number(field.name, text)
        return cls(**given)


def parse_nbytes(text: str) -> int:
    """Return a size such as ``"64 MiB"`` in bytes, rounded down.

    Parameters
    ----------
    text : str
        A decimal number and, in any case, nothing, B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB or TiB (of 1024).

    Raises
    ------
    ValueError
        The text is not of that form.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*", text, re.ASCII | re.IGNORECASE)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(text)
    return int(Fraction(match[1]) * unit)


_KNOWN_MEMORY = "the known ones are " + ", ".join(get_args(MemoryChoice))


def _parse_number(name: str, text: str) -> int:
    tried = f"{_variable(name)}={text!r}"
    if name.endswith("nbytes"):
        try:
            return parse_nbytes(text)
        except ValueError:
            raise _unusable(name, tried, "not a size such as 67108864, 64 MiB or 2GB") from None
    if not re.fullmatch(r"[0-9]+", text):
        raise _unusable(name, tried, "not a whole number")
    return int(text)


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def _unusable(name: str, tried: str, found: str) -> OptionError:
    return OptionError(
        f"unusable resource option {name!r}",
        tried=tried,
        found=found,
        do=f"change {name}, or unset {_variable(name)}, to get the default",
    )
