"""Host codecs: a table from codec spec to a function that decodes one chunk into given memory.

Each entry calls the library that decodes that format fastest into a caller's buffer without the GIL. A chunk that the
fast call refuses is tried once more by `streams`, which accepts what zarr-python does: rarities such as gzip files
of several members. Its word on corrupt input is final.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import imagecodecs
import numpy as np
import zstandard

from xarray_gpuzarr.decoders.host.blosc import inflate_frame, is_worth_inflating
from xarray_gpuzarr.decoders.host.checksums import strip_checksum
from xarray_gpuzarr.decoders.host.filters import decode_elements, filtered_nbytes, unshuffle
from xarray_gpuzarr.decoders.host.scratch import buffer, copy_bytes
from xarray_gpuzarr.decoders.host.streams import decode_at_most, decode_zstd, decode_zstd_stream
from xarray_gpuzarr.fetch import ByteStream
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError, blosc_nbytes, declared_nbytes
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    ChecksumSpec,
    CodecPipeline,
    CompressorSpec,
    ElementSpec,
    GzipSpec,
    Lz4Spec,
    ShuffleSpec,
    StageSpec,
    ZlibSpec,
    ZstdSpec,
    encoded_nbytes,
    of_each,
)

DecodeInto = Callable[[memoryview, memoryview], None]
"""Decode `src` into exactly the whole of `dst`, or raise `FrameError`."""

_ONE_SHOT_NBYTES = 128 * 1024
"""From here on a new context costs less than imagecodecs' assembly for Huffman codes saves."""
_STAGE_SLACK_NBYTES = 64 * 1024
"""No codec in the middle of a chain makes a chunk twice its size, but for headers and dtypes with longer elements."""
_LZ4 = Lz4Spec()
_GZIP_MEMBER = re.compile(rb"\x1f\x8b\x08")
"""How a member begins. Within one these bytes occur once in 16 MB; to look costs 3 % of what decoding does."""


def _zstd(src: memoryview, dst: memoryview) -> None:
    if len(dst) < _ONE_SHOT_NBYTES:
        with suppress(zstandard.ZstdError):  # also for windows of over 128 MiB, for which one call needs no memory
            decode_zstd(src, dst)
            return
    _same(imagecodecs.zstd_decode(src, out=dst), dst)


def _blosc(src: memoryview, dst: memoryview) -> None:
    # The C decoder trusts the header's lengths, so they are compared with the real ones first.
    decoded, encoded = blosc_nbytes(src)
    if decoded != len(dst):
        raise FrameError("a frame of another length")
    src = src[:encoded]
    if is_worth_inflating(src, dst):
        inflate_frame(src, dst)
    elif dst:
        imagecodecs.blosc_decode(src, numthreads=1, out=dst)


def _lz4(src: memoryview, dst: memoryview) -> None:
    if declared_nbytes(_LZ4, src) != len(dst):
        raise FrameError("another length")
    _same(imagecodecs.lz4_decode(src, header=True, out=dst), dst)


def _gzip(src: memoryview, dst: memoryview) -> None:
    # libdeflate decodes the first member and ignores what follows it.
    if int.from_bytes(src[-4:], "little") != len(dst) % 2**32 or _GZIP_MEMBER.search(src, 1):
        raise FrameError("something behind a member")
    _same(imagecodecs.gzip_decode(src, out=dst), dst)


def _zlib(src: memoryview, dst: memoryview) -> None:
    _same(imagecodecs.deflate_decode(src, out=dst), dst)


def _same(result: Any, dst: memoryview) -> None:
    if len(result) != len(dst):
        raise FrameError(f"{len(result)} bytes")


_FAST: dict[type, DecodeInto] = of_each(
    CompressorSpec, {ZstdSpec: _zstd, GzipSpec: _gzip, ZlibSpec: _zlib, Lz4Spec: _lz4, BloscSpec: _blosc}
)
_LIBRARY_ERRORS = (
    FrameError,
    zstandard.ZstdError,
    RuntimeError,  # imagecodecs' errors, numcodecs.blosc
    SystemError,  # numcodecs.blosc, of a frame that claims to hold 2 GiB or more
    ValueError,
    TypeError,
    OSError,  # gzip.BadGzipFile
    EOFError,
    zlib.error,
    MemoryError,  # a frame that declares an absurd length
    ImportError,  # a codec whose library is missing; imagecodecs imports its parts when they are called
)


def _decode_into(spec: CompressorSpec | ShuffleSpec | ElementSpec, src: memoryview, dst: memoryview) -> None:
    """Decode a stage into memory of just its length."""
    if isinstance(spec, ShuffleSpec):
        unshuffle(spec, src, dst)
    elif isinstance(spec, ElementSpec):
        decode_elements(spec, src, dst)
    else:
        _decompress(spec, src, dst)


def _decompress(spec: CompressorSpec, src: memoryview, dst: memoryview) -> None:
    try:
        _FAST[type(spec)](src, dst)
    except _LIBRARY_ERRORS as refusal:
        decoded = decode_at_most(spec, src, most=len(dst))
        if len(decoded) != len(dst):
            raise FrameError(f"{len(decoded)} bytes") from refusal
        copy_bytes(decoded, dst)


class ChunkCodec:
    """All that turns the bytes of a chunk into its elements, ready to decode chunks. Safe to share between threads.

    Parameters
    ----------
    pipeline : CodecPipeline
        Without codecs that only zarr-python knows.
    chunk_nbytes : int
        Bytes of one decoded chunk.
    """

    def __init__(self, pipeline: CodecPipeline, chunk_nbytes: int) -> None:
        self._stages = pipeline.stages
        self._chunk_nbytes = chunk_nbytes
        self._nbytes = _decoded_nbytes(self._stages, chunk_nbytes)
        self._most = 2 * _longest(self._stages, chunk_nbytes) + _STAGE_SLACK_NBYTES
        self.in_place = all(isinstance(s, ChecksumSpec) for s in self._stages)
        """Whether the decoded chunk is a part of the encoded bytes."""
        alone = len(self._stages) == 1 and self._nbytes[0] == chunk_nbytes
        self._alone = _FAST.get(type(self._stages[0])) if alone else None
        self.raw = not self._stages
        """Whether the decoded chunk is the encoded bytes."""
        self.streams = [type(s) for s in self._stages] == [ZstdSpec]
        """Whether `from_stream` can decode a chunk."""

    def view(self, src: memoryview) -> memoryview:
        """Return the decoded chunk as a part of `src`; only if `in_place`."""
        decoded = self._decode(src, None)
        if len(decoded) != self._chunk_nbytes:
            raise FrameError(f"{len(decoded)} bytes, expected {self._chunk_nbytes}")
        return decoded

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
        try:
            if self._alone is not None:
                self._alone(src, dst)
                return
        except _LIBRARY_ERRORS:  # the general way asks once more, and says what is wrong
            pass
        decoded = self._decode(src, dst)
        if decoded is not dst:
            if len(decoded) != len(dst):
                raise FrameError(f"{len(decoded)} bytes, expected {len(dst)}")
            copy_bytes(decoded, dst)

    def _decode(self, src: memoryview, dst: memoryview | None) -> memoryview:
        """Decode a chunk, into `dst` if the last stage moves bytes."""
        last = len(self._stages) - 1
        for number, (stage, nbytes) in enumerate(zip(self._stages, self._nbytes, strict=True)):
            try:
                if isinstance(stage, ChecksumSpec):
                    src = strip_checksum(stage, src)
                elif isinstance(stage, CompressorSpec) and nbytes is None:
                    src = decode_at_most(stage, src, self._most)
                else:
                    length = filtered_nbytes(stage, len(src)) if nbytes is None else nbytes
                    out = dst if dst is not None and number == last else memoryview(buffer(f"stage {number}", length))
                    _decode_into(stage, src, out)
                    src = out
            except _LIBRARY_ERRORS as err:
                raise _explained(str(stage), err, self._chunk_nbytes if nbytes is None else nbytes) from err
        return src

    def from_stream(self, stream: ByteStream, dst: memoryview) -> None:
        """Decode a chunk into the whole of `dst` as its bytes are read; only if `streams`. Otherwise as `into`."""
        try:
            decode_zstd_stream(stream, dst)
        except (FrameError, zstandard.ZstdError) as err:
            raise _explained("zstd", err, len(dst)) from err


_RATES: dict[type, float] = of_each(
    CompressorSpec, {BloscSpec: 2e9, Lz4Spec: 2e9, ZstdSpec: 0.7e9, GzipSpec: 0.3e9, ZlibSpec: 0.3e9}
)
_COPY_RATE = 4e9


def decoded_rate(pipeline: CodecPipeline) -> float:
    """Return about how many bytes a second one thread decodes, and brings to their place."""
    if pipeline.other is not None:
        return min(_RATES.values())
    return min((_RATES.get(type(stage), _COPY_RATE) for stage in pipeline.stages), default=_COPY_RATE)


@lru_cache(maxsize=128)
def chunk_codec(pipeline: CodecPipeline, chunk_nbytes: int) -> ChunkCodec:
    """Return the `ChunkCodec` of a pipeline, made once."""
    return ChunkCodec(pipeline, chunk_nbytes)


def _decoded_nbytes(stages: Sequence[StageSpec], chunk_nbytes: int) -> list[int | None]:
    """Return how many bytes each stage gives; None before another compressor than the first one that encodes."""
    lengths: list[int | None] = []
    known: int | None = chunk_nbytes
    for stage in reversed(stages):
        lengths.append(known)
        known = None if known is None else encoded_nbytes(stage, known)
    return lengths[::-1]


def _longest(stages: Sequence[StageSpec], chunk_nbytes: int) -> int:
    """Return how many bytes a chunk has at most between two stages, if no compressor makes it longer."""
    longest = nbytes = chunk_nbytes
    for stage in reversed(stages):
        if isinstance(stage, ElementSpec):
            nbytes = -(-nbytes // np.dtype(stage.decoded).itemsize) * np.dtype(stage.encoded).itemsize
            longest = max(longest, nbytes)
    return longest


def _explained(codec: str, err: BaseException, nbytes: int) -> FrameError:
    if isinstance(err, ImportError):
        return CodecFailure(f"{codec}: {err}")
    return FrameError(f"{codec}: {err} (expected {nbytes} decoded bytes)")
