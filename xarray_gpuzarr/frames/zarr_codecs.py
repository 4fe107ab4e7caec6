"""Metadata of zarr-python whose codecs look at a frame before a library that believes its header decodes it.

zarr-python and numcodecs decode what this package leaves to them. Of numcodecs' codecs, those in `_CHECKS` read or
return memory that is not the frame's if its header is wrong. Nothing of either library is changed: an array gets other
codecs, which encode and decode the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numcodecs.abc import Codec as Numcodec
from numcodecs.compat import ensure_contiguous_ndarray
from zarr.abc.codec import BytesBytesCodec, Codec
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.core.metadata import ArrayV2Metadata

from xarray_gpuzarr.frames.headers import check_blosc
from xarray_gpuzarr.stored.metadata import Metadata

_CHECKS: dict[str, Callable[[memoryview], None]] = {"blosc": check_blosc}
"""Functions that raise `FrameError` for frames that must not be given to the codec of this id."""


def checked_metadata(metadata: Metadata) -> Metadata:
    """Return metadata that describe the same array, whose codecs raise `FrameError` for frames with a wrong header.

    They are `metadata` itself where no codec needs that. They serve to decode and encode, not to be stored or pickled.
    """
    if isinstance(metadata, ArrayV2Metadata):
        numcodecs = (metadata.compressor, *(metadata.filters or ()))
        if not any(map(_needs_check, numcodecs)):
            return metadata
        filters = metadata.filters and tuple(map(_checked_numcodec, metadata.filters))
        return replace(metadata, compressor=_checked_numcodec(metadata.compressor), filters=filters)
    codecs = tuple(_checked_codecs(metadata.codecs))
    return metadata if codecs == tuple(metadata.codecs) else replace(metadata, codecs=codecs)


@dataclass(frozen=True)
class FrameCheck(BytesBytesCodec):
    """Stands behind a codec of format 3 and passes on its frames; raises `FrameError` for those with a wrong header."""

    is_fixed_size = True

    codec_id: str
    """The codec as numcodecs calls it."""

    def to_dict(self) -> dict[str, Any]:
        """Return what stands for this codec in metadata, for people: these are never stored."""
        return {"name": f"{self.codec_id}_frame_check", "configuration": {}}

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        """Return the length in bytes, which stays as it is."""
        return input_byte_length

    def _decode_sync(self, chunk_bytes: Buffer, _chunk_spec: ArraySpec) -> Buffer:
        _CHECKS[self.codec_id](_bytes_of(chunk_bytes.as_numpy_array()))
        return chunk_bytes

    def _encode_sync(self, chunk_bytes: Buffer, _chunk_spec: ArraySpec) -> Buffer:
        return chunk_bytes

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        return self._decode_sync(chunk_bytes, chunk_spec)

    async def _encode_single(self, chunk_bytes: Buffer, _chunk_spec: ArraySpec) -> Buffer:
        return chunk_bytes


class CheckedNumcodec(Numcodec):  # type: ignore[misc]  # numcodecs has no types
    """A codec of format 2 that raises `FrameError` for frames with a wrong header, and else does what another does."""

    codec_id = "checked"  # zarr-python looks for one in the class; that of the other codec takes its place

    def __init__(self, codec: Any) -> None:
        self.codec = codec
        self.codec_id = codec.codec_id

    def encode(self, buf: Any) -> Any:
        """Encode as the other codec does."""
        return self.codec.encode(buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Check the frame, and decode it as the other codec does."""
        _CHECKS[self.codec_id](_bytes_of(buf))
        return self.codec.decode(buf, out)

    def get_config(self) -> Any:
        """Return the configuration of the other codec."""
        return self.codec.get_config()


def _needs_check(codec: Any) -> bool:
    return getattr(codec, "codec_id", None) in _CHECKS and not isinstance(codec, CheckedNumcodec)


def _checked_numcodec(codec: Any) -> Any:
    return CheckedNumcodec(codec) if _needs_check(codec) else codec


def _checked_codecs(codecs: Iterable[Codec]) -> Iterator[Codec]:
    """Return codecs of format 3, also those of shards, with a check behind each that needs one."""
    for codec in codecs:
        if isinstance(codec, FrameCheck):  # it is made anew
            continue
        if isinstance(codec, ShardingCodec):
            inner = tuple(_checked_codecs(codec.codecs))
            yield codec if inner == tuple(codec.codecs) else replace(codec, codecs=inner)
            continue
        yield codec
        codec_id = str(codec.to_dict().get("name", "")).removeprefix("numcodecs.")
        if codec_id in _CHECKS:
            yield FrameCheck(codec_id)


def _bytes_of(buf: Any) -> memoryview:
    return memoryview(ensure_contiguous_ndarray(buf).view("u1"))
