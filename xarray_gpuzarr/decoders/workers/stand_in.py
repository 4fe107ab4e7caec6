"""What stands for a CuPy array on a client without a GPU: dask plans with it, and workers unpack it as CuPy's.

CuPy makes no array without a driver but an empty one, and computes nothing with that. NumPy's metadata would let dask
put NumPy blocks beside CuPy's where it pads or fills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

_METHODS = frozenset({
    "all", "any", "astype", "conj", "copy", "cumprod", "cumsum", "dot", "max", "mean", "min", "nonzero", "prod",
    "ravel", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "transpose",
    "var", "view",
})  # fmt: skip
_VALUES = ("T", "dtype", "flags", "imag", "itemsize", "nbytes", "ndim", "real", "shape", "size", "strides")


class CupyStandIn(NDArrayOperatorsMixin):
    """A NumPy array that poses as CuPy's, and becomes one where it is unpickled beside a GPU (by `decoders.choice`).

    Parameters
    ----------
    host : numpy.ndarray
        Mostly of length zero; what dask fills and pads with otherwise.
    """

    __array_priority__ = 100

    def __init__(self, host: npt.NDArray[Any]) -> None:
        self._host = host

    def get(self) -> npt.NDArray[Any]:
        """Return the values, as CuPy's method does."""
        return self._host

    def __array__(self, *_: Any, **__: Any) -> npt.NDArray[Any]:
        raise TypeError("Implicit conversion to a NumPy array is not allowed: it stands for a CuPy array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        return _posing(getattr(ufunc, method)(*_hosts(inputs), **_hosts(keywords)))

    def __array_function__(self, function: Callable[..., Any], _: Any, args: Any, keywords: Any) -> Any:
        return _posing(function(*_hosts(args), **{k: v for k, v in _hosts(keywords).items() if k != "like"}))

    def __getitem__(self, key: Any) -> Any:
        return _posing(self._host[_hosts(key)])

    def __len__(self) -> int:
        return len(self._host)

    def __getattr__(self, name: str) -> Any:
        if name in _VALUES:
            return _posing(getattr(self._host, name))
        if name not in _METHODS:
            raise AttributeError(name)
        method = getattr(self._host, name)
        return lambda *args, **keywords: _posing(method(*_hosts(args), **_hosts(keywords)))

    def __repr__(self) -> str:
        return f"CupyStandIn(shape={self.shape}, dtype={self.dtype})"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return (type(self).__qualname__, self._host.dtype.str, self._host.shape, self._host.tobytes())


def _hosts(what: Any) -> Any:
    """Take the NumPy arrays out of stand-ins, in nested arguments too."""
    if isinstance(what, CupyStandIn):
        return what.get()
    if isinstance(what, dict):
        return {key: _hosts(value) for key, value in what.items()}
    return type(what)(map(_hosts, what)) if type(what) in (list, tuple) else what


def _posing(what: Any) -> Any:
    """Let arrays among results pose as CuPy's; so do scalars that CuPy would leave on the device."""
    if isinstance(what, np.ndarray | np.generic):
        return CupyStandIn(np.asarray(what))
    return type(what)(map(_posing, what)) if type(what) in (list, tuple) and _has_arrays(what) else what


def _has_arrays(results: Sequence[Any]) -> bool:
    return any(isinstance(result, np.ndarray | np.generic) for result in results)
