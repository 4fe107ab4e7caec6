"""The CUDA decoder as a client without a GPU sees it: it plans and names everything, and reads where a GPU is."""

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
_VALUES = ("T", "dtype", "flags", "imag", "itemsize", "nbytes", "ndim", "real", "shape", "size", "strides")


class CupyStandIn(NDArrayOperatorsMixin):
    """A NumPy array that poses as CuPy's, and becomes one where it is unpickled beside a GPU (by `decoders.choice`).

    dask plans with it: CuPy makes no array without a driver but an empty one, and beside NumPy's metadata dask would
    put NumPy blocks where it pads or fills.
    """

    __array_priority__ = 100

    def __init__(self, host: npt.NDArray[Any]) -> None:
        self._host = host
        """Mostly of length zero; what dask fills and pads with otherwise."""

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
    has_arrays = type(what) in (list, tuple) and any(isinstance(result, np.ndarray | np.generic) for result in what)
    return type(what)(map(_posing, what)) if has_arrays else what


class WorkersDecoder:
    """Decodes on a GPU where there is one; elsewhere says what results will be."""

    def __init__(self, described: Decoder, missing: Callable[[], Sequence[str]], cuda: Callable[[], Decoder]) -> None:
        self._described = described
        """A CUDA decoder that is only asked what it would do; that needs no GPU."""
        self._missing = missing
        """Returns what this machine lacks to use a GPU."""
        self._cuda = cuda
        """Returns the CUDA decoder of this process."""
        self._found_gpu = False

    @property
    def device(self) -> Device:
        """``"cuda"``."""
        return "cuda"

    def route(self, spec: ArraySpec, cast: Cast) -> Route:
        """Say whether chunks are decoded on the device, and why not."""
        return self._described.route(spec, cast)

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype that results have."""
        return self._described.result_dtype(dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array on the current GPU; what stands for one if there is none."""
        return CupyStandIn(np.empty(shape, dtype)) if self._missing() else self._cuda().empty(shape, dtype)

    def read_at_once(self, source: ObjectSource, spec: ArraySpec, target: Target, cast: Cast, out: Any) -> Any | None:
        """Read what is short in one call; see `Decoder.read_at_once`."""
        self._require_gpu(spec.path)
        return self._cuda().read_at_once(source, spec, target, cast, out)

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
        return self._cuda().decode(plans, source, spec=spec, target=target, cast=cast, out=out)

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:
        """Return what makes other threads read for this one; see `Decoder.as_caller`."""
        return nullcontext if self._missing_here() else self._cuda().as_caller(stream_of)

    def may_retry(self, err: Exception) -> bool:
        """Say whether `alone` is worth it; see `Decoder.may_retry`."""
        return not self._missing_here() and self._cuda().may_retry(err)

    def alone[Result](self, read: Callable[[], Result]) -> Result:
        """Call `read` with the device to itself; see `Decoder.alone`."""
        return self._cuda().alone(read)

    def upload(self, block: np.ndarray[Any, Any], cast: Cast) -> Any:
        """Cast a block and bring it to the device; see `Decoder.upload`."""
        self._require_gpu("an array that zarr-python decodes")
        return self._cuda().upload(block, cast)

    def _missing_here(self) -> Sequence[str]:
        missing = [] if self._found_gpu else self._missing()
        self._found_gpu = not missing
        return missing

    def _require_gpu(self, what: str) -> None:
        missing = self._missing_here()
        if missing:
            raise DeviceUnavailableError(
                "data opened with device='workers' can only be read on a machine with a GPU",
                tried=f"reading {what} on {platform.node()}",
                found="missing: " + ", ".join(missing),
                do="open it with chunks={} and compute on a cluster whose workers have GPUs, "
                "ds.gpuzarr.to_host() first if this client has none; device='auto' or device='host' reads anywhere",
            )
