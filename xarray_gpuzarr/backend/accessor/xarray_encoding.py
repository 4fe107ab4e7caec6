"""How xarray encodes the variables of a group, which is found out by letting it encode samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from xarray import Variable, conventions
from xarray.backends import ZarrStore


def stored_encoding(stored: Variable) -> dict[str, Any]:
    """Return the encoding of a stored variable, with which xarray encodes values that are added to it."""
    decoded, _, _ = conventions.decode_cf_variables({"stored": stored}, {})
    return dict(decoded["stored"].encoding)


def one_element(variable: Variable, encoding: Mapping[str, Any]) -> Variable:
    """Return a variable with one NumPy element, and the dimensions, dtype and attributes of another variable."""
    zeros = np.zeros((1,) * variable.ndim, variable.dtype)
    return Variable(variable.dims, zeros, variable.attrs, dict(encoding))


def try_encode(target: ZarrStore, name: Any, variable: Variable) -> Variable | None:
    """Return a variable as xarray encodes it for a group; None if xarray raises an error."""
    try:
        encoded: Variable = target.encode_variable(variable, name)
    except Exception:  # noqa: BLE001  # xarray raises it again when it encodes the whole variable
        return None
    return encoded


def check_encodable(target: ZarrStore, name: Any, variable: Variable) -> None:
    """Raise what xarray raises for a variable that it cannot encode.

    One element of a NumPy array is enough. If xarray does not encode it, all elements are encoded, which may succeed.
    """
    if variable.chunks is None and try_encode(target, name, one_element(variable, variable.encoding)) is not None:
        return
    target.encode_variable(variable, name)
