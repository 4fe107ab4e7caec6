"""A stand-in for CuPy: a duck array that refuses to become a NumPy array, and a decoder that returns it.

As `cupy.ndarray` does, it raises TypeError from ``__array__`` and from arithmetic with NumPy arrays of one or more
dimensions; NumPy scalars and Python numbers are welcome. `get` is the one way to the host.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.decoders.protocol import Route


def _refuse(what: Any) -> Any:
    if isinstance(what, np.ndarray) and what.ndim:
        raise TypeError(f"Unsupported type {type(what)}")
    return what


def _unwrap(what: Any) -> Any:
    if isinstance(what, StrictArray):
        return what.host
    if isinstance(what, list | tuple):
        return type(what)(_unwrap(w) for w in what)
    return _refuse(what)


def _wrap(what: Any) -> Any:
    if isinstance(what, np.ndarray | np.generic):
        return StrictArray(np.asarray(what))
    if isinstance(what, list | tuple):
        return type(what)(_wrap(w) for w in what)
    return what


def _key(key: Any) -> Any:
    """Return an index for the host array; CuPy accepts NumPy arrays here."""
    return tuple(map(_key, key)) if isinstance(key, tuple) else key.host if isinstance(key, StrictArray) else key


class StrictArray(NDArrayOperatorsMixin):
    """An array on a device that NumPy cannot see."""

    __array_priority__ = 100

    def __init__(self, host: np.ndarray) -> None:
        self.host = self.elements = host

    shape = property(lambda self: self.elements.shape)
    dtype = property(lambda self: self.elements.dtype)
    ndim = property(lambda self: self.elements.ndim)
    size = property(lambda self: self.elements.size)
    nbytes = property(lambda self: self.elements.nbytes)
    T = property(lambda self: self._apply(lambda array: array.T))
    real = property(lambda self: self._apply(lambda array: array.real))
    imag = property(lambda self: self._apply(lambda array: array.imag))

    def get(self) -> np.ndarray:
        return self.host.copy()

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        outs = {} if out is None else {"out": _unwrap(out)}
        result = getattr(ufunc, method)(*_unwrap(inputs), **outs, **{k: _unwrap(v) for k, v in kwargs.items()})
        return out[0] if out is not None else _wrap(result)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.take:  # CuPy, too, takes its indices from the host
            args = (args[0], _key(args[1]).tolist(), *args[2:])
        return _wrap(func(*_unwrap(args), **{k: _unwrap(v) for k, v in kwargs.items()}))

    def __getitem__(self, key: Any) -> Any:
        return self._apply(lambda array: array[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.host[_key(key)] = _unwrap(value)

    def __len__(self) -> int:
        return len(self.elements)

    def __getattr__(self, name: str) -> Any:
        if name not in ("astype", "reshape", "transpose", "copy", "sum", "max", "min", "mean", "all", "any", "ravel"):
            raise AttributeError(name)
        method = getattr(self.host, name)
        return lambda *args, **kwargs: _wrap(method(*args, **kwargs))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

    def _apply(self, pick: Callable[[np.ndarray], Any]) -> Any:
        """Return a part of the elements."""
        return _wrap(pick(self.host))

    def __reduce__(self) -> Any:
        return (StrictArray, (self.host,))

    def __dask_tokenize__(self) -> Any:
        return ("StrictArray", self.host.tobytes(), str(self.dtype), self.shape)


class StrictDecoder:
    """The host decoder, with its results hidden in `StrictArray`."""

    device = "host"
    _host = HostDecoder()

    def route(self, spec: Any, cast: Any) -> Route:
        return self._host.route(spec, cast)

    def result_dtype(self, dtype: Any) -> Any:
        return dtype

    def empty(self, shape: tuple[int, ...], dtype: Any) -> StrictArray:
        return StrictArray(self._host.empty(shape, dtype))

    def read_without_plan(self, *_: Any) -> None:
        return None

    def decode(self, plans: Iterator[Any], source: Any, **keywords: Any) -> StrictArray:
        return StrictArray(self._host.decode(plans, source, **keywords))

    def as_caller(self, stream_of: Any = None) -> Any:
        return self._host.as_caller(stream_of)

    def may_retry(self, err: Exception) -> bool:
        return False

    def upload(self, block: np.ndarray, cast: Any) -> StrictArray:
        return StrictArray(self._host.upload(block, cast))


def strict_decoder_for(device: str) -> StrictDecoder | HostDecoder:
    """Stand in for `xarray_gpuzarr.decoders.decoder_for`; what is to be on the host is NumPy's."""
    return HostDecoder() if device == "host" else StrictDecoder()
