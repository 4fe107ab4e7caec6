"""Settings of a process: parsing them from the environment, reporting invalid ones, and holding those that apply.

The settings themselves are the fields of the records in `device_options` and `fetch_options`, which use this module.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from xarray_gpuzarr.errors import OptionError, similar_name_hint

# At most 20 digits before and after the point: Python refuses to convert thousands of digits.
_SIZE = re.compile(r"\s*([0-9]{1,20}(?:\.[0-9]{,20})?|\.[0-9]{1,20})\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}


def parse_nbytes(text: str, headline: str, *, tried: str, do: str) -> int:
    """Return the number of bytes, rounded down, that a text such as ``"64 MiB"`` stands for.

    Parameters
    ----------
    text : str
        A decimal number, followed by nothing or by one of the units B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB
        and TiB (powers of 1024), in upper or lower case.
    headline, tried, do : str
        For the message of the error, which depends on where the text comes from.

    Raises
    ------
    OptionError
        The text is not such a size.
    """
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise OptionError(headline, tried=tried, found="not a size such as 67108864, 64 MiB or 2GB", do=do)
    return int(Fraction(match[1]) * unit)


_PREFIX = "XARRAY_GPUZARR_"
ENVIRONMENT_ONLY = frozenset({"cache_dir", "native", "num_threads", "pool_kept_nbytes", "pool_waits"})
"""Settings that are made by environment variables only, before Python starts. They are no options of `configure`."""


def numbers_from_environment(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, int]:
    """Return the values of ``XARRAY_GPUZARR_<NAME>`` environment variables that are numbers.

    Parameters
    ----------
    names : iterable of str
        Names of settings. Values may have a unit if the name ends in ``nbytes``.
    environ : mapping of str to str
        The environment.

    Returns
    -------
    dict of str to int
        Name -> value, without names whose variables are not set.

    Raises
    ------
    OptionError
        The value of a variable is not a number.
    """
    numbers = {}
    for name in names:
        text = environ.get(environment_variable(name))
        if text is None:
            continue
        tried = f"{environment_variable(name)}={text!r}"
        if _is_size(name):
            numbers[name] = parse_nbytes(text, _headline(name), tried=tried, do=_advice(name))
        elif re.fullmatch(r"[0-9]{1,20}", text):  # at most 20 digits, as in `_SIZE`
            numbers[name] = int(text)
        else:
            raise unusable_error(name, tried, "not a whole number")
    return numbers


def check_number(name: str, value: object, minimum: int) -> None:
    """Raise an `OptionError` unless the value of a setting is a whole number of at least `minimum`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise unusable_error(name, f"{name}={value!r}", f"not a whole number of at least {minimum}")


def environment_variable(name: str) -> str:
    """Return the name of the environment variable of a setting."""
    return _PREFIX + name.upper()


def ignored_variables(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return a remark about each ``XARRAY_GPUZARR_`` variable that is no setting.

    `names` are the options of `configure`. The settings of `ENVIRONMENT_ONLY` are known besides.
    """
    known = sorted(name.upper() for name in ENVIRONMENT_ONLY.union(names))
    remarks = []
    for variable in sorted(environ):
        name = variable.removeprefix(_PREFIX)
        if name != variable and name not in known:
            remarks.append(f"{variable} is no setting{similar_name_hint(name, known)}")
    return remarks


def unusable_error(name: str, tried: str, found: str) -> OptionError:
    """Return the error for an invalid value of a setting; `tried` and `found` are as in `GpuZarrError`."""
    return OptionError(_headline(name), tried=tried, found=found, do=_advice(name))


def _is_size(name: str) -> bool:
    """Whether a setting is a size in bytes, which may be given as text with a unit."""
    return name.endswith("nbytes")


def _headline(name: str) -> str:
    return f"unusable option {name!r}"


def _advice(name: str) -> str:
    return f"give {name} another value, or leave it out and unset {environment_variable(name)} to get the default"


class ActiveSettings[Options]:
    """The record of settings that applies in this process.

    It is the one that `choose` has set, or else the one that environment variables gave when it was first needed.

    Parameters
    ----------
    kind : type
        Class of the record: a frozen dataclass with a class method `from_environment`, which returns a record.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self.options: Options | None = None
        """The record; None until it is first needed."""
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self) -> Options:
        """Return the record. Read it from the environment if there is none yet."""
        options = self.options
        if options is None:
            with self._lock:
                options = self.options = self.options or self._kind.from_environment()
        return options

    def with_changes(self, options: Mapping[str, object]) -> Options:
        """Return the record of the environment with some options changed.

        Parameters
        ----------
        options : mapping of str to object
            Names, which the record must have, and values of the options that are changed. Sizes may be texts with a
            unit.

        Raises
        ------
        OptionError
            A value is invalid.
        """
        parsed = dict(options)
        for name, value in options.items():
            if _is_size(name) and isinstance(value, str):
                parsed[name] = parse_nbytes(value, _headline(name), tried=f"{name}={value!r}", do=_advice(name))
        changed: Options = replace(self._kind.from_environment(), **parsed)
        return changed

    def choose(self, options: Mapping[str, object]) -> None:
        """Let the record that `with_changes` returns apply from the next read on. Raises as it does."""
        changed = self.with_changes(options)
        with self._lock:
            self.options = changed

    def _after_fork(self) -> None:  # the lock may be held by a thread that the fork does not have
        self._lock = threading.Lock()
