"""Sizes in bytes as people write them, in settings, variables of the environment, keywords and on the command line."""

from __future__ import annotations

import re
from fractions import Fraction

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
