"""nvCOMP's low-level batched decompression: finding the library, calling it, and turning its codes into errors.

Addresses go in and out as integers; no memory is allocated and no stream is waited for here. nvCOMP 5.3 and 6 fit;
of these only the question for scratch memory differs. All numbers were retyped from the headers of 6.0.0
or measured with that library; those of 5.3.0, which RAPIDS 26.10 asks for, are the same. Of 5.1 they are not: it takes
chunks of any length and promises none. Before 5.3, damaged snappy streams could keep the GPU busy for ever.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.errors import CudaError, DeviceUnavailableError
from xarray_gpuzarr.process.records import record

Format = Literal["zstd", "lz4", "gzip", "gzip, looking ahead", "deflate", "snappy"]
"""Wire format of compressed chunks: a zstd frame, a raw LZ4 block, a gzip member (by either of two algorithms, see
`quickest`), raw deflate, raw snappy."""

MAX_CHUNK_NBYTES: dict[Format, tuple[int, int]] = {
    "zstd": (2**31 - 1, 2**31 - 1),
    "lz4": (2**32 - 1, 2**32 - 1),
    "gzip": (2**32 - 1, 2**32 - 1),
    "gzip, looking ahead": (2**32 - 1, 2**32 - 1),
    "deflate": (2**32 - 1, 2**32 - 1),
    "snappy": (2**31 - 1, 2**31 - 1),
}
"""Largest compressed and largest decompressed chunk, in bytes (``nvcomp<Format>DecompressionMaxAllowedChunkSize``)."""

_FIRST, _END, _FITTING = 5300, 7000, ">=5.3,<7"
_ASKS_WITH_STREAM = 6000
_BACKEND_CUDA = 2  # corrupt LZ4 is undefined in the hardware engine, and reported by the CUDA kernels
_LOOKAHEAD = 1
_NAIVE_NBYTES = 64 * 1024
"""Decoded bytes of a gzip chunk beyond which the header recommends to look ahead."""
_CUDA_ERROR, _INTERNAL = 1000, 10000
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Alignment of addresses, in bytes."""

    source: int
    """Start of each compressed chunk."""
    output: int
    """Start of each decompressed chunk."""
    temp: int
    """Start of the scratch memory."""


@record
class Batch:
    """Addresses of the columns that describe a batch: one entry per chunk, in device memory.

    Columns of 8-byte entries start at multiples of 8, the statuses at a multiple of 4.
    """

    sources: Address
    """uint64: addresses of the compressed chunks."""
    source_nbytes: Address
    """uint64: their lengths."""
    capacity: Address
    """uint64: lengths of the memory at `outputs`."""
    actual: Address
    """uint64, written: lengths of the decompressed chunks."""
    outputs: Address
    """uint64: addresses for the decompressed chunks."""
    statuses: Address
    """int32, written: 0 or what is wrong with a chunk; see `status_name`."""


class _Properties(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("cudart_version", ctypes.c_uint32))


class _Options(ctypes.Structure):
    """Options of any format: they differ in the meaning of bytes that are zero here."""

    _fields_ = (("backend", ctypes.c_int), ("algorithm", ctypes.c_int), ("zero", ctypes.c_uint8 * 56))


_OPTIONS = {
    fmt: _Options(backend=_BACKEND_CUDA, algorithm=_LOOKAHEAD if fmt == "gzip, looking ahead" else 0)
    for fmt in _C_NAMES
}


class _Alignments(ctypes.Structure):
    _fields_ = (("source", ctypes.c_size_t), ("output", ctypes.c_size_t), ("temp", ctypes.c_size_t))


_POINTER, _NBYTES = ctypes.c_void_p, ctypes.c_size_t
_TEMP_SIZE = (_NBYTES, _NBYTES, _Options, ctypes.POINTER(_NBYTES), _NBYTES)
_PARAMETERS: dict[str, tuple[type, ...]] = {
    "Async": (*[_POINTER] * 4, _NBYTES, _POINTER, _NBYTES, _POINTER, _Options, _POINTER, _POINTER),
    "GetRequiredAlignments": (_Options, ctypes.POINTER(_Alignments)),
}
"""Argument types of a format's functions, by what follows ``nvcompBatched<Format>Decompress``."""


def status_name(code: int) -> str:
    """Return the name of a status of a call or of a chunk, or the number where it has none."""
    return _STATUS_NAMES.get(code, str(code))


def quickest(fmt: Format, max_nbytes: int) -> Format:
    """Return the format with the algorithm that suits chunks of up to so many decoded bytes."""
    return "gzip, looking ahead" if fmt == "gzip" and max_nbytes > _NAIVE_NBYTES else fmt


def zstd_temp_nbytes(n_chunks: int, total_nbytes: int) -> int:
    """Return the bytes of scratch memory that decoding a zstd batch takes, without asking the library.

    What ``nvcompBatchedZstdDecompressGetTempSize`` of 6.0.0 answers for fewer than 2**24 chunks, to the byte: fitted to
    980 000 of its answers up to 4 TiB (November 2026), it has no other source. For planning: the call itself is to be
    given what `Nvcomp.temp_nbytes` says.
    """
    return 3 * total_nbytes + 3468 * max(2 * n_chunks, total_nbytes // 65536)


def find_nvcomp() -> ctypes.CDLL:
    """Load nvCOMP from the ``nvidia-libnvcomp`` package. Needs no driver and no GPU."""
    try:
        libnvcomp = importlib.import_module("nvidia.libnvcomp")
    except ImportError as error:
        raise _unavailable("the package nvidia.libnvcomp", str(error)) from error
    tried = f"libnvcomp in {', '.join(libnvcomp.__path__)} and on the system's library path"
    try:
        library: ctypes.CDLL | None = libnvcomp.load_library()
    except OSError as error:
        raise _unavailable(tried, str(error)) from error
    if library is None:
        raise _unavailable(tried, f"the package's version is {libnvcomp.__version__}, but no library loads")
    version = _version(library)
    if not _FIRST <= version < _END:
        raise _unavailable(tried, f"nvCOMP {_version_text(version)}; this package calls nvCOMP {_FITTING}")
    return library


def _unavailable(tried: str, cause: str) -> DeviceUnavailableError:
    return DeviceUnavailableError(
        "nvCOMP cannot be loaded",
        tried=tried,
        found=cause,
        do="pip install 'xarray-gpuzarr[cuda13]' (or [cuda12] for a CUDA 12 driver), or read with device='host'",
    )


def _version(functions: object) -> int:
    get_properties = _function(functions, "nvcompGetProperties", (ctypes.POINTER(_Properties),))
    properties = _Properties()
    _check(get_properties(properties), "nvcompGetProperties")
    return int(properties.version)


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version // 100 % 10}.{version % 100}"


def _function(functions: object, name: str, parameters: tuple[type, ...]) -> Callable[..., int]:
    function = getattr(functions, name)
    function.argtypes = parameters
    function.restype = ctypes.c_int
    return cast("Callable[..., int]", function)


def _check(code: int, call: str) -> None:
    if code == 0:
        return
    do = "report it: nvCOMP refused what it was asked; nothing was started, and the GPU works on"
    if code in (_CUDA_ERROR, _INTERNAL):
        do = "see that nvidia-smi works and start a new process: a fault on the GPU may have cut this one off for good"
    raise CudaError("nvCOMP refused a call", tried=call, found=f"status {status_name(code)} ({code})", do=do)


class Nvcomp:
    """The C functions of nvCOMP that decoding takes, for all formats. Safe to use from several threads.

    `functions` has them as attributes: the library of `find_nvcomp`, or ctypes callbacks of the same types. Every call
    asks for the CUDA kernels, never for the hardware engine of newer GPUs.

    References
    ----------
    nvCOMP 5.3 and 6.0 headers ``shared_types.h``, ``zstd.h``, ``lz4.h``, ``gzip.h``, ``deflate.h``, ``snappy.h``.
    """

    def __init__(self, functions: object) -> None:
        version = _version(functions)
        self.version = _version_text(version)
        """Version of the library, such as ``"6.0.0"``."""
        self._asks_with_stream = version >= _ASKS_WITH_STREAM
        asks = {"GetTempSize": (*_TEMP_SIZE, _POINTER)} if self._asks_with_stream else {"GetTempSizeAsync": _TEMP_SIZE}
        self._functions = {
            name: _function(functions, name, parameters)
            for c_name in _C_NAMES.values()
            for suffix, parameters in {**_PARAMETERS, **asks}.items()
            for name in [f"nvcompBatched{c_name}Decompress{suffix}"]
        }
        self._alignments: dict[Format, Alignment] = {}

    def temp_nbytes(self, fmt: Format, /, *, n_chunks: int, max_nbytes: int, total_nbytes: int) -> int:
        """Return the bytes of scratch memory that `decompress` needs; takes about 3 us, and a GPU only to look ahead.

        `max_nbytes` are the decompressed bytes of the largest chunk, `total_nbytes` of all together. A chunk that is
        larger than `MAX_CHUNK_NBYTES` is a `CudaError`.
        """
        answer = ctypes.c_size_t()
        said = f"n_chunks={n_chunks}, max_nbytes={max_nbytes}, total_nbytes={total_nbytes}"
        args = (n_chunks, max_nbytes, _OPTIONS[fmt], answer, total_nbytes)
        if self._asks_with_stream:
            self._call(fmt, "GetTempSize", said, (*args, None))
        else:
            self._call(fmt, "GetTempSizeAsync", said, args)
        return answer.value

    def alignment(self, fmt: Format, /) -> Alignment:
        """Return what the addresses given to `decompress` must be multiples of."""
        if fmt not in self._alignments:
            answer = _Alignments()
            self._call(fmt, "GetRequiredAlignments", "", (_OPTIONS[fmt], answer))
            self._alignments[fmt] = Alignment(source=answer.source, output=answer.output, temp=answer.temp)
        return self._alignments[fmt]

    def decompress(
        self, fmt: Format, /, batch: Batch, *, n_chunks: int, temp: int, temp_nbytes: int, stream: int
    ) -> None:
        """Decode a batch on a stream; returns before it is done, and does nothing for no chunks.

        The columns of the batch, and all memory they point to, must live until the stream has passed here; so must the
        scratch memory at the address `temp`, which is overwritten.

        Raises
        ------
        CudaError
            Nothing was started. Chunks that cannot be decoded do not raise: they have a status that is not 0, or are
            decoded to something. The length in `batch.actual` is to be checked too.
        """
        if n_chunks == 0:  # some formats would launch an empty grid, which CUDA refuses
            return
        columns = (batch.sources, batch.source_nbytes, batch.capacity, batch.actual)
        args = (*columns, n_chunks, temp, temp_nbytes, batch.outputs, _OPTIONS[fmt], batch.statuses, stream)
        said = f"n_chunks={n_chunks}, temp={temp:#x}, temp_nbytes={temp_nbytes}, stream={stream:#x}"
        self._call(fmt, "Async", said, args)

    def _call(self, fmt: Format, suffix: str, said: str, args: tuple[object, ...]) -> None:
        name = f"nvcompBatched{_C_NAMES[fmt]}Decompress{suffix}"
        _check(self._functions[name](*args), f"{name}({said})")
