"""nvCOMP's low-level batched decompression: call the library, and turn its status codes into errors.

Addresses are passed as integers; nothing here allocates memory or waits for a stream. nvCOMP 5.3 and 6 are supported.
They differ only in the function that returns the length of scratch memory. All numbers are from the headers of 6.0.0,
or were measured with that library; those of 5.3.0, which RAPIDS 26.10 requires, are the same. Earlier versions are not
supported: 5.1 has other numbers and documents no largest chunk, and before 5.3, a damaged snappy stream could keep the
GPU busy for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.nvcomp_formats import Format
from xarray_gpuzarr.errors import CudaError
from xarray_gpuzarr.process.records import record

_TEMP_SIZE_VERSION = 6000
"""Version from which on ``GetTempSize`` takes a stream, in place of ``GetTempSizeAsync``, which takes none."""
_BACKEND_CUDA = 2
"""Backend of all calls: the CUDA kernels, which report corrupt LZ4. The hardware engine need not report it."""
_LOOKAHEAD = 1
"""Number of the algorithm for gzip that looks ahead. All other calls choose algorithm 0."""
_CUDA_ERROR = 1000
_INTERNAL = 10000
_STATUS_NAMES = {
    0: "Success",
    10: "InvalidValue",
    11: "NotSupported",
    12: "CannotDecompress",
    13: "BadChecksum",
    14: "CannotVerifyChecksums",
    15: "OutputBufferTooSmall",
    16: "WrongHeaderLength",
    17: "Alignment",
    18: "ChunkSizeTooLarge",
    19: "CannotCompress",
    20: "WrongInputLength",
    21: "BatchSizeTooLarge",
    22: "SubChunkCountTooLarge",
    23: "SubChunkCountTooSmall",
    24: "OutputBufferAlignmentTooSmall",
    _CUDA_ERROR: "CudaError",
    _INTERNAL: "Internal",
}
_C_NAMES: dict[Format, str] = {
    "zstd": "Zstd",
    "lz4": "LZ4",
    "gzip": "Gzip",
    "gzip, looking ahead": "Gzip",
    "deflate": "Deflate",
    "snappy": "Snappy",
}
"""Name of each format in the names of nvCOMP's functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Numbers of bytes that addresses must be multiples of."""

    source: int
    """Start of each compressed chunk."""
    output: int
    """Start of each decompressed chunk."""
    temp: int
    """Start of the scratch memory."""


@record
class Batch:
    """Addresses of the columns that describe a batch, with one entry per chunk, in device memory.

    Columns of 8-byte entries begin at multiples of 8, the statuses at a multiple of 4.
    """

    sources: Address
    """uint64: address of each compressed chunk."""
    source_nbytes: Address
    """uint64: length of each compressed chunk."""
    capacity: Address
    """uint64: length of the memory at `outputs` for each decompressed chunk."""
    actual: Address
    """uint64, written: length of each decompressed chunk."""
    outputs: Address
    """uint64: address for each decompressed chunk."""
    statuses: Address
    """int32, written: 0, or the status of a chunk that could not be decoded; see `status_name`."""


class _Properties(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("cudart_version", ctypes.c_uint32))


class _Options(ctypes.Structure):
    """Options of any format. The structs of the formats differ only in bytes that are zero here."""

    _fields_ = (("backend", ctypes.c_int), ("algorithm", ctypes.c_int), ("zero", ctypes.c_uint8 * 56))


_OPTIONS = {
    fmt: _Options(backend=_BACKEND_CUDA, algorithm=_LOOKAHEAD if fmt == "gzip, looking ahead" else 0)
    for fmt in _C_NAMES
}


class _Alignments(ctypes.Structure):
    _fields_ = (("source", ctypes.c_size_t), ("output", ctypes.c_size_t), ("temp", ctypes.c_size_t))


_POINTER, _NBYTES = ctypes.c_void_p, ctypes.c_size_t
_TEMP_SIZE = (_NBYTES, _NBYTES, _Options, ctypes.POINTER(_NBYTES), _NBYTES)
"""Argument types of ``GetTempSizeAsync``, and all but the last one of ``GetTempSize``."""
_ARGUMENT_TYPES: dict[str, tuple[type, ...]] = {
    "Async": (*[_POINTER] * 4, _NBYTES, _POINTER, _NBYTES, _POINTER, _Options, _POINTER, _POINTER),
    "GetRequiredAlignments": (_Options, ctypes.POINTER(_Alignments)),
}
"""Argument types of a format's functions, by the suffix behind ``nvcompBatched<Format>Decompress``."""


def status_name(code: int) -> str:
    """Return the name of the status of a call or of a chunk, or the number if it has no name."""
    return _STATUS_NAMES.get(code, str(code))


def library_version(functions: object) -> int:
    """Return the version of a library, such as 6000 for 6.0.0."""
    get_properties = _function(functions, "nvcompGetProperties", (ctypes.POINTER(_Properties),))
    properties = _Properties()
    _check(get_properties(properties), "nvcompGetProperties")
    return int(properties.version)


def version_text(version: int) -> str:
    """Return a version as text, such as ``"6.0.0"``."""
    return f"{version // 1000}.{version // 100 % 10}.{version % 100}"


def _function(functions: object, name: str, argument_types: tuple[type, ...]) -> Callable[..., int]:
    function = getattr(functions, name)
    function.argtypes = argument_types
    function.restype = ctypes.c_int
    return cast("Callable[..., int]", function)


def _check(code: int, call: str) -> None:
    """Raise `CudaError` if the status of a call is not 0; `call` is the call with its arguments, for the message."""
    if code == 0:
        return
    do = "report it: nvCOMP refused what it was asked; nothing was started, and the GPU works on"
    if code in (_CUDA_ERROR, _INTERNAL):
        do = "see that nvidia-smi works and start a new process: after a fault, this one may never reach the GPU again"
    raise CudaError("nvCOMP refused a call", tried=call, found=f"status {status_name(code)} ({code})", do=do)


class Nvcomp:
    """The C functions of nvCOMP that decoding needs, for all formats. Safe to use from several threads.

    Every call requests the CUDA kernels, never the hardware engine of newer GPUs.

    Parameters
    ----------
    functions : object
        Has the functions as attributes: the library that `load_nvcomp` returns, or ctypes callbacks of the same types.

    References
    ----------
    nvCOMP 5.3 and 6.0 headers ``shared_types.h``, ``zstd.h``, ``lz4.h``, ``gzip.h``, ``deflate.h``, ``snappy.h``.
    """

    def __init__(self, functions: object) -> None:
        version = library_version(functions)
        self.version = version_text(version)
        """Version of the library, such as ``"6.0.0"``."""
        self._has_temp_size = version >= _TEMP_SIZE_VERSION
        argument_types = dict(_ARGUMENT_TYPES)
        if self._has_temp_size:
            argument_types["GetTempSize"] = (*_TEMP_SIZE, _POINTER)
        else:
            argument_types["GetTempSizeAsync"] = _TEMP_SIZE
        self._functions: dict[str, Callable[..., int]] = {}
        for c_name in _C_NAMES.values():
            for suffix, types in argument_types.items():
                name = f"nvcompBatched{c_name}Decompress{suffix}"
                self._functions[name] = _function(functions, name, types)
        self._alignments: dict[Format, Alignment] = {}

    def temp_nbytes(self, fmt: Format, /, *, n_chunks: int, max_nbytes: int, total_nbytes: int) -> int:
        """Return the bytes of scratch memory that `decompress` needs.

        This takes about 3 us. It needs a GPU only for the algorithm that looks ahead.

        Parameters
        ----------
        fmt : Format
            Format of the chunks.
        n_chunks : int
            Number of chunks.
        max_nbytes : int
            Decompressed bytes of the largest chunk.
        total_nbytes : int
            Decompressed bytes of all chunks together.

        Raises
        ------
        CudaError
            If a chunk is larger than `MAX_CHUNK_NBYTES`.
        """
        temp_nbytes = ctypes.c_size_t()
        described = f"n_chunks={n_chunks}, max_nbytes={max_nbytes}, total_nbytes={total_nbytes}"
        args = (n_chunks, max_nbytes, _OPTIONS[fmt], temp_nbytes, total_nbytes)
        if self._has_temp_size:
            self._call(fmt, "GetTempSize", described, (*args, None))  # None is the default stream
        else:
            self._call(fmt, "GetTempSizeAsync", described, args)
        return temp_nbytes.value

    def alignment(self, fmt: Format, /) -> Alignment:
        """Return the numbers of bytes that the addresses given to `decompress` must be multiples of."""
        if fmt not in self._alignments:
            required = _Alignments()
            self._call(fmt, "GetRequiredAlignments", "", (_OPTIONS[fmt], required))
            self._alignments[fmt] = Alignment(source=required.source, output=required.output, temp=required.temp)
        return self._alignments[fmt]

    def decompress(
        self, fmt: Format, /, batch: Batch, *, n_chunks: int, temp: int, temp_nbytes: int, stream: int
    ) -> None:
        """Enqueue the decompression of a batch on a stream; returns before it is done.

        A chunk that cannot be decoded raises no error. It gets a status other than 0, or is decoded to wrong bytes, so
        the length in `batch.actual` must be checked as well.

        Parameters
        ----------
        fmt : Format
            Format of the chunks.
        batch : Batch
            Columns of the batch. They, and all memory that they point to, must live until the stream has passed here.
        n_chunks : int
            Number of chunks; may be 0.
        temp, temp_nbytes : int
            Address and length of scratch memory, which must live as long as the columns.
        stream : int
            The ``cudaStream_t``.

        Raises
        ------
        CudaError
            If nvCOMP refuses the call. Nothing has been started then.
        """
        if n_chunks == 0:  # some formats would launch an empty grid, which CUDA refuses
            return
        columns = (batch.sources, batch.source_nbytes, batch.capacity, batch.actual)
        args = (*columns, n_chunks, temp, temp_nbytes, batch.outputs, _OPTIONS[fmt], batch.statuses, stream)
        described = f"n_chunks={n_chunks}, temp={temp:#x}, temp_nbytes={temp_nbytes}, stream={stream:#x}"
        self._call(fmt, "Async", described, args)

    def _call(self, fmt: Format, suffix: str, described: str, args: tuple[object, ...]) -> None:
        """Call a function of a format; `described` are its arguments, for the message of an error."""
        name = f"nvcompBatched{_C_NAMES[fmt]}Decompress{suffix}"
        _check(self._functions[name](*args), f"{name}({described})")
