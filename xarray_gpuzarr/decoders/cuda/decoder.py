"""The CUDA decoder: the same plans as the host decoder's, decoded on a GPU in batches.

It talks to the GPU through `cuda.api.DeviceApi` only, so that tests can put a simulator in its place. What the device
does not decode takes the host decoder and one copy up; `route` says so.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np

from xarray_gpuzarr.cuda import checksum
from xarray_gpuzarr.cuda.api import DeviceApi, Undo
from xarray_gpuzarr.cuda.configuration import native_device
from xarray_gpuzarr.cuda.launch import usual_kernels
from xarray_gpuzarr.cuda.resources import WorkerResources, Workspace
from xarray_gpuzarr.decoders.cuda.batches.pieces import ChunkDoesNotFitError
from xarray_gpuzarr.decoders.cuda.chain import read_chain, why_not_direct
from xarray_gpuzarr.decoders.cuda.checks.trust import Trust
from xarray_gpuzarr.decoders.cuda.decoding.placing import fits_kernels
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Choice, DifferentValuesError
from xarray_gpuzarr.decoders.cuda.read import Read
from xarray_gpuzarr.decoders.cuda.routes import ONE_COPY, route, why_little, why_not_device
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

_PATIENCE_SECONDS = (0.1, 0.4, 1.5)
"""Waits between tries to read alone."""


class CudaDecoder:
    """Decodes on a GPU; results are CuPy arrays."""

    def __init__(self, current_device: Callable[..., DeviceApi] = native_device) -> None:
        self._current_device = current_device
        """Returns the calling thread's device; that of a number, if it is given one."""
        self._index: tuple[int, ...] = ()
        """Number of the device that all threads read to; none: each reads to its current one."""
        self._host = HostDecoder(keeps_chunks=False)
        self._resources: dict[int, WorkerResources] = {}
        self._trust = Trust()
        self._lock = threading.Lock()
        self._processes: set[int] = set()
        """Those that have used a device: this one, or one that it was forked off."""
        self._not_started = ""
        """Why CUDA, or what it needs, could not be started when that was last tried."""

    def of_device(self, index: int) -> Self:
        """Return one that reads to the device of that number on every thread, and shares what this one keeps."""
        decoder = copy(self)
        decoder._index = (index,)  # noqa: SLF001  # of this class
        return decoder

    @property
    def device(self) -> Device:
        """``"cuda"``."""
        return "cuda"

    def route(self, spec: ArraySpec, cast: Cast) -> Route:
        """Say whether chunks are decoded on the device, and why not."""
        by_metadata = route(spec, _native(cast))
        if by_metadata.where != "cuda":
            return by_metadata
        if self._not_started:
            return Route(where="host", why=self._not_started)
        asked = self._device() if os.getpid() in self._processes else None  # which starts CUDA
        options = resource_options()
        why = None if options.checks == "off" else self._trust.known_failure(asked, spec, _native(cast))
        if why is not None:
            return Route(where=f"host, {ONE_COPY}", why=why)
        little = why_little(spec, math.prod(spec.grid.chunks_per_shard)) if options.little == "auto" else None
        if little is not None:
            return Route(where=f"host, {ONE_COPY}", why=little)
        return Route(where="cuda", why="")

    def why_staged(self, spec: ArraySpec, cast: Cast, storage: Storage) -> str | None:
        """Say why chunks of local files reach the device through host memory; see `FileReader.why_staged`."""
        if self.route(spec, cast).where != "cuda":
            return "the host decodes"
        unasked = None if storage == "gds" else "GPUDirect Storage is used where it is asked for"
        return why_not_direct(read_chain(spec)) or unasked or self.why_no_files()

    def why_no_files(self) -> str | None:
        """Say why no file can be read straight into device memory; None if they can. Imports no CuPy."""
        if self._current_device is not native_device:
            return self._current_device(*self._index).why_no_files()
        from xarray_gpuzarr.cuda.gds_files import why_no_files  # noqa: PLC0415  # where it is asked for

        return why_no_files()

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return `dtype` in the machine's byte order: the only one that device arrays have."""
        return dtype.newbyteorder("=")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array on the current device."""
        api = self._device()
        with api.activate():
            return api.empty(shape, dtype, api.consumer_stream())

    def read_at_once(self, source: ObjectSource, spec: ArraySpec, target: Target, cast: Cast, out: Any) -> Any | None:  # noqa: ARG002
        """Return None: every read of a device is planned."""
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
        if not math.prod(target.shape):
            return self.empty(target.shape, np.dtype(cast.dtype))
        if self._is_for_host(spec, target, cast):
            block = self._host.decode(plans, source, spec=spec, target=target, cast=cast)
            counters.add(n_by_host=target.n_chunks)
            return self._upload(block, Cast(dtype=cast.dtype))  # whoever calls this tries once more
        fitting = (target.shape, np.dtype(cast.dtype))
        if out is not None and not ((out.shape, out.dtype) == fitting and out.flags.c_contiguous):
            out = None
        resources = self._current_resources()
        verify = resources.options.verify
        if verify is None:
            verify = "off" if resources.api.identity is None else "first"
        # Chunks that are longer than what the device can sum up are not compared.
        is_compared = verify != "off" and spec.chunk_nbytes <= checksum.MAX_NBYTES
        choice = Choice(spec, verify) if is_compared else None

        def read(workspace: Workspace) -> Any:
            reading = Read(workspace, source, spec, target=target, cast=cast, choice=choice, out=out)
            result = reading.run(plans)
            counters.add(n_by_host=reading.stager.n_by_host)
            return result

        return resources.reading(read)

    def _is_for_host(self, spec: ArraySpec, target: Target, cast: Cast) -> bool:
        """Say whether the host decodes a read; checks what the device's way rests on, if nobody has yet."""
        if why_not_device(spec, cast) is not None or not fits_kernels(target):
            return True
        options = resource_options()
        if options.little == "auto" and why_little(spec, target.n_chunks) is not None:
            return True
        return self._trust.fails(self._device(), spec, target, cast, options.checks)

    def upload(self, block: np.ndarray[Any, Any], cast: Cast) -> Any:
        """Cast a block on the host and copy it to the device."""
        try:
            return self._upload(block, cast)
        except DeviceMemoryError as err:
            if not self.may_retry(err):
                raise
        return self.alone(lambda: self._upload(block, cast))

    def _upload(self, block: np.ndarray[Any, Any], cast: Cast) -> Any:
        """Cast a block and copy it, once."""
        values = np.asarray(cast_array(_native(cast), block), order="C")  # `ascontiguousarray` adds an axis to none

        def send(workspace: Workspace) -> Any:
            out = workspace.result(values.shape, values.dtype, [workspace.copy])
            upload_pageable(workspace, workspace.api.address(out), [memoryview(values.reshape(-1).view(np.uint8))])
            workspace.api.synchronize(workspace.copy)
            return out

        return self._current_resources().reading(send)

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:
        """Return what makes the device and the stream of this thread those of others; see `Decoder.as_caller`."""
        api = self._device()
        with api.activate():
            handle = None if stream_of is None else stream_of(api.index)
            stream = api.consumer_stream() if handle is None else api.external(handle)

        @contextmanager
        def reading() -> Iterator[None]:
            with api.activate():
                before = api.current_stream()
                try:  # not CuPy's `with stream:`, whose end undoes a `stream.use()` of this thread
                    api.use(stream)
                    yield
                finally:
                    api.use(before)

        return reading

    def may_retry(self, err: Exception) -> bool:
        """Say whether a read that ended in an error is worth another by `alone`; see `Decoder.may_retry`.

        If the device has decoded a chunk to other bytes than the host, the array is the host's from now on.
        """
        if isinstance(err, DifferentValuesError):
            self._trust.distrust(self._device(), err)
            return True
        return isinstance(err, DeviceMemoryError) and not isinstance(err, ChunkDoesNotFitError)

    def alone[Result](self, read: Callable[[], Result]) -> Result:
        """Call `read` while other threads wait, without what is kept for later; again if memory does not suffice.

        Their reads end first. What they have read may be freed a little later, by whoever uses it.
        """
        resources = self._current_resources()

        def trimmed() -> Result:
            with resources.api.activate():
                resources.trim()
            return read()

        def read_patiently() -> Result:
            for seconds in _PATIENCE_SECONDS if resources.is_shared else ():
                with suppress(DeviceMemoryError):
                    return trimmed()
                time.sleep(seconds)
            return trimmed()

        return resources.lock.exclusive(read_patiently)

    def prepare(self) -> Undo:
        """Check nvCOMP, share the caller's pool with CuPy, and build kernels; see `PreparedDecoder.prepare`."""
        api = self._current_resources().api
        with api.activate():
            assert api.nvcomp  # finding it checks its version
            undo = api.share()
            try:
                api.build(usual_kernels())
            except BaseException:
                undo()
                raise
            return undo

    def prepare_threads(self, n_threads: int) -> None:
        """Make the streams and take the pinned memory that reads of so many more threads use."""
        resources = self._current_resources()
        with resources.api.activate():
            resources.prepare(n_threads)

    def close(self) -> None:
        """Give back what threads hold on all devices, once their reads have ended; later reads take it anew."""
        with self._lock:
            for index in list(self._resources):
                self._close(index)

    def why_unusable(self) -> str | None:
        """Say why nothing can be read to the current device, which is asked to copy some bytes; None if it can."""
        self._require_process()  # a fork is refused, whatever else would do
        try:
            device = self._device()
            _ = device.identity  # for which nvCOMP is found
            self._not_started = ""
        except (CudaError, DeviceMemoryError, DeviceUnavailableError) as error:
            self._not_started = f"{error.headline}: {error.found}"
            advise(
                f"not started: {self._not_started}",
                "this machine has a GPU that cannot be used, and device='auto' reads to the host",
                found=self._not_started,
                do=error.do,
            )
            return self._not_started
        return self._trust.of(device).why_unusable()

    def _device(self) -> DeviceApi:
        """Return the device of reads, unless its state belongs to the process that this one was forked off."""
        self._require_process()
        device = self._current_device(*self._index)
        self._processes.add(os.getpid())
        return device

    def _require_process(self) -> None:
        """Raise if a process that this one was forked off has used a device."""
        process = os.getpid()
        if others := self._processes - {process}:
            raise DeviceUnavailableError(
                "cannot use the GPU in a forked process",
                tried=f"device='cuda' in process {process}; process {min(others)} had used the GPU before the fork",
                found="contexts, streams and memory of CUDA do not come along",
                do='start processes with "spawn" or "forkserver", or read with device="host" in this one',
            )

    def _current_resources(self) -> WorkerResources:
        """Return what this process keeps for the device of reads, made anew once `configure` was called.

        Reads that began before end first: there are never two pools. What is read inside of one goes on with it.
        """
        api, options = self._device(), resource_options()
        why = self._trust.of(api).why_unusable()
        if why is not None:
            raise DeviceUnavailableError(
                "the GPU cannot be used",
                tried="copying bytes to it and back, before anything is read",
                found=why,
                do='read with device="host" or device="auto"; gpuzarr doctor says more',
            )
        resources = self._resources.get(api.index)
        if resources is not None and resources.is_mine:
            return resources
        with self._lock:
            resources = self._resources.get(api.index)
            if resources is None or resources.options is not options or resources.api is not api:
                self._close(api.index)
                resources = self._resources[api.index] = WorkerResources(api, options)
            return resources

    def _close(self, index: int) -> None:
        """Give back what is kept for a device, once its reads have ended; kept if that is interrupted."""
        if (resources := self._resources.get(index)) is not None:
            with resources.api.activate():
                resources.close()
            del self._resources[index]


def _native(cast: Cast) -> Cast:
    dtype = np.dtype(cast.dtype)
    return cast if dtype.isnative else replace(cast, dtype=dtype.newbyteorder("=").str)
