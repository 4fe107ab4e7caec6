"""The interface of every decoder to the layers above it.

`read` hands a decoder a stream of plans and gets one array back. Nothing above this folder knows which device it is on.
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
"""Where arrays are decoded and live: ``host``, ``workers``, ``cuda`` or ``cuda:1``, with any number.

``workers``: on the GPUs of a cluster's workers, whatever the client has. ``cuda``: on the calling thread's current GPU.
"""


StreamOf = Callable[[int], int | None]
"""Given a device's number, returns the handle of the stream on which a library works there now; None if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where an array is decoded, decided from its metadata alone."""

    where: str
    """Such as ``"host"``, ``"cuda"`` or ``"host, by zarr-python"``."""
    why: str
    """The reason, for `explain`; empty for the ordinary way."""


class Decoder(Protocol):
    """Decodes planned chunks into one array on its device."""

    @property
    def device(self) -> Device:
        """Where results live: ``"host"``, or ``"cuda"`` for any GPU, also one of a worker."""

    def route(self, spec: ArraySpec, cast: Cast) -> Route:
        """Say where the chunks of an array are decoded and why. No I/O."""

    def result_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the dtype that results have where `dtype` is asked for: device arrays know one byte order."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return an array of this decoder's library; its elements are undefined.

        A zero-length one is the dask meta of everything that this decoder reads.
        """

    def read_at_once(self, source: ObjectSource, spec: ArraySpec, target: Target, cast: Cast, out: Any) -> Any | None:
        """Read all of `target` in one call; return None if it has to be planned, and carried out by `decode`.

        Only what is so short that planning takes longer than decoding is read at once. `out` is as of `decode`.
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
        """Carry out plans that together cover `target`.

        Parameters
        ----------
        plans : iterator of ReadPlan
            Drawn lazily and from one thread at a time; drawing one may read a shard index.
        out : array of this decoder's library, or None
            Where the result goes if shape, dtype and layout fit: any strides on the host, C order on a device.

        Returns
        -------
        array of shape `target.shape` and dtype `cast.dtype`, on `device`
            `out`, or a new one in C order.

        Raises
        ------
        CorruptChunkError, ShardIndexError, StoreReadError, UnsupportedCodecError
            Each names array, shard key and, where there is one, chunk and codec.
        """

    def as_caller(self, stream_of: StreamOf | None = None) -> Callable[[], AbstractContextManager[object]]:
        """Return what makes other threads, inside a ``with`` block, read for the calling thread.

        Their results then live where the calling thread's would, and may be used and freed as its own are.

        Parameters
        ----------
        stream_of : callable, optional
            See `StreamOf`, of the library that uses the results; without one, and where it knows none, the array
            library's current stream of the calling thread is theirs.
        """

    def may_retry(self, err: Exception) -> bool:
        """Say whether a read that ended in an error of the device's may end well if it is tried once more.

        An array that the device has decoded to other values than the host is the host's from then on. What lacked
        memory is tried once more by `alone`.
        """

    def alone[Result](self, read: Callable[[], Result]) -> Result:
        """Call `read`, which calls `decode`, with the device to itself.

        Raises
        ------
        DeviceMemoryError
            Memory does not suffice for one read either.
        """

    def upload(self, block: np.ndarray[Any, Any], cast: Cast) -> Any:
        """Return a block that zarr-python decoded, brought to `device` and cast."""


@runtime_checkable
class SelfChecking(Protocol):
    """A decoder that asks its device for known answers before it trusts it."""

    def why_unusable(self) -> str | None:
        """Say why nothing can be read to the current device; None if something can. Starts the device."""


class PreparedDecoder(Decoder, Protocol):
    """A decoder that can do beforehand what its first reads would do, and let go of it."""

    def prepare(self) -> Undo:
        """Check what the device needs, build kernels, share the caller's pool; return what undoes the latter."""

    def prepare_threads(self, n_threads: int) -> None:
        """Take what reads of so many more threads will use."""

    def close(self) -> None:
        """Give back what all threads have taken, once their reads have ended; later reads take it anew."""


@runtime_checkable
class FileReader(Protocol):
    """A decoder whose device may read local files by itself."""

    def why_no_files(self) -> str | None:
        """Say why it can read none on this machine; None if it can."""

    def why_staged(self, spec: ArraySpec, cast: Cast, storage: Storage) -> str | None:
        """Say why the chunks of an array reach the device through host memory; None if they do not.

        `storage` is ``"auto"`` or ``"gds"``.
        """
