"""`checked_metadata`: metadata of zarr-python whose codecs check the header of a frame before it is decoded.

zarr-python and numcodecs decode what this package does not decode itself. If a header is wrong, the codecs of
numcodecs in `_CHECKS` read or return memory outside the frame. Neither library is modified. An array gets metadata with
other codecs, which encode and decode the same bytes.
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
"""Id of a codec of numcodecs -> function that raises a `FrameError` for frames that the codec must not decode."""


def checked_metadata(metadata: Metadata) -> Metadata:
    """Return metadata of the same array whose codecs raise a `FrameError` for frames with a wrong header.

    If no codec needs a check, `metadata` itself is returned. Other results must be neither stored nor pickled: the
    codecs that this adds have no name that zarr-python knows, and it pickles the codecs of shards by their names.
    """
    if isinstance(metadata, ArrayV2Metadata):
        v2_codecs = (metadata.compressor, *(metadata.filters or ()))
        if not any(map(_needs_check, v2_codecs)):
            return metadata
        filters = metadata.filters and tuple(map(_checked_numcodec, metadata.filters))
        return replace(metadata, compressor=_checked_numcodec(metadata.compressor), filters=filters)
    codecs = tuple(_checked_codecs(metadata.codecs))
    return metadata if codecs == tuple(metadata.codecs) else replace(metadata, codecs=codecs)


@dataclass(frozen=True)
class FrameCheck(BytesBytesCodec):
    """Codec of Zarr format 3 that stands after another one. It checks the other codec's frames before they are decoded.

    It raises a `FrameError` for a frame with a wrong header, and does not change frames.
    """

    is_fixed_size = True

    codec_id: str
    """Id of the other codec in numcodecs."""

    def to_dict(self) -> dict[str, Any]:
        """Return a description of this codec, for people: metadata with this codec are never stored."""
        return {"name": f"{self.codec_id}_frame_check", "configuration": {}}

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        """Return the length of a frame in bytes, which this codec does not change."""
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
    """Codec of Zarr format 2 that does what another one does, but raises a `FrameError` if the header is wrong."""

    codec_id = "checked"  # zarr-python requires that the class has an id; an instance has that of the other codec

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
    """Yield codecs of Zarr format 3, with a `FrameCheck` after each that needs one, also inside of shards."""
    for codec in codecs:
        if isinstance(codec, FrameCheck):  # the metadata have checks already; they are added again below
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
