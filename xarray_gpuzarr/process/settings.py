"""Settings of a process: how the environment writes them, how unusable ones are refused, and which are in force.

Knows no setting. `device_options` and `fetch_options` are records of settings that are read and kept through it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from xarray_gpuzarr.errors import OptionError

_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{,20})?|\.[0-9]{1,20})\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}


def parse_nbytes(text: str, headline: str, *, tried: str, do: str) -> int:
    """Return a size such as ``"64 MiB"`` in bytes, rounded down; raises `OptionError` for any other text.

    It is a decimal number and, in any case, nothing, B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB or TiB (of
    1024). `headline`, `tried` and `do` are what the error says of where the text comes from.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise OptionError(headline, tried=tried, found="not a size such as 67108864, 64 MiB or 2GB", do=do)
    return int(Fraction(match[1]) * unit)


_PREFIX = "XARRAY_GPUZARR_"


def given_numbers(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers that ``XARRAY_GPUZARR_<NAME>`` variables give; what is not set is left out.

    Names that end in ``nbytes`` may carry a unit. Raises `OptionError` if a variable holds no number.
    """
    numbers = {}
    for name in names:
        text = environ.get(variable(name))
        if text is None:
            continue
        tried = f"{variable(name)}={text!r}"
        if _is_size(name):
            numbers[name] = parse_nbytes(text, _headline(name), tried=tried, do=_do(name))
        elif re.fullmatch(r"[0-9]+", text):
            numbers[name] = int(text)
        else:
            raise unusable(name, tried, "not a whole number")
    return numbers


def check_number(name: str, value: object, least: int) -> None:
    """Raise `OptionError` unless a setting is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise unusable(name, f"{name}={value!r}", f"not a whole number of at least {least}")


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return _PREFIX + name.upper()


def unusable(name: str, tried: str, found: str) -> OptionError:
    """Return the error of a setting that cannot be used."""
    return OptionError(_headline(name), tried=tried, found=found, do=_do(name))


def _is_size(name: str) -> bool:
    return name.endswith("nbytes")


def _headline(name: str) -> str:
    return f"unusable option {name!r}"


def _do(name: str) -> str:
    return f"give {name} another value, or leave it out and unset {variable(name)} to get the default"


class InForce[Options]:
    """The settings in force in this process: those that were chosen, else what the environment says.

    `kind` is a frozen dataclass with a classmethod `from_environment`.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self.options: Options | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self) -> Options:
        """Return the record."""
        options = self.options
        if options is None:
            with self._lock:
                options = self.options = self.options or self._kind.from_environment()
        return options

    def chosen(self, options: Mapping[str, object]) -> Options:
        """Return the record that the environment asks for, changed by `options`; sizes may be texts with a unit.

        Raises `OptionError` for an unusable value.
        """
        usual, in_bytes = self._kind.from_environment(), dict(options)
        for name, value in options.items():
            if _is_size(name) and isinstance(value, str):
                in_bytes[name] = parse_nbytes(value, _headline(name), tried=f"{name}={value!r}", do=_do(name))
        changed: Options = replace(usual, **in_bytes)
        return changed

    def choose(self, options: Mapping[str, object]) -> None:
        """Put `chosen` in force, from the next read on."""
        changed = self.chosen(options)
        with self._lock:
            self.options = changed

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
