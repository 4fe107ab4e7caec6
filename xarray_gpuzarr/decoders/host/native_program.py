"""Programs of the compiled loops: how a chunk's bytes become the elements of the output.

A program consists of a compressor, stages that work on a whole chunk, and steps that work on elements while they are
placed (`native_steps`). `native_program` returns None for codecs that the loops do not know; Python then decodes all
chunks of the read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from xarray_gpuzarr.decoders.host.compressors import HOST_COMPRESSORS, advise_of_slow_codecs, native_name
from xarray_gpuzarr.decoders.host.native_steps import (
    DTYPES,
    NotKnownError,
    Step,
    Steps,
    conversion,
    dtype_name,
    steps_of_cast,
    steps_of_filter,
    sums_like_numpy,
    swapped_nbytes,
)
from xarray_gpuzarr.native.codec_functions import NativeCodec, native_codec
from xarray_gpuzarr.native.structs import JobStruct, StageStruct
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    BytesBytesSpec,
    ChecksumSpec,
    PipelineSpec,
    ShuffleSpec,
    StageSpec,
    encoded_nbytes,
)
from xarray_gpuzarr.stored.element_codecs import DeltaSpec, ElementSpec

_PartialDecoding = Literal["all", "up to", "blocks"]
"""Part of a chunk that the loops decode where only a part is requested: all of it, all up to the last requested
element, or only the blocks that hold requested elements."""
_UNSHUFFLE, _ACCUMULATE, _TAKE_STEPS = range(3)
"""Kinds of stages: `enum stage` in `job.h`."""
_HEAD_NBYTES, _ALIGNMENT = 32, 64
"""Bytes in front of an area of scratch, where `unshuffle` in `codecs.h` writes a header (`HEAD_NBYTES` there), and the
alignment of areas."""
_LEAST_PARTED_NBYTES = 32 * 1024
"""Chunks shorter than this are always decoded as a whole; `LEAST_PARTED_NBYTES` in `codecs.h`."""
_MAX_BLOCK_NBYTES, _MAX_TYPESIZE = 512 * 1024 * 1024, 255
"""Longest block, and longest elements, that the loops unshuffle, in bytes. The first is a round number below C-Blosc's
own limit, BLOSC_MAX_BLOCKSIZE; the second is BLOSC_MAX_TYPESIZE."""


@record
class NativeProgram:
    """Operations of the loops on every chunk of a read."""

    placed_dtype: np.dtype[Any]
    """Dtype of a chunk's elements when they are placed, before the steps."""
    is_copied: bool
    """Whether chunks are only copied: they have no checksum, compressor or filter, and elements are not converted."""
    decodes: _PartialDecoding
    """Part of a chunk that is decoded where only a part is requested."""
    scratch_nbytes: int
    """Scratch of each thread in bytes: one area, or two if whole chunks or blocks are changed after decompression."""
    struct: JobStruct
    """The program in a form that the loops take. It describes no output."""
    referenced: object
    """Keeps the memory that `struct` points to alive."""

    def strides(self, spec: ArraySpec) -> tuple[int, ...]:
        """Return the strides in bytes of a chunk's elements when they are placed, along the axes of the array."""
        return tuple(stride // spec.numpy_dtype.itemsize * self.placed_dtype.itemsize for stride in spec.chunk_strides)


@lru_cache(maxsize=256)
def native_program(
    codecs: PipelineSpec, chunk_nbytes: int, stored_dtype: np.dtype[Any], cast: Cast
) -> NativeProgram | None:
    """Return the program for the chunks of an array.

    Returns None if the loops do not know a codec or a conversion, or if chunks have no bytes.

    Parameters
    ----------
    codecs : PipelineSpec
        Codecs of a chunk.
    chunk_nbytes : int
        Length in bytes of a decoded chunk.
    stored_dtype : numpy.dtype
        Dtype of a decoded chunk's elements.
    cast : Cast
        Conversion of stored elements to those of the result.
    """
    if codecs.other is not None or not chunk_nbytes:
        return None
    try:
        return _program(list(codecs.stages), chunk_nbytes, stored_dtype, cast)
    except NotKnownError:
        return None


def _program(stages: list[StageSpec], chunk_nbytes: int, stored_dtype: np.dtype[Any], cast: Cast) -> NativeProgram:
    """Return the program for `stages`, in the order of decoding; the list is consumed. Raises `NotKnownError`."""
    out_dtype = np.dtype(cast.dtype)
    placed_dtype, placed_nbytes, steps = _take_steps(stages, stored_dtype, chunk_nbytes, cast)
    # Without steps, the bytes of an element stay the same, except perhaps for their order.
    keeps_elements = not steps and swapped_nbytes(placed_dtype) == swapped_nbytes(out_dtype)
    n_checksums = _take_checksums(stages)
    compressor = stages.pop(0) if stages and type(stages[0]) in HOST_COMPRESSORS else None
    codec = _codec_of(compressor)
    lengths = _decoded_lengths(stages, placed_nbytes)
    stage_structs, stage_memory = _stage_structs(stages, lengths[1:])
    area_nbytes = -(-(_HEAD_NBYTES + max(lengths)) // _ALIGNMENT) * _ALIGNMENT  # rounded up
    inflate = _inflating_codec(compressor)
    native_steps = None if keeps_elements else Steps(placed_dtype, steps, out_dtype)
    struct = JobStruct(
        codec=codec.number,
        chunk_nbytes=placed_nbytes,
        itemsize=placed_dtype.itemsize,
        packed_nbytes=lengths[0],
        n_stages=len(stages),
        n_checksums=n_checksums,
        out_itemsize=out_dtype.itemsize,
        area_nbytes=area_nbytes,
        decode=codec.decode,
        make_context=codec.make_context or inflate.make_context,
        free_context=codec.free_context or inflate.free_context,
        decode_part=codec.decode_part,
        restart=codec.restart,
        unshuffle=_unshuffle_address(stages, inflate),
        inflate=inflate.decode,
        stages=ctypes.addressof(stage_structs),
        steps=0 if native_steps is None else native_steps.address,
    )
    decodes_parts = codec.decode_part and not stages and placed_nbytes >= _LEAST_PARTED_NBYTES
    return NativeProgram(
        placed_dtype=placed_dtype,
        is_copied=compressor is None and not stages and not n_checksums and keeps_elements,
        decodes=_partial_decoding(compressor) if decodes_parts else "all",
        scratch_nbytes=area_nbytes * 2 if stages or inflate.decode else area_nbytes,
        struct=struct,
        referenced=(stage_structs, stage_memory, native_steps),
    )


def _take_steps(
    stages: list[StageSpec], dtype: np.dtype[Any], chunk_nbytes: int, cast: Cast
) -> tuple[np.dtype[Any], int, list[Step]]:
    """Remove the last filters from `stages` as far as steps can decode them. Return these steps and those of the cast.

    `dtype` is the dtype of the elements that are cast, and `chunk_nbytes` the length of a chunk of them. Returns dtype
    and length of a chunk before all steps, and the steps.
    """
    is_cast = not cast.only_converts or dtype != np.dtype(cast.dtype)
    steps = steps_of_cast(dtype, cast) if is_cast else []
    while stages:
        spec = stages[-1]
        if not isinstance(spec, ElementSpec) or np.dtype(spec.decoded) != dtype:
            break
        try:
            filter_steps = steps_of_filter(spec)
        except NotKnownError:
            break
        stages.pop()
        steps = filter_steps + steps
        dtype = np.dtype(spec.encoded)
        chunk_nbytes = _encoded_nbytes(spec, chunk_nbytes)
    return dtype, chunk_nbytes, steps


def _take_checksums(stages: list[StageSpec]) -> int:
    """Remove the leading CRC-32C checksums from `stages`, and return their number."""
    n_checksums = 0
    while stages and stages[0] == ChecksumSpec(algorithm="crc32c"):
        stages.pop(0)
        n_checksums += 1
    return n_checksums


def _codec_of(compressor: BytesBytesSpec | None) -> NativeCodec:
    """Return the functions that decode the frames of a compressor, or raw bytes if it is None.

    If there are no such functions, warns of all codecs whose library does not export its functions, once in a process,
    and raises `NotKnownError`.
    """
    name = "raw" if compressor is None else native_name(compressor)
    codec = None if name is None else native_codec(name)
    if codec is None:
        advise_of_slow_codecs()
        raise NotKnownError
    return codec


def _inflating_codec(compressor: BytesBytesSpec | None) -> NativeCodec:
    """Return the codec of zlib if a compressor is Blosc with zlib inside; else a codec whose addresses are all 0.

    The loops then decode the blocks of Blosc frames with it, in half of the time that C-Blosc takes.
    """
    codec = None
    if isinstance(compressor, BloscSpec) and compressor.cname == "zlib":
        codec = native_codec("zlib")
    return codec or NativeCodec(number=0)


def _partial_decoding(compressor: BytesBytesSpec | None) -> _PartialDecoding:
    """Return the part of a chunk that a codec with `decode_part` decodes."""
    return "blocks" if isinstance(compressor, BloscSpec) else "up to"


def _decoded_lengths(stages: Sequence[StageSpec], chunk_nbytes: int) -> list[int]:
    """Return the number of bytes that the compressor decodes to, and that of each of `stages`, which follow it.

    `chunk_nbytes` is that of the last one. Raises `NotKnownError` if a length varies.
    """
    lengths = [chunk_nbytes]
    for spec in reversed(stages):
        lengths.insert(0, _encoded_nbytes(spec, lengths[0]))
    return lengths


def _encoded_nbytes(spec: StageSpec, nbytes: int) -> int:
    """Return the encoded length of `nbytes` decoded bytes. Raises `NotKnownError` if it varies."""
    length = encoded_nbytes(spec, nbytes)
    if length is None:
        raise NotKnownError
    return length


def _stage_structs(
    stages: Sequence[StageSpec], decoded_nbytes: Sequence[int]
) -> tuple[ctypes.Array[StageStruct], object]:
    """Return the structs of stages, given the number of bytes that each decodes to, and what keeps their memory alive.

    Raises `NotKnownError` as `_stage_struct` does.
    """
    structs_and_memory = [_stage_struct(spec, nbytes) for spec, nbytes in zip(stages, decoded_nbytes, strict=True)]
    structs = (StageStruct * len(stages))(*(struct for struct, _ in structs_and_memory))
    return structs, structs_and_memory


def _stage_struct(spec: StageSpec, nbytes: int) -> tuple[StageStruct, object]:
    """Return the struct of a stage that decodes to `nbytes` bytes, and what keeps its memory alive.

    Raises `NotKnownError` if the loops do not know the stage, or not for chunks of this length.
    """
    if isinstance(spec, ShuffleSpec):
        if spec.elementsize > _MAX_TYPESIZE or nbytes > _MAX_BLOCK_NBYTES:
            raise NotKnownError
        return StageStruct(kind=_UNSHUFFLE, nbytes=nbytes, elementsize=spec.elementsize), None
    if not isinstance(spec, ElementSpec):
        raise NotKnownError
    encoded, decoded = np.dtype(spec.encoded), np.dtype(spec.decoded)
    dtype = DTYPES.index(dtype_name(decoded))
    if isinstance(spec, DeltaSpec):
        native = decoded.newbyteorder("=")
        if not sums_like_numpy(encoded, native):
            raise NotKnownError
        # The loops convert elements, add them up in native byte order, and then swap their bytes.
        steps = Steps(encoded, conversion(dtype_name(encoded), dtype_name(decoded)), native)
        swap = swapped_nbytes(decoded)
        return StageStruct(kind=_ACCUMULATE, nbytes=nbytes, dtype=dtype, swap=swap, steps=steps.address), steps
    steps = Steps(encoded, steps_of_filter(spec), decoded)
    return StageStruct(kind=_TAKE_STEPS, nbytes=nbytes, dtype=dtype, steps=steps.address), steps


def _unshuffle_address(stages: Sequence[StageSpec], inflate: NativeCodec) -> int:
    """Return the address of C-Blosc's decoder; 0 if nothing is shuffled. Raises `NotKnownError` if there is none.

    The loops write a header in front of shuffled bytes, so that they are a frame without compression. Decoding this
    frame unshuffles the bytes.
    """
    # Blocks of a Blosc frame are still shuffled after `inflate` has decoded them.
    if not inflate.decode and not any(isinstance(spec, ShuffleSpec) for spec in stages):
        return 0
    codec = native_codec("blosc")
    if codec is None:
        raise NotKnownError
    return codec.decode
