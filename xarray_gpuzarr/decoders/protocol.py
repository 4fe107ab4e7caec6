"""Protocols of decoders, the interface to the layers above.

`read` passes an iterator of plans to a decoder, which returns one array. Layers above this folder do not distinguish
devices. Optional abilities of a device have protocols of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from xarray_gpuzarr.cuda.api import Undo
from xarray_gpuzarr.fetch.source import ByteSource, ObjectSource, Storage
from xarray_gpuzarr.plan.read_plan import ReadPlan
from xarray_gpuzarr.plan.targets import Target
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast

Device = str
"""Where arrays are decoded and live: ``host``, ``workers``, ``cuda``, or a GPU by its number, such as ``cuda:1``.

``workers`` means the GPUs of a cluster's workers, even if the client has none; ``cuda`` means the calling thread's
current GPU.
"""

StreamOf = Callable[[int], int | None]
"""Function that returns the handle of the stream on which a library works now, given the number of the GPU.

It returns None if the library has no such stream.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where an array is decoded, as far as this is known without reading it."""

    where: str
    """The place, such as ``"host"``, ``"cuda"`` or ``"host, by zarr-python"``."""
    why: str
    """The reason, for `explain`; empty if there is nothing unusual."""


class Decoder(Protocol):
    """Decodes planned chunks into one array on its device."""

    @property
    def device(self) -> Device:
        """Kind of device on which results live: ``"host"``, or ``"cuda"`` for any GPU, including those of workers."""

    def route(self, spec: ArraySpec, cast: Cast) -> Route:
        """Return where the chunks of an array are decoded, and why, without reading any of them."""

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype that results have if `dtype` is requested.

        Only the byte order may differ: arrays on a GPU always have the machine's.
        """

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an uninitialised array of this decoder's library.

        An array of length zero is the dask meta of everything that this decoder reads.
        """

    def read_without_plan(
        self, source: ObjectSource, spec: ArraySpec, target: Target, cast: Cast, out: Any
    ) -> Any | None:
        """Read a target without a plan, and return the result; return None if the read has to be planned.

        This is for reads that are so short that planning takes longer than decoding.

        Parameters
        ----------
        source : ObjectSource
            Where the array is stored.
        spec, target, cast, out
            See `decode`. `out` may have been partly overwritten if None is returned.
        """

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
        """Carry out the plans of a read, and return the result.

        Parameters
        ----------
        plans : iterator of ReadPlan
            Plans that together cover `target`. The decoder draws them as it needs them, by one thread at a time;
            drawing one may read a shard index.
        source : ByteSource
            Where the encoded chunks are stored.
        spec : ArraySpec
            The array.
        target : Target
            Requested elements.
        cast : Cast
            Conversion of stored elements to those of the result.
        out : array of this decoder's library, or None
            Receives the result if shape, dtype and layout fit: any strides on the host, C order on a GPU.

        Returns
        -------
        array of this decoder's library
            `out`, or a new array in C order: shape `target.shape`, dtype ``result_dtype(cast.dtype)``, on `device`.

        Raises
        ------
        CorruptChunkError, ShardIndexError, StoreReadError, UnsupportedCodecError
            Each names the array and the shard key, and where there is one, the chunk and the codec.
        """

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:
        """Return a function that makes context managers, in which other threads read for the calling thread.

        Results of reads inside the ``with`` block live on the device of the calling thread, which may use and free them
        like results of its own.

        Parameters
        ----------
        stream_of : StreamOf, optional
            Stream of the library that uses the results. Without it, or if it returns None, results belong to the array
            library's current stream of the calling thread.
        """

    def may_retry(self, err: Exception) -> bool:
        """Whether a read that ended in an error of the device may succeed if it is repeated.

        If the error says that the device has decoded an array to other values than the host, this call also lets the
        host decode the array from now on. A read that ran out of memory is to be repeated through `alone`.
        """

    def alone[Result](self, read: Callable[[], Result]) -> Result:
        """Call `read`, which calls `decode`, while no other thread reads to the device; return its result.

        Raises
        ------
        DeviceMemoryError
            If the memory does not suffice for a single read either.
        """

    def upload(self, block: np.ndarray[Any, Any], cast: Cast) -> Any:
        """Cast `block`, an array in host memory that zarr-python has decoded, and return it on `device`."""


@runtime_checkable
class SelfChecking(Protocol):
    """A decoder that first checks whether its device decodes known chunks to the right values."""

    def why_unusable(self) -> str | None:
        """Return why the current device is unusable; None if it can be used. This starts the device."""


class PreparedDecoder(Decoder, Protocol):
    """A decoder whose preparations for its first reads can be made in advance, and undone."""

    def prepare(self) -> Undo:
        """Check the device, build kernels, and let the array library use the caller's memory pool.

        Returns a function that ends the use of this pool.
        """

    def prepare_threads(self, n_threads: int) -> None:
        """Allocate the streams and the host memory for reads on `n_threads` threads. Further calls add to these."""

    def close(self) -> None:
        """Wait until all reads have ended, and free what is kept for later ones, which allocate it again."""


@runtime_checkable
class FileReader(Protocol):
    """A decoder whose device may read local files itself."""

    def why_no_gds(self) -> str | None:
        """Return why GPUDirect Storage cannot read files into device memory on this machine; None if it can."""

    def why_staged(self, spec: ArraySpec, cast: Cast, storage: Storage) -> str | None:
        """Return why the chunks of an array go through host memory; None if the device reads them itself.

        `storage` is ``"auto"`` or ``"gds"``.
        """
