"""Host codecs: a table from codec spec to a function that decodes one chunk into given memory.

Each entry calls the library that decodes that format fastest into a caller's buffer without the GIL. A chunk that the
fast call refuses is tried once more by numcodecs, which zarr-python uses: it accepts rarities such as gzip files of
several members, and its word on corrupt input is final.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import imagecodecs
import numcodecs
import numpy as np
import zstandard

from xarray_gpuzarr.codecs import (
    BloscSpec,
    BytesBytesSpec,
    CodecPipeline,
    Crc32cSpec,
    GzipSpec,
    Lz4Spec,
    ZlibSpec,
    ZstdSpec,
)
from xarray_gpuzarr.fetch import ByteStream
from xarray_gpuzarr.frames import FrameError, declared_nbytes, has_zstd_checksum

DecodeInto = Callable[[memoryview, memoryview], None]
"""Decode `src` into exactly the whole of `dst`, or raise `FrameError`."""

_CRC_NBYTES = 4
_STREAM_PIECE_NBYTES = 512 * 1024
_STAGE_SLACK_NBYTES = 64 * 1024
"""No codec in the middle of a chain makes a chunk twice its size, but for headers."""
_ZSTD, _LZ4 = ZstdSpec(), Lz4Spec()
_BLOSC = BloscSpec(cname="any", shuffle="any", typesize=None)

_thread = threading.local()


def _zstd(src: memoryview, dst: memoryview) -> None:
    declared = declared_nbytes(_ZSTD, src)
    if has_zstd_checksum(src):
        # Only the one-shot call says so if the frame ends within its checksum; it costs a copy.
        decoded = _zstd_context().decompress(src, max_output_size=len(dst))
        _same(decoded, dst)
        dst[:] = decoded
        return
    reader = _zstd_context().stream_reader(src, closefd=False)
    if reader.readinto(dst) != len(dst):
        raise FrameError("fewer bytes")
    if declared != len(dst) and reader.read(1):
        raise FrameError("more bytes")


def _zstd_stream(stream: ByteStream, dst: memoryview) -> None:
    """Decode one frame, or several in a row, as they are read."""
    frame, done = _zstd_context().decompressobj(), 0
    while piece := stream.read(_STREAM_PIECE_NBYTES):
        while piece:
            frame = _zstd_context().decompressobj() if frame.eof else frame
            decoded = frame.decompress(piece)
            if done + len(decoded) > len(dst):
                raise FrameError(f"more than {len(dst)} bytes")
            dst[done : done + len(decoded)] = decoded
            done += len(decoded)
            piece = frame.unused_data if frame.eof else b""
    if done != len(dst) or not frame.eof:
        raise FrameError(f"{done} bytes" if frame.eof else f"a frame cut short after {done} bytes")


def _zstd_context() -> Any:
    context = getattr(_thread, "zstd", None)
    if context is None:
        context = _thread.zstd = zstandard.ZstdDecompressor()
    return context


def _blosc(src: memoryview, dst: memoryview) -> None:
    # The C decoder trusts the header's lengths, so they are compared with the real ones first.
    if declared_nbytes(_BLOSC, src) != len(dst):
        raise FrameError("a frame of another length")
    if dst:
        imagecodecs.blosc_decode(src, numthreads=1, out=dst)


def _lz4(src: memoryview, dst: memoryview) -> None:
    if declared_nbytes(_LZ4, src) != len(dst):
        raise FrameError("another length")
    _same(imagecodecs.lz4_decode(src, header=True, out=dst), dst)


def _gzip(src: memoryview, dst: memoryview) -> None:
    _same(imagecodecs.gzip_decode(src, out=dst), dst)


def _zlib(src: memoryview, dst: memoryview) -> None:
    _same(imagecodecs.deflate_decode(src, out=dst), dst)


def _same(result: Any, dst: memoryview) -> None:
    if len(result) != len(dst):
        raise FrameError(f"{len(result)} bytes")


_FAST: dict[type, DecodeInto] = {
    ZstdSpec: _zstd,
    GzipSpec: _gzip,
    ZlibSpec: _zlib,
    Lz4Spec: _lz4,
    BloscSpec: _blosc,
}
_NUMCODECS_ID = {
    ZstdSpec: "zstd",
    GzipSpec: "gzip",
    ZlibSpec: "zlib",
    Lz4Spec: "lz4",
    BloscSpec: "blosc",
}
_LIBRARY_ERRORS = (
    FrameError,
    zstandard.ZstdError,
    RuntimeError,  # imagecodecs' errors, numcodecs.blosc
    ValueError,
    TypeError,
    OSError,  # gzip.BadGzipFile
    EOFError,
    zlib.error,
    MemoryError,  # a frame that declares an absurd length
    imagecodecs.DelayedImportError,
)


def strip_crc32c(src: memoryview) -> memoryview:
    """Check the CRC-32C that ends `src` and return what stands before it.

    Raises
    ------
    FrameError
        Too short, or another checksum.
    """
    if len(src) < _CRC_NBYTES:
        raise FrameError(f"{len(src)} bytes, too short for a checksum")
    payload = src[:-_CRC_NBYTES]
    stored = int.from_bytes(src[-_CRC_NBYTES:], "little")
    actual = google_crc32c.value(np.frombuffer(payload, np.uint8))  # it refuses memoryviews
    if stored != actual:
        raise FrameError(f"CRC-32C {actual:#010x}, stored {stored:#010x}")
    return payload


def _decode_all(spec: BytesBytesSpec, src: memoryview, most: int) -> memoryview:
    """Decode a stage whose result has no known length, but is refused if it declares more than `most` bytes."""
    if isinstance(spec, Crc32cSpec):
        return strip_crc32c(src)
    declared = declared_nbytes(spec, src)
    if declared is not None and declared > most:
        raise FrameError(f"a frame of {declared} bytes")
    codec = numcodecs.get_codec({"id": _NUMCODECS_ID[type(spec)]})
    return memoryview(codec.decode(src)).cast("B")


def _decode_last(spec: BytesBytesSpec, src: memoryview, dst: memoryview) -> None:
    """Decode the stage that gives the chunk itself."""
    try:
        _FAST[type(spec)](src, dst)
    except _LIBRARY_ERRORS as refusal:
        decoded = _decode_all(spec, src, most=len(dst))
        if len(decoded) != len(dst):
            raise FrameError(f"{len(decoded)} bytes") from refusal
        dst[:] = decoded


class ChunkCodec:
    """The bytes-to-bytes part of a pipeline, ready to decode chunks. Safe to share between threads.

    Parameters
    ----------
    pipeline : CodecPipeline
        Without codecs that only zarr-python knows.
    chunk_nbytes : int
        Bytes of one decoded chunk.
    """

    def __init__(self, pipeline: CodecPipeline, chunk_nbytes: int) -> None:
        self._stages: Sequence[BytesBytesSpec] = tuple(reversed(pipeline.bytes_to_bytes))
        self._chunk_nbytes = chunk_nbytes
        self.in_place = all(isinstance(s, Crc32cSpec) for s in self._stages)
        """Whether the decoded chunk is a part of the encoded bytes."""
        self.raw = not self._stages
        """Whether the decoded chunk is the encoded bytes."""
        self.streams = [type(s) for s in self._stages] == [ZstdSpec]
        """Whether `from_stream` can decode a chunk."""

    def view(self, src: memoryview) -> memoryview:
        """Return the decoded chunk as a part of `src`; only if `in_place`."""
        try:
            for _ in self._stages:
                src = strip_crc32c(src)
        except FrameError as err:
            raise self._explained("crc32c", err) from err
        if len(src) != self._chunk_nbytes:
            raise FrameError(f"{len(src)} bytes, expected {self._chunk_nbytes}")
        return src

    def into(self, src: memoryview, dst: memoryview) -> None:
        """Decode a chunk into the whole of `dst`.

        Parameters
        ----------
        src : memoryview of uint8, host memory
            Encoded chunk, not modified.
        dst : memoryview of uint8, shape (chunk_nbytes,), host memory

        Raises
        ------
        FrameError
            The bytes do not decode to exactly that many; names the codec.
        """
        if self.in_place:
            dst[:] = self.view(src)
            return
        stage: BytesBytesSpec = self._stages[-1]
        try:
            for stage in self._stages[:-1]:
                src = _decode_all(stage, src, most=2 * self._chunk_nbytes + _STAGE_SLACK_NBYTES)
            stage = self._stages[-1]
            if isinstance(stage, Crc32cSpec):
                dst[:] = self._sized(strip_crc32c(src))
            else:
                _decode_last(stage, src, dst)
        except _LIBRARY_ERRORS as err:
            raise self._explained(str(stage), err) from err

    def from_stream(self, stream: ByteStream, dst: memoryview) -> None:
        """Decode a chunk into the whole of `dst` as its bytes are read; only if `streams`. Otherwise as `into`."""
        try:
            _zstd_stream(stream, dst)
        except (FrameError, zstandard.ZstdError) as err:
            raise self._explained("zstd", err) from err

    def _sized(self, src: memoryview) -> memoryview:
        if len(src) != self._chunk_nbytes:
            raise FrameError(f"{len(src)} bytes")
        return src

    def _explained(self, codec: str, err: BaseException) -> FrameError:
        return FrameError(f"{codec}: {err} (expected {self._chunk_nbytes} decoded bytes)")
