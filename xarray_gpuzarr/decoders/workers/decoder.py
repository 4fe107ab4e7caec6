"""The CUDA decoder as a client without a GPU sees it: it plans and names everything, and reads where a GPU is."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.protocol import Decoder, Device, Route, StreamOf
from xarray_gpuzarr.decoders.workers.stand_in import CupyStandIn
from xarray_gpuzarr.errors import DeviceUnavailableError
from xarray_gpuzarr.fetch import ByteSource
from xarray_gpuzarr.plan.read_plan import ReadPlan, Target
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast


class WorkersDecoder:
    """Decodes on a GPU where there is one; elsewhere says what results will be.

    Parameters
    ----------
    described : Decoder
        A CUDA decoder that is only asked what it would do; that needs no GPU.
    missing : callable
        Returns what this machine lacks to use a GPU.
    cuda : callable
        Returns the CUDA decoder of this process.
    """

    def __init__(self, described: Decoder, missing: Callable[[], Sequence[str]], cuda: Callable[[], Decoder]) -> None:
        self._described = described
        self._missing = missing
        self._cuda = cuda
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
