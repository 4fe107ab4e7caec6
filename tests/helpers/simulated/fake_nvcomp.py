"""nvCOMP without a GPU: its C functions as ctypes callbacks over CPU codecs, on host memory.

As unkind as the real library may be: it reads the columns as late as a stream would, spoils scratch memory and whatever
it does not fill, ignores the checksum of gzip, and notes down what a process with a GPU would not survive.
"""

import ctypes
import threading
import zlib
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass, replace
from functools import cache

import imagecodecs
import numpy as np
import zstandard

POISON = 0xA5
OK, INVALID_VALUE, CANNOT_DECOMPRESS, MISALIGNED, CHUNK_TOO_LARGE, CUDA_ERROR, INTERNAL = 0, 10, 12, 17, 18, 1000, 10000

Work = Callable[[], None]


class Options(Structure):
    """Passed by value: the backend, gzip's algorithm, then zeros."""

    _fields_ = (("words", c_uint32 * 16),)


CUDA_BACKEND = [2] + [0] * 15
LOOKING_AHEAD = [2, 1] + [0] * 14
ASYNC = ctypes.CFUNCTYPE(c_int32, *[c_void_p] * 4, c_size_t, c_void_p, c_size_t, c_void_p, Options, c_void_p, c_void_p)
TEMP_SIZE = ctypes.CFUNCTYPE(c_int32, c_size_t, c_size_t, Options, POINTER(c_size_t), c_size_t, c_void_p)
TEMP_SIZE_OF_5 = ctypes.CFUNCTYPE(c_int32, c_size_t, c_size_t, Options, POINTER(c_size_t), c_size_t)
ALIGNMENTS = ctypes.CFUNCTYPE(c_int32, Options, POINTER(c_size_t))
PROPERTIES = ctypes.CFUNCTYPE(c_int32, POINTER(c_uint32))


def _zstd(src: bytes, capacity: int) -> bytes:
    if not 0 <= zstandard.frame_content_size(src) <= capacity:  # -1 where a frame does not say
        raise ValueError("no content size, or too large")
    return _zstd_context(threading.get_ident()).decompress(src, allow_extra_data=False)


@cache
def _zstd_context(_thread: int) -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor()


def _deflate(src: bytes, capacity: int) -> bytes:
    stream = zlib.decompressobj(-15)
    decoded = stream.decompress(src, capacity + 1)
    if len(decoded) > capacity or not stream.eof or stream.unused_data:
        raise ValueError("not one whole stream")
    return decoded


def _gzip(src: bytes, capacity: int) -> bytes:
    member = zlib.decompressobj(31)
    decoded = member.decompress(src[:-8], capacity + 1)
    if len(src) < 18 or member.eof or not len(decoded) == int.from_bytes(src[-4:], "little") <= capacity:
        raise ValueError("not one whole member")
    return decoded


def _lz4(src: bytes, capacity: int) -> bytes:
    return bytes(imagecodecs.lz4_decode(src, out=capacity))


def _snappy(src: bytes, capacity: int) -> bytes:
    return bytes(imagecodecs.snappy_decode(src, out=capacity))


@dataclass(frozen=True)
class Traits:
    """What is peculiar to a format."""

    decode: Callable[[bytes, int], bytes]
    source_alignment: int = 1
    temp_alignment: int = 1
    max_nbytes: int = 2**32 - 1
    options: Sequence[int] = tuple(CUDA_BACKEND)


TRAITS = {
    "Zstd": Traits(_zstd, temp_alignment=8, max_nbytes=2**31 - 1),
    "LZ4": Traits(_lz4),
    "Gzip": Traits(_gzip),
    "Gzip, looking ahead": Traits(_gzip, source_alignment=4, temp_alignment=8, options=LOOKING_AHEAD),
    "Deflate": Traits(_deflate, source_alignment=4),
    "Snappy": Traits(_snappy, max_nbytes=2**31 - 1),
}
REFUSED = (ValueError, RuntimeError, zlib.error, zstandard.ZstdError)


def needed_temp(fmt: str, n_chunks: int, total: int) -> int:
    if fmt == "Gzip, looking ahead":
        return 1000 * n_chunks  # a made-up number: the library says it on a GPU only
    return max(6936 * n_chunks, (total >> 16) * 3468) + 3 * total if fmt == "Zstd" else 0


def variant(fmt: str, options: Options) -> str:
    """Return the format with the algorithm that options ask for."""
    return f"{fmt}, looking ahead" if fmt == "Gzip" and options.words[1] else fmt


@dataclass(frozen=True)
class Launch:
    """One call of a DecompressAsync function; the fields after `fmt` are its parameters."""

    fmt: str
    sources: int | None
    source_nbytes: int | None
    capacity: int | None
    actual: int | None
    n_chunks: int
    temp: int | None
    temp_nbytes: int
    outputs: int | None
    options: Options
    statuses: int | None
    stream: int | None

    def refusal(self) -> int:
        """Return what the call itself returns, which sees no device memory."""
        columns = (self.sources, self.source_nbytes, self.capacity, self.actual, self.outputs)
        if list(self.options.words) != list(TRAITS[self.fmt].options) or not all((*columns, self.statuses)):
            return INVALID_VALUE
        if any(column % 8 for column in columns) or self.statuses % 4 or self._temp_is_misaligned():
            return MISALIGNED
        if self.n_chunks == 0:
            return CUDA_ERROR
        return OK if self.temp_nbytes >= needed_temp(self.fmt, self.n_chunks, 0) else INVALID_VALUE

    def fault(self) -> str | None:
        """Return what would end the process's use of the GPU, or let it read and write anywhere."""
        traits, n = TRAITS[self.fmt], self.n_chunks
        sources, source_nbytes = _column(self.sources, n), _column(self.source_nbytes, n)
        outputs, capacity = _column(self.outputs, n), _column(self.capacity, n)
        faults = {
            f"a source that is no multiple of {traits.source_alignment}": sources % traits.source_alignment,
            f"a chunk of more than {traits.max_nbytes} bytes": np.maximum(capacity, source_nbytes) > traits.max_nbytes,
            "sources inside the scratch memory": self._in_temp(sources, source_nbytes),
            "outputs inside the scratch memory": self._in_temp(outputs, capacity),
            "less scratch memory than needed": self.lacks_temp(),
        }
        return next((f"{self.fmt}: {what}" for what, where in faults.items() if np.any(where)), None)

    def lacks_temp(self) -> bool:
        """Tell whether the chunks need more scratch memory than given; reads device memory."""
        return self.temp_nbytes < needed_temp(self.fmt, self.n_chunks, int(_column(self.capacity, self.n_chunks).sum()))

    def run(self) -> None:
        if self.temp_nbytes:
            ctypes.memset(self.temp, POISON, self.temp_nbytes)
        actual, statuses = _column(self.actual, self.n_chunks), _column(self.statuses, self.n_chunks, c_int32)
        columns = (self.sources, self.source_nbytes, self.outputs, self.capacity)
        rows = zip(*(_column(address, self.n_chunks).tolist() for address in columns), strict=True)
        decode = TRAITS[self.fmt].decode
        for i, (source, nbytes, output, capacity) in enumerate(rows):
            try:
                decoded, statuses[i] = decode(ctypes.string_at(source, nbytes), capacity), OK
            except REFUSED:
                decoded, statuses[i] = b"", CANNOT_DECOMPRESS
            actual[i] = len(decoded)
            ctypes.memmove(output, decoded, len(decoded))
            ctypes.memset(output + len(decoded), POISON, capacity - len(decoded))

    def _temp_is_misaligned(self) -> bool:
        return (self.temp or 0) % TRAITS[self.fmt].temp_alignment != 0

    def _in_temp(self, starts: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        first = self.temp or 0
        return (starts < first + self.temp_nbytes) & (starts + nbytes > first)


def _column(address: int, n: int, ctype: type = c_uint64) -> np.ndarray:
    return np.ctypeslib.as_array((ctype * n).from_address(address))


class FakeNvcomp:
    """An object with the C functions of nvCOMP as attributes.

    `enqueue(stream_handle, work)` lets the decoding run later, in the order of the stream; without it, it runs in the
    call. `faults` lists what a GPU would not have survived, and is to be empty at the end of a test.
    """

    def __init__(self, enqueue: Callable[[int, Work], None] | None = None, *, version: int = 6000) -> None:
        self.faults: list[str] = []
        self._enqueue = enqueue
        self.nvcompGetProperties = PROPERTIES(lambda answer: _write(answer, version, 13000))
        for fmt in TRAITS:
            if "," in fmt:
                continue
            name = f"nvcompBatched{fmt}Decompress"
            setattr(self, name + "Async", ASYNC(self._decompress(fmt)))
            if version >= 6000:
                setattr(self, name + "GetTempSize", TEMP_SIZE(self._temp_size(fmt)))
            else:
                setattr(self, name + "GetTempSizeAsync", TEMP_SIZE_OF_5(self._temp_size(fmt)))
            setattr(self, name + "GetRequiredAlignments", ALIGNMENTS(self._alignments(fmt)))

    def _decompress(self, fmt: str) -> Callable[..., int]:
        def call(*args: int | Options | None) -> int:
            try:
                launch = Launch(fmt, *args)
                return self._start(replace(launch, fmt=variant(fmt, launch.options)))
            except Exception as error:  # noqa: BLE001 - it would get lost in the C frame
                self.faults.append(repr(error))
                return INTERNAL

        return call

    def _start(self, launch: Launch) -> int:
        if refusal := launch.refusal():
            return refusal
        if self._enqueue is not None:
            self._enqueue(launch.stream or 0, lambda: self._run(launch))
        elif launch.lacks_temp():
            return INVALID_VALUE
        else:
            self._run(launch)
        return OK

    def _run(self, launch: Launch) -> None:
        if fault := launch.fault():
            self.faults.append(fault)
        else:
            launch.run()

    def _temp_size(self, fmt: str) -> Callable[..., int]:
        def call(n_chunks: int, max_nbytes: int, options: Options, answer: object, total: int, *_stream: object) -> int:
            if max_nbytes > TRAITS[fmt].max_nbytes:
                return CHUNK_TOO_LARGE
            return _write(answer, needed_temp(variant(fmt, options), n_chunks, total))

        return call

    def _alignments(self, fmt: str) -> Callable[..., int]:
        def call(options: Options, answer: object) -> int:
            traits = TRAITS[variant(fmt, options)]
            return _write(answer, traits.source_alignment, 1, traits.temp_alignment)

        return call


def _write(answer: object, *values: int) -> int:
    for i, value in enumerate(values):
        answer[i] = value
    return OK
