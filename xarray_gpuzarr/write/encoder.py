"""`Encoder`: how the compiled loops encode the chunks of an array, derived from its metadata once.

The loops write raw elements in either byte order, transposed or not, compressed or not, followed by CRC-32C checksums.
zarr-python encodes everything else, such as filters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from xarray_gpuzarr.decoders.host.compressors import advise_of_slow_codecs, native_name
from xarray_gpuzarr.decoders.host.host_array import HostArray, host_array
from xarray_gpuzarr.decoders.host.native_steps import Steps
from xarray_gpuzarr.native.codec_functions import NativeEncoder, native_encoder
from xarray_gpuzarr.native.library import address, loops, why_absent
from xarray_gpuzarr.native.structs import EncoderStruct
from xarray_gpuzarr.process.records import Column, record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import (
    BytesBytesSpec,
    BytesSpec,
    ChecksumSpec,
    CompressorSpec,
    TransposeSpec,
)
from xarray_gpuzarr.write.codec_settings import encoder_settings

_CRC_NBYTES = 4
_MAX_CHUNK_NBYTES = 0x7E000000
"""Largest chunk that LZ4 encodes, in bytes; C-Blosc takes 32 MiB more. Other compressors have no limit."""


@record
class Encoder:
    """How the chunks of an array are encoded, for all writes."""

    array: HostArray
    """The array as the host decoder reads it, without a cast: its elements are those that are stored."""
    struct: EncoderStruct
    """Arguments of the loops. `WriteCall` sets the fields that differ from write to write, in a copy."""
    order: Column
    """The chunks of an object in the order in which they are stored. Chunks are numbered in C order."""
    referenced: object
    """Objects that `struct` points to."""


@lru_cache(maxsize=128)
def make_encoder(spec: ArraySpec, chunk_order: str) -> Encoder | str:
    """Return how the compiled loops encode the chunks of an array.

    Parameters
    ----------
    spec : ArraySpec
        The array.
    chunk_order : str
        Order in which the chunks of a shard are stored: "morton", "lexicographic" or "colexicographic", as for
        ``subchunk_write_order`` of `zarr.codecs.ShardingCodec`.

    Returns
    -------
    Encoder or str
        The encoder, or the reason why zarr-python has to encode the chunks.
    """
    compiled = loops()
    if compiled is None:
        return f"no compiled loops: {why_absent()}"
    compressor, n_checksums, other_codecs = _split_codecs(spec.codecs.bytes_to_bytes)
    other_filters = [codec for codec in spec.codecs.array_to_array if not isinstance(codec, TransposeSpec)]
    unsupported: list[object] = [*other_filters, *other_codecs]
    if not isinstance(spec.codecs.array_to_bytes, BytesSpec):
        unsupported.append(spec.codecs.array_to_bytes)
    if unsupported:
        return f"codec {unsupported[0]} is encoded by zarr-python"
    if spec.index is not None and spec.index.endian != "little":
        return "a shard index in big endian is encoded by zarr-python"

    array = host_array(spec, Cast(dtype=spec.dtype), compiled)
    functions = _encoding_functions(array, compressor)
    if functions is None:
        return f"codec {compressor} is encoded by zarr-python"
    settings: dict[str, Any] | None = {}
    if compressor is not None:
        settings = encoder_settings(spec, compressor, array.stored_dtype.itemsize)
    if settings is None:
        return f"codec {compressor} has settings about which zarr-python decides"

    max_nbytes = array.chunk_nbytes + n_checksums * _CRC_NBYTES
    if compressor is not None:
        # LZ4 adds more than the others to data that it cannot compress: a byte for every 255 bytes, and a header. Twice
        # as much is allowed.
        max_nbytes += array.chunk_nbytes // 128 + 512
    return _encoder(array, settings, functions, chunk_order, max_nbytes)


def _split_codecs(codecs: Sequence[BytesBytesSpec]) -> tuple[CompressorSpec | None, int, list[BytesBytesSpec]]:
    """Return the compressor of bytes-to-bytes codecs, the number of CRC-32C codecs after it, and all other codecs."""
    others = list(codecs)
    n_checksums = 0
    while others and others[-1] == ChecksumSpec(algorithm="crc32c"):
        others.pop()
        n_checksums += 1
    if others and isinstance(others[0], CompressorSpec):
        return others[0], n_checksums, others[1:]
    return None, n_checksums, others


def _encoding_functions(array: HostArray, compressor: CompressorSpec | None) -> NativeEncoder | None:
    """Return the C functions that encode chunks; None if the loops have none, or the chunks are too large for them."""
    name = "raw" if compressor is None else native_name(compressor)
    # The program describes the elements of a chunk, and decodes chunks of which a part is written.
    if name is None or array.program is None:
        return None
    functions = native_encoder(name)
    if functions is None:  # the codec's library does not export them, or the loops only decode the codec
        advise_of_slow_codecs()
        return None
    if name in ("lz4", "blosc") and array.chunk_nbytes > _MAX_CHUNK_NBYTES:
        return None
    return functions


def _encoder(
    array: HostArray, settings: dict[str, Any], functions: NativeEncoder, chunk_order: str, max_nbytes: int
) -> Encoder:
    """Return the encoder of an array whose encoded chunks have at most `max_nbytes` bytes.

    `settings` are fields of `EncoderStruct`, from `encoder_settings`; `chunk_order` is as for `make_encoder`.
    """
    spec, stored_dtype = array.spec, array.stored_dtype
    swap_steps = None  # changes the byte order of elements
    if not stored_dtype.isnative:
        swap_steps = Steps(stored_dtype.newbyteorder("="), [], stored_dtype)
    chunks_per_object = np.array(spec.grid.chunks_per_shard, np.int64)
    order = _order_chunks(chunk_order, spec.grid.chunks_per_shard)
    index = spec.index
    struct = EncoderStruct(
        swap=0 if swap_steps is None else swap_steps.address,
        **settings,
        encode=functions.encode,
        make_context=functions.make_context,
        free_context=functions.free_context,
        set_parameter=functions.set_parameter,
        most_nbytes=max_nbytes,
        n_numbers=_n_compared_numbers(spec.fill_value),
        swapped=not stored_dtype.isnative,
        n_entries=len(order),
        order=address(order),
        per_object=address(chunks_per_object),
        index_nbytes=index.nbytes if index else 0,
        index_is_first=index is not None and index.location == "start",
        index_has_checksum=index is not None and index.checksum,
    )
    referenced = (swap_steps, chunks_per_object, functions, settings)  # `settings` own the text of `cname`
    return Encoder(array=array, struct=struct, order=order, referenced=referenced)


def _n_compared_numbers(fill_value: np.ndarray[Any, Any] | np.generic) -> int:
    """Return the number of numbers in an element if the loops compare their values with those of the fill value.

    Returns 0 if they compare bits. The loops have to find the same chunks empty as zarr-python, which compares values,
    but of a real zero the bits, so that -0.0 is not 0.0.
    """
    if fill_value.dtype.kind == "c":
        return 2  # the real and the imaginary part
    if fill_value.dtype.kind == "f" and np.isnan(fill_value):
        return 1  # any NaN equals any other
    return 0  # a zero; or a number of which bits and values are equal in the same elements


def _order_chunks(chunk_order: str, shape: tuple[int, ...]) -> Column:
    """Return the chunks of a shard in the order in which they are stored. Chunks are numbered in C order.

    `chunk_order` is as for `make_encoder`, and `shape` is the number of chunks in a shard along each axis.
    """
    number = np.arange(math.prod(shape), dtype=np.int64)
    if chunk_order == "colexicographic":
        return np.ascontiguousarray(number.reshape(shape).T).reshape(-1)
    if chunk_order != "morton" or not shape:
        return number
    # Zarr v3 sharding: the bits of the coordinates are interleaved. The first axis has the lowest bit, and an axis has
    # as many bits as its longest coordinate.
    coordinates = np.unravel_index(number, shape)
    morton_code = np.zeros(len(number), np.uint64)
    position = 0
    for bit in range(max(shape).bit_length()):
        for coordinate, length in zip(coordinates, shape, strict=True):
            if bit < (length - 1).bit_length():
                bit_values = coordinate.astype(np.uint64) >> np.uint64(bit) & np.uint64(1)
                morton_code |= bit_values << np.uint64(position)
                position += 1
    return np.argsort(morton_code, kind="stable").astype(np.int64)
