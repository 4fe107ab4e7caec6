"""Read local files straight into device memory with GPUDirect Storage, through kvikio.

`why_no_gds` tells whether cuFile really reaches the GPU on this machine. In the compatibility modes of kvikio and of
cuFile, bytes are copied through host memory, which this package does faster itself. Importing this module does not need
kvikio.

References
----------
kvikio 26.10, `CuFile.pread`; NVIDIA GPUDirect Storage, "cuFile API Reference Guide".
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import FileRead, Stream
from xarray_gpuzarr.errors import DeviceUnavailableError, StoreReadError


@cache
def why_no_gds() -> str | None:
    """Return why files cannot be read straight into device memory on this machine; None if they can."""
    try:
        defaults = importlib.import_module("kvikio.defaults")
    except (ImportError, OSError, RuntimeError) as err:  # the last two if a library that kvikio loads is missing
        return f"kvikio cannot be imported ({err})"
    if defaults.is_compat_mode_preferred():
        return "kvikio is in compatibility mode: cuFile or its driver (nvidia-fs) is missing, or was switched off"
    try:
        available = importlib.import_module("kvikio.cufile_driver").get("is_gds_available")
    except (ImportError, RuntimeError, KeyError) as err:
        return f"cuFile's driver does not answer ({type(err).__name__}: {err})"
    return None if available else "cuFile's driver says that GPUDirect Storage is not available (nvidia-fs)"


class NativeFile:
    """A local file, open for reads into device memory; see `DeviceFile`.

    `synchronize` is a function that blocks until a stream has done its work.
    """

    def __init__(self, path: str, synchronize: Callable[[Stream], None]) -> None:
        self._path = path
        self._synchronize = synchronize
        try:
            self._file = importlib.import_module("kvikio").CuFile(path, "r")
        except (RuntimeError, OSError) as err:
            raise _failed(path, "open", err) from err

    def read(self, to: Address, nbytes: int, offset: int, stream: Stream) -> FileRead:
        """Start reading a range of the file; see `DeviceFile.read`."""
        interface = {"shape": (nbytes,), "typestr": "|u1", "data": (int(to), False), "version": 3}
        buffer = SimpleNamespace(__cuda_array_interface__=interface)
        try:
            self._synchronize(stream)  # kvikio's threads would not wait for work that still uses the destination
            future = self._file.pread(buffer, nbytes, file_offset=offset)
        except (RuntimeError, OSError) as err:
            raise _failed(self._path, f"read {nbytes} bytes at {offset}", err) from err
        return NativeRead(future.get, self._path, buffer)

    def close(self) -> None:
        """Close the file. All its reads must be finished."""
        self._file.close()


class NativeRead:
    """A started read; see `FileRead`. It keeps `buffer`, the description of its destination, alive."""

    def __init__(self, wait: Callable[[], int], path: str, buffer: object) -> None:
        self._wait: Callable[[], int] | None = wait
        self._path = path
        self._buffer = buffer
        self._n_read = 0

    def finish(self) -> int:
        """Block until the bytes are in device memory; return their number. After an error, later calls return 0."""
        wait, self._wait = self._wait, None
        if wait is not None:
            try:
                self._n_read = int(wait())
            except (RuntimeError, OSError) as err:
                raise _failed(self._path, "wait for a read into device memory", err) from err
        return self._n_read


def _failed(path: str, action: str, err: Exception) -> StoreReadError:
    return StoreReadError(
        f"cannot read {path} into device memory",
        tried=f"{action}, with kvikio",
        found=f"{type(err).__name__}: {err}",
        do='check the file and the installation of GPUDirect Storage, or choose storage="posix"',
    )


def no_gds_error(why: str) -> DeviceUnavailableError:
    """Return the error for a machine that cannot read files straight into device memory; `why` is from `why_no_gds`."""
    return DeviceUnavailableError(
        'storage="gds" cannot be used here',
        tried="GPUDirect Storage, with kvikio",
        found=why,
        do='storage="auto", which reads through host memory here; or, on a machine that has GPUDirect Storage, '
        'pip install "xarray-gpuzarr[gds13]" (gds12 for CUDA 12)',
    )
