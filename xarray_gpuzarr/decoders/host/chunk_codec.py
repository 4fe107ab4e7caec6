"""All stages of a chunk, undone one after another into given memory: checksums, compressors, filters."""

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
    ElementSpec,
    PipelineSpec,
    ShuffleSpec,
    encoded_nbytes,
)

_NBYTES = 4


def _fletcher32(payload: memoryview, _seed: int) -> int:
    """Return what numcodecs writes behind a payload."""
    return int.from_bytes(Fletcher32().encode(payload)[-_NBYTES:], "little") if payload else 0


_ALGORITHMS: dict[ChecksumAlgorithm, Callable[[memoryview, int], int]] = {
    "crc32": lambda payload, _: deflate.crc32(payload),
    "crc32c": lambda payload, _: crc32c(payload),
    "adler32": lambda payload, _: deflate.adler32(payload),
    "fletcher32": _fletcher32,
    "jenkins_lookup3": jenkins_lookup3,
}


def strip_checksum(spec: ChecksumSpec, src: memoryview) -> memoryview:
    """Check a checksum and return the payload, a part of `src`; raise `FrameError` if it is another, or too short."""
    if len(src) < _NBYTES:
        raise FrameError(f"{len(src)} bytes, too short for a checksum")
    payload, stored = (src[_NBYTES:], src[:_NBYTES]) if spec.at_start else (src[:-_NBYTES], src[-_NBYTES:])
    expected = int.from_bytes(stored, "little")
    actual = _ALGORITHMS[spec.algorithm](payload, spec.seed)
    if expected != actual:
        raise FrameError(f"checksum {actual:#010x}, stored {expected:#010x}")
    return payload


def _decode_into(spec: CompressorSpec | ShuffleSpec | ElementSpec, src: memoryview, dst: memoryview) -> None:
    """Decode a stage into memory of just its length, or raise one of `LIBRARY_ERRORS`."""
    if isinstance(spec, ShuffleSpec):
        unshuffle(spec, src, dst)
    elif isinstance(spec, ElementSpec):
        decode_elements(spec, src, dst)
    else:
        decoded = decode_at_most(spec, src, most=len(dst))
        if len(decoded) != len(dst):
            raise FrameError(f"{len(decoded)} bytes")
        copy_bytes(decoded, dst)


class ChunkCodec:
    """All that turns the bytes of a chunk into its elements, ready to decode chunks. Safe to share between threads.

    The pipeline is one without codecs that only zarr-python knows; `chunk_nbytes` is of one decoded chunk.
    """

    def __init__(self, pipeline: PipelineSpec, chunk_nbytes: int) -> None:
        self._stages = pipeline.stages
        self._chunk_nbytes = chunk_nbytes
        self._nbytes: list[int | None] = []
        """Bytes that each stage gives; None for what is decoded for a second compressor."""
        known: int | None = chunk_nbytes
        for stage in reversed(self._stages):
            self._nbytes.insert(0, known)
            known = None if known is None else encoded_nbytes(stage, known)
        self._most = pipeline.most_nbytes(chunk_nbytes)
        self.is_view = all(isinstance(s, ChecksumSpec) for s in self._stages)
        """Whether the decoded chunk is a part of the encoded bytes."""
        self.raw = not self._stages
        """Whether the decoded chunk is the encoded bytes."""

    def view(self, src: memoryview) -> memoryview:
        """Return the decoded chunk as a part of `src`; only if `is_view`."""
        decoded = self._decode(src, None)
        if len(decoded) != self._chunk_nbytes:
            raise FrameError(f"{len(decoded)} bytes, expected {self._chunk_nbytes}")
        return decoded

    def into(self, src: memoryview, dst: memoryview) -> None:
        """Decode a chunk, not modified, into the whole of `dst`: uint8, shape (chunk_nbytes,), host memory.

        Raises `FrameError`, which names the codec, if the bytes do not decode to exactly that many.
        """
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
                    length = decoded_nbytes(stage, len(src)) if nbytes is None else nbytes
                    out = dst if dst is not None and number == last else memoryview(buffer(f"stage {number}", length))
                    _decode_into(stage, src, out)
                    src = out
            except LIBRARY_ERRORS as err:
                if isinstance(err, ImportError):
                    raise CodecFailure(f"{stage}: {err}") from err
                expected = self._chunk_nbytes if nbytes is None else nbytes
                raise FrameError(f"{stage}: {err} (expected {expected} decoded bytes)") from err
        return src


chunk_codec = lru_cache(maxsize=128)(ChunkCodec)
