"""The decoder for ``device="workers"``: a client without a GPU opens data that the workers of a cluster read to GPUs.

On a machine without a GPU, `WorkersDecoder` describes results, so that dask can plan with them, but cannot read. On a
machine with a GPU it reads with the CUDA decoder. `CupyStandIn` takes the place of CuPy's arrays on the client.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from xarray_gpuzarr.decoders.protocol import Decoder, Device, Route, StreamOf
from xarray_gpuzarr.errors import DeviceUnavailableError
from xarray_gpuzarr.fetch.source import ByteSource, ObjectSource
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

_METHODS = frozenset({
    "all", "any", "astype", "conj", "copy", "cumprod", "cumsum", "dot", "max", "mean", "min", "nonzero", "prod",
    "ravel", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum", "swapaxes", "take", "transpose",
    "var", "view",
})  # fmt: skip
"""Methods of `cupy.ndarray` that dask may call on a stand-in."""
_VALUES = ("T", "dtype", "flags", "imag", "itemsize", "nbytes", "ndim", "real", "shape", "size", "strides")
"""Attributes of `cupy.ndarray` that dask may use."""


class CupyStandIn(NDArrayOperatorsMixin):
    """A NumPy array in place of a CuPy array. On a machine with a GPU, it is unpickled as a CuPy array.

    dask uses it as the metadata of blocks, and for the values that it fills or pads with. Without a driver, CuPy makes
    only empty arrays. With NumPy's metadata, dask would fill and pad CuPy blocks with NumPy arrays. `decoders.choice`
    registers how it is pickled.
    """

    __array_priority__ = 100  # as `cupy.ndarray` has it

    def __init__(self, host: npt.NDArray[Any]) -> None:
        self._host = host
        """Values in host memory. The metadata of blocks have length zero, unlike values to fill or pad with."""

    def get(self) -> npt.NDArray[Any]:
        """Return the values as a NumPy array, as `cupy.ndarray.get` does."""
        return self._host

    def __array__(self, *_: Any, **__: Any) -> npt.NDArray[Any]:
        raise TypeError("Implicit conversion to a NumPy array is not allowed: it stands for a CuPy array")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        return _to_stand_ins(getattr(ufunc, method)(*_to_numpy(inputs), **_to_numpy(keywords)))

    def __array_function__(self, function: Callable[..., Any], _: Any, args: Any, keywords: Any) -> Any:
        numpy_keywords = _to_numpy(keywords)
        numpy_keywords.pop("like", None)  # it has chosen this class, and is not needed for NumPy's function
        return _to_stand_ins(function(*_to_numpy(args), **numpy_keywords))

    def __getitem__(self, key: Any) -> Any:
        return _to_stand_ins(self._host[_to_numpy(key)])

    def __len__(self) -> int:
        return len(self._host)

    def __getattr__(self, name: str) -> Any:
        if name in _VALUES:
            return _to_stand_ins(getattr(self._host, name))
        if name not in _METHODS:
            raise AttributeError(name)
        method = getattr(self._host, name)
        return lambda *args, **keywords: _to_stand_ins(method(*_to_numpy(args), **_to_numpy(keywords)))

    def __repr__(self) -> str:
        return f"CupyStandIn(shape={self.shape}, dtype={self.dtype})"

    def __dask_tokenize__(self) -> tuple[object, ...]:
        return (type(self).__qualname__, self._host.dtype.str, self._host.shape, self._host.tobytes())


def _to_numpy(argument: Any) -> Any:
    """Return an argument with NumPy arrays in place of stand-ins, also inside lists, tuples and dictionaries."""
    if isinstance(argument, CupyStandIn):
        return argument.get()
    if isinstance(argument, dict):
        return {key: _to_numpy(value) for key, value in argument.items()}
    if type(argument) in (list, tuple):
        return type(argument)(map(_to_numpy, argument))
    return argument


def _to_stand_ins(result: Any) -> Any:
    """Return a result with stand-ins in place of NumPy arrays, and of scalars, which CuPy would leave on the device."""
    if isinstance(result, np.ndarray | np.generic):
        return CupyStandIn(np.asarray(result))
    if type(result) in (list, tuple) and any(isinstance(item, np.ndarray | np.generic) for item in result):
        return type(result)(map(_to_stand_ins, result))
    return result


class WorkersDecoder:
    """A `Decoder` that reads on machines with a GPU, and describes results on others; see `Decoder` for its methods.

    Parameters
    ----------
    description : Decoder
        CUDA decoder that tells routes and dtypes, for which it needs no GPU.
    find_missing : callable
        Returns what this machine lacks to use a GPU; empty if it can.
    find_cuda : callable
        Returns the CUDA decoder of this process.
    """

    def __init__(
        self, description: Decoder, find_missing: Callable[[], Sequence[str]], find_cuda: Callable[[], Decoder]
    ) -> None:
        self._description = description
        self._find_missing = find_missing
        self._find_cuda = find_cuda
        self._has_gpu = False
        """Whether a GPU has been found. It is then not looked for again."""

    @property
    def device(self) -> Device:
        """``"cuda"``."""
        return "cuda"

    def route(self, spec: ArraySpec, cast: Cast) -> Route:
        """Return where chunks are decoded on a worker, and why; see `Decoder.route`."""
        return self._description.route(spec, cast)

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype of results; see `Decoder.result_dtype`."""
        return self._description.result_dtype(dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array on the current GPU, or a stand-in if this machine lacks something for a GPU."""
        if self._missing():
            return CupyStandIn(np.empty(shape, dtype))
        return self._find_cuda().empty(shape, dtype)

    def read_without_plan(
        self, source: ObjectSource, spec: ArraySpec, target: Target, cast: Cast, out: Any
    ) -> Any | None:
        """Read a short selection in one call; see `Decoder.read_without_plan`."""
        self._require_gpu(spec.path)
        return self._find_cuda().read_without_plan(source, spec, target, cast, out)

    def decode(
        self,
        plans: Iterator[ReadPlan],
        source: ByteSource,
        *,
        spec: ArraySpec,
        target: Target,
        cast: Cast,
        out: Any = None,
    ) -> Any:
        """Carry out plans; see `Decoder.decode`."""
        self._require_gpu(spec.path)
        return self._find_cuda().decode(plans, source, spec=spec, target=target, cast=cast, out=out)

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:
        """Return a function that makes context managers, in which other threads read for this one.

        See `Decoder.as_caller`. Without a GPU, they do nothing.
        """
        return nullcontext if self._missing() else self._find_cuda().as_caller(stream_of)

    def may_retry(self, err: Exception) -> bool:
        """Whether a read may be tried once more; see `Decoder.may_retry`. False without a GPU."""
        return not self._missing() and self._find_cuda().may_retry(err)

    def alone[Result](self, read: Callable[[], Result]) -> Result:
        """Call `read` with the device to itself; see `Decoder.alone`."""
        return self._find_cuda().alone(read)

    def upload(self, block: np.ndarray[Any, Any], cast: Cast) -> Any:
        """Cast a block and bring it to the device; see `Decoder.upload`."""
        self._require_gpu("an array that zarr-python decodes")
        return self._find_cuda().upload(block, cast)

    def _missing(self) -> Sequence[str]:
        """Return what this machine lacks to use a GPU. Nothing is looked for again once a GPU was found."""
        if self._has_gpu:
            return []
        missing = self._find_missing()
        self._has_gpu = not missing
        return missing

    def _require_gpu(self, data: str) -> None:
        """Raise `DeviceUnavailableError` if this machine has no GPU; `data` is what would be read, for the message."""
        missing = self._missing()
        if missing:
            raise DeviceUnavailableError(
                "data opened with device='workers' can only be read on a machine with a GPU",
                tried=f"reading {data} on {platform.node()}",
                found="missing: " + ", ".join(missing),
                do="open it with chunks={} and compute on a cluster whose workers have GPUs, "
                "ds.gpuzarr.to_host() first if this client has none; device='auto' or device='host' reads anywhere",
            )
