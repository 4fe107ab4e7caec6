"""The CUDA decoder: it carries out the same plans as the host decoder, on a GPU, in batches of chunks.

It uses the GPU only through `cuda.api.DeviceApi`, so that tests can replace the GPU by a simulator. Arrays and reads
that the device does not decode are decoded by the host, and copied to the device once; `CudaDecoder.route` tells which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np

from xarray_gpuzarr.cuda.api import DeviceApi, Undo
from xarray_gpuzarr.cuda.find_gpu import native_device
from xarray_gpuzarr.cuda.launch import usual_kernels
from xarray_gpuzarr.cuda.resources import DeviceResources
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import ChunkDoesNotFitError
from xarray_gpuzarr.decoders.cuda.chain import require_chain, why_host_checks
from xarray_gpuzarr.decoders.cuda.checks.trust import Trust
from xarray_gpuzarr.decoders.cuda.decoding.placing import fits_kernels
from xarray_gpuzarr.decoders.cuda.decoding.shadows import DifferentValuesError, new_shadow_choice
from xarray_gpuzarr.decoders.cuda.devices import Devices
from xarray_gpuzarr.decoders.cuda.read import Read
from xarray_gpuzarr.decoders.cuda.routes import ONE_COPY, route, why_host_is_faster, why_not_device
from xarray_gpuzarr.decoders.cuda.staging.upload import upload_pageable
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.decoders.protocol import Device, Route, StreamOf
from xarray_gpuzarr.errors import CudaError, DeviceMemoryError, DeviceUnavailableError
from xarray_gpuzarr.fetch.source import ByteSource, ObjectSource, Storage
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.process.advice import advise
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.device_options import resource_options
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast, cast_array


class CudaDecoder:
    """A `Decoder` whose results are CuPy arrays. The protocol describes the methods.

    Parameters
    ----------
    find_device : callable, optional
        Returns the device with the number that it is given, or without a number, the calling thread's current device.
    """

    def __init__(self, find_device: Callable[..., DeviceApi] = native_device) -> None:
        self._trust = Trust()
        self._devices = Devices(find_device, self._trust)
        self._device_args: tuple[int, ...] = ()
        """Arguments that select the device: its number, or none for the calling thread's current device."""
        self._host = HostDecoder(keeps_chunks=False)
        self._start_failure = ""
        """Why CUDA, or a library that it needs, could not be started at the last try; empty if it could."""

    def for_device(self, index: int) -> Self:
        """Return a decoder that reads to device `index` on every thread, and shares all resources with this one."""
        decoder = copy(self)
        decoder._device_args = (index,)  # noqa: SLF001  # an attribute of this class
        return decoder

    @property
    def device(self) -> Device:
        """``"cuda"``."""
        return "cuda"

    def route(self, spec: ArraySpec, cast: Cast) -> Route:
        """Return where the chunks of an array are decoded, and why; see `Decoder.route`. Starts no CUDA."""
        by_metadata = route(spec, _native(cast))
        if by_metadata.where != "cuda":
            return by_metadata
        if self._start_failure:
            return Route(where="host", why=self._start_failure)
        device = self._device() if self._devices.are_started else None
        options = resource_options()
        why = self._trust.known_failure(device, spec, _native(cast), options.checks)
        if why is None and options.little == "auto":  # reads of a few chunks may go to the host
            # The usual read is a dask task, which reads a shard.
            why = why_host_is_faster(spec, math.prod(spec.grid.chunks_per_shard))
        if why is not None:
            return Route(where=f"host, {ONE_COPY}", why=why)
        return Route(where="cuda", why="")

    def why_staged(self, spec: ArraySpec, cast: Cast, storage: Storage) -> str | None:
        """Return why chunks of local files reach the device through host memory; see `FileReader.why_staged`."""
        if self.route(spec, cast).where != "cuda":
            return "the host decodes"
        why_not = why_host_checks(require_chain(spec))
        if why_not is not None:
            return why_not
        if storage != "gds":
            return 'GPUDirect Storage was not asked for (storage="gds")'
        return self.why_no_gds()

    def why_no_gds(self) -> str | None:
        """Return why GPUDirect Storage cannot read files into device memory; None if it can. Imports no CuPy."""
        # A native device would give the answer of the function below, but finding it imports CuPy.
        if self._devices.find_device is not native_device:
            return self._devices.find_device(*self._device_args).why_no_gds()
        from xarray_gpuzarr.cuda.gds_files import why_no_gds  # noqa: PLC0415  # only if storage="gds"

        return why_no_gds()

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return `dtype` in the machine's byte order, the only one that device arrays have."""
        return dtype.newbyteorder("=")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array on the device."""
        api = self._device()
        with api.activate():
            return api.empty(shape, dtype, api.consumer_stream())

    def read_without_plan(
        self,
        source: ObjectSource,  # noqa: ARG002
        spec: ArraySpec,  # noqa: ARG002
        target: Target,  # noqa: ARG002
        cast: Cast,  # noqa: ARG002
        out: Any,  # noqa: ARG002
    ) -> Any | None:
        """Return None, because every read to a device needs a plan; see `Decoder.read_without_plan`."""
        return None

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
        cast = _native(cast)
        dtype = np.dtype(cast.dtype)
        if not math.prod(target.shape):
            return self.empty(target.shape, dtype)
        if self._host_decodes(spec, target, cast):
            block = self._host.decode(plans, source, spec=spec, target=target, cast=cast)
            counters.add(n_by_host=target.n_chunks)
            return self._upload(block, Cast(dtype=cast.dtype))  # the host decoder has cast already
        if out is not None and ((out.shape, out.dtype) != (target.shape, dtype) or not out.flags.c_contiguous):
            out = None  # it does not fit, so the result is a new array
        resources = self._current_resources()
        is_real_gpu = resources.api.identity is not None
        shadow_choice = new_shadow_choice(spec, resources.options.verify, is_real_gpu=is_real_gpu)

        def read(workspace: Workspace) -> Any:
            reading = Read(workspace, source, spec, target=target, cast=cast, shadow_choice=shadow_choice, out=out)
            result = reading.run(plans)
            counters.add(n_by_host=reading.stager.n_by_host)
            return result

        return resources.run_read(read)

    def _host_decodes(self, spec: ArraySpec, target: Target, cast: Cast) -> bool:
        """Whether the host decodes a read. Runs the self-checks that the read depends on, if they have not been run."""
        if why_not_device(spec, cast) is not None or not fits_kernels(target):
            return True
        options = resource_options()
        if options.little == "auto" and why_host_is_faster(spec, target.n_chunks) is not None:
            return True
        return self._trust.refuses(self._device(), spec, target, cast, options.checks)

    def upload(self, block: np.ndarray[Any, Any], cast: Cast) -> Any:
        """Cast a block on the host and copy it to the device; see `Decoder.upload`."""
        try:
            return self._upload(block, cast)
        except DeviceMemoryError as err:
            if not self.may_retry(err):
                raise
        return self.alone(lambda: self._upload(block, cast))

    def _upload(self, block: np.ndarray[Any, Any], cast: Cast) -> Any:
        """Do the work of `upload`, but do not repeat it. Raises `DeviceMemoryError` if memory is short."""
        # Not `ascontiguousarray`, which gives an array without axes an axis.
        values = np.asarray(cast_array(_native(cast), block), order="C")

        def send(workspace: Workspace) -> Any:
            out = workspace.new_result(values.shape, values.dtype, [workspace.copy])
            upload_pageable(workspace, workspace.api.address(out), [memoryview(values.reshape(-1).view(np.uint8))])
            workspace.api.synchronize(workspace.copy)
            return out

        return self._current_resources().run_read(send)

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:
        """Return a function that makes context managers, in which other threads read for the calling thread.

        See `Decoder.as_caller`.
        """
        api = self._device()
        with api.activate():
            handle = None if stream_of is None else stream_of(api.index)
            stream = api.consumer_stream() if handle is None else api.external_stream(handle)

        @contextmanager
        def reading() -> Iterator[None]:
            with api.activate():
                before = api.current_stream()
                # CuPy's `with stream:` is no alternative: at its end it undoes a `stream.use()` of this thread.
                try:
                    api.use_stream(stream)
                    yield
                finally:
                    api.use_stream(before)

        return reading

    def may_retry(self, err: Exception) -> bool:
        """Whether a read that ended in an error may be repeated; see `Decoder.may_retry`.

        If the device has decoded a chunk to other bytes than the host, the host decodes the array from now on.
        """
        if isinstance(err, DifferentValuesError):
            self._trust.distrust(self._device(), err)
            return True
        return isinstance(err, DeviceMemoryError) and not isinstance(err, ChunkDoesNotFitError)

    def alone[Result](self, read: Callable[[], Result]) -> Result:
        """Return what `read` returns while no other thread reads; see `DeviceResources.run_alone`."""
        return self._current_resources().run_alone(read)

    def prepare(self) -> Undo:
        """Check nvCOMP, share the caller's pool with CuPy, and build kernels; see `PreparedDecoder.prepare`."""
        api = self._current_resources().api
        with api.activate():
            _ = api.nvcomp  # raises an error if its version is unsuitable
            undo = api.share_pool()
            try:
                api.build(usual_kernels())
            except BaseException:
                undo()
                raise
            return undo

    def prepare_threads(self, n_threads: int) -> None:
        """Make the streams and allocate the pinned memory that the reads of `n_threads` more threads use."""
        resources = self._current_resources()
        with resources.api.activate():
            resources.prepare(n_threads)

    def close(self) -> None:
        """Wait until all reads have ended, and free what is kept for all devices; later reads allocate it again."""
        self._devices.close()

    def why_unusable(self) -> str | None:
        """Return why nothing can be read to the device; None if it can. Starts CUDA, and copies some bytes.

        Warns if CUDA cannot be started, since ``device="auto"``, for which this is called, then reads to the host.

        Raises
        ------
        DeviceUnavailableError
            If the device's state belongs to the process that this one was forked from.
        """
        self._devices.refuse_after_fork()  # here, because the `try` below would turn this error into a reason
        try:
            device = self._device()
            _ = device.identity  # raises an error if CUDA does not start, or nvCOMP is missing or unsuitable
            self._start_failure = ""
        except (CudaError, DeviceMemoryError, DeviceUnavailableError) as error:
            self._start_failure = f"{error.headline}: {error.found}"
            advise(
                f"not started: {self._start_failure}",
                "this machine has a GPU that cannot be used, and device='auto' reads to the host",
                found=self._start_failure,
                do=error.do,
            )
            return self._start_failure
        return self._trust.checked_device(device).why_unusable()

    def _device(self) -> DeviceApi:
        return self._devices.device(*self._device_args)

    def _current_resources(self) -> DeviceResources:
        return self._devices.current_resources(*self._device_args)


def _native(cast: Cast) -> Cast:
    """Return the cast with a result dtype in the machine's byte order."""
    dtype = np.dtype(cast.dtype)
    return cast if dtype.isnative else replace(cast, dtype=dtype.newbyteorder("=").str)
