"""Decoding of a whole chunk in Python: checksums, compressors and filters, one stage after another.

`ChunkCodec` writes the decoded chunk to memory of the caller, or returns it as a part of the encoded bytes. Every
failure of a library becomes a `FrameError` that names the stage.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import deflate
from numcodecs.fletcher32 import Fletcher32
from numcodecs.jenkins import jenkins_lookup3

from xarray_gpuzarr.decoders.host.compressors import LIBRARY_ERRORS, decode_at_most
from xarray_gpuzarr.decoders.host.filters import decode_elements, decoded_nbytes, unshuffle
from xarray_gpuzarr.frames.headers import CodecFailure, FrameError
from xarray_gpuzarr.native.library import crc32c
from xarray_gpuzarr.process.host_memory import buffer, copy_bytes
from xarray_gpuzarr.stored.codecs import (
    ChecksumAlgorithm,
    ChecksumSpec,
    CompressorSpec,
    PipelineSpec,
    ShuffleSpec,
    encoded_nbytes,
)
from xarray_gpuzarr.stored.element_codecs import ElementSpec

_CHECKSUM_NBYTES = 4


def _fletcher32(payload: memoryview, _seed: int) -> int:
    """Return the checksum that numcodecs appends to a payload; 0 for an empty one."""
    return int.from_bytes(Fletcher32().encode(payload)[-_CHECKSUM_NBYTES:], "little") if payload else 0


_ALGORITHMS: dict[ChecksumAlgorithm, Callable[[memoryview, int], int]] = {
    "crc32": lambda payload, _: deflate.crc32(payload),
    "crc32c": lambda payload, _: crc32c(payload),
    "adler32": lambda payload, _: deflate.adler32(payload),
    "fletcher32": _fletcher32,
    "jenkins_lookup3": jenkins_lookup3,
}
"""Functions that return the checksum of a payload. Their second argument is a seed, which only jenkins_lookup3 has."""


def strip_checksum(spec: ChecksumSpec, src: memoryview) -> memoryview:
    """Check the checksum of a payload.

    Parameters
    ----------
    spec : ChecksumSpec
        Algorithm, and position of the checksum.
    src : memoryview of uint8, host memory
        Payload and checksum.

    Returns
    -------
    memoryview of uint8
        The payload, a part of `src`.

    Raises
    ------
    FrameError
        If the checksum does not match, or `src` is shorter than a checksum.
    """
    if len(src) < _CHECKSUM_NBYTES:
        raise FrameError(f"{len(src)} bytes, too short for a checksum")
    if spec.at_start:
        stored, payload = src[:_CHECKSUM_NBYTES], src[_CHECKSUM_NBYTES:]
    else:
        payload, stored = src[:-_CHECKSUM_NBYTES], src[-_CHECKSUM_NBYTES:]
    expected = int.from_bytes(stored, "little")
    actual = _ALGORITHMS[spec.algorithm](payload, spec.seed)
    if expected != actual:
        raise FrameError(f"checksum {actual:#010x}, stored {expected:#010x}")
    return payload


def _decode_into(spec: CompressorSpec | ShuffleSpec | ElementSpec, src: memoryview, dst: memoryview) -> None:
    """Decode one stage into memory of exactly the decoded length. Raises one of `LIBRARY_ERRORS`."""
    if isinstance(spec, ShuffleSpec):
        unshuffle(spec, src, dst)
    elif isinstance(spec, ElementSpec):
        decode_elements(spec, src, dst)
    else:
        decoded = decode_at_most(spec, src, most_nbytes=len(dst))
        if len(decoded) != len(dst):
            raise FrameError(f"{len(decoded)} bytes")
        copy_bytes(decoded, dst)


class ChunkCodec:
    """Decoder of the chunks of an array. Safe to share between threads.

    Parameters
    ----------
    pipeline : PipelineSpec
        Codecs of a chunk, without any that only zarr-python knows.
    chunk_nbytes : int
        Length in bytes of a decoded chunk.
    """

    def __init__(self, pipeline: PipelineSpec, chunk_nbytes: int) -> None:
        self._stages = pipeline.stages
        self._chunk_nbytes = chunk_nbytes
        self._decoded_nbytes: list[int | None] = []
        """Bytes that each stage decodes to; None for the input of a second compressor, whose length varies."""
        nbytes: int | None = chunk_nbytes
        for stage in reversed(self._stages):
            self._decoded_nbytes.insert(0, nbytes)
            nbytes = None if nbytes is None else encoded_nbytes(stage, nbytes)
        self._most_nbytes = pipeline.max_encoded_nbytes(chunk_nbytes)
        self.is_view = all(isinstance(stage, ChecksumSpec) for stage in self._stages)
        """Whether the decoded chunk is a part of the encoded bytes."""
        self.is_raw = not self._stages
        """Whether the decoded chunk is the encoded bytes."""

    def view(self, src: memoryview) -> memoryview:
        """Return the decoded chunk as a part of `src`, if `is_view`. Raises `FrameError`."""
        decoded = self._decode(src, None)
        if len(decoded) != self._chunk_nbytes:
            raise FrameError(f"{len(decoded)} bytes, expected {self._chunk_nbytes}")
        return decoded

    def decode_into(self, src: memoryview, dst: memoryview) -> None:
        """Decode a chunk into memory of the caller.

        Parameters
        ----------
        src : memoryview of uint8, host memory
            Encoded bytes of the chunk. They are not modified.
        dst : memoryview of uint8, shape (chunk_nbytes,), host memory
            Receives the decoded chunk.

        Raises
        ------
        FrameError
            If `src` does not decode to exactly `chunk_nbytes` bytes. Names the codec.
        CodecFailure
            If the library of a codec is missing. It is a `FrameError`, too.
        """
        decoded = self._decode(src, dst)
        if decoded is not dst:
            if len(decoded) != len(dst):
                raise FrameError(f"{len(decoded)} bytes, expected {len(dst)}")
            copy_bytes(decoded, dst)

    def _decode(self, src: memoryview, dst: memoryview | None) -> memoryview:
        """Return the decoded chunk, which is in `dst` if the last stage writes one.

        A checksum writes nothing. If it is the last stage, or if there is no stage, the result is a part of `src`, or
        of the memory of an earlier stage, which the next call on this thread overwrites. `dst` may be None if
        `is_view`.
        """
        last = len(self._stages) - 1
        for number, (stage, nbytes) in enumerate(zip(self._stages, self._decoded_nbytes, strict=True)):
            try:
                if isinstance(stage, ChecksumSpec):
                    src = strip_checksum(stage, src)
                elif isinstance(stage, CompressorSpec) and nbytes is None:
                    src = decode_at_most(stage, src, self._most_nbytes)
                else:
                    length = decoded_nbytes(stage, len(src)) if nbytes is None else nbytes
                    out = dst if number == last else None
                    if out is None:
                        out = memoryview(buffer(f"stage {number}", length))
                    _decode_into(stage, src, out)
                    src = out
            except LIBRARY_ERRORS as err:
                if isinstance(err, ImportError):
                    raise CodecFailure(f"{stage}: {err}") from err
                expected = self._chunk_nbytes if nbytes is None else nbytes
                raise FrameError(f"{stage}: {err} (expected {expected} decoded bytes)") from err
        return src


chunk_codec = lru_cache(maxsize=128)(ChunkCodec)
"""`ChunkCodec` of the latest arrays."""
