"""Programs for the compiled loops: the compressor of a chunk, stages for the whole chunk, steps of its elements.

Whatever is not in these tables is left to Python, a whole read at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from xarray_gpuzarr.decoders.host.compressors import HOST_COMPRESSORS, advise_of_slow_codecs, native_name
from xarray_gpuzarr.native.codec_functions import NativeCodec, native_codec
from xarray_gpuzarr.native.structs import JobStruct, StageStruct, StepsStruct, StepStruct
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.codecs import (
    AsTypeSpec,
    BloscSpec,
    ChecksumSpec,
    DeltaSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    PipelineSpec,
    ScaleOffsetSpec,
    ShuffleSpec,
    StageSpec,
    encoded_nbytes,
)

_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
"""In the order of `enum dtype`."""
_CONVERT, _MASK, _MULTIPLY, _DIVIDE, _ADD = range(5)
_UNSHUFFLE, _ACCUMULATE, _TAKE_STEPS = range(3)
_MOST_MASKED = 4
_HEAD_NBYTES, _ALIGNMENT = 32, 64
_LEAST_PARTED_NBYTES = 32 * 1024
"""Length of the shortest chunk of which a part is decoded; `LEAST_PARTED_NBYTES` of `loops.c`."""
_MOST_NBYTES, _MOST_TYPESIZE = 512 * 1024 * 1024, 255
"""Length of the longest block that C-Blosc unshuffles, and of its longest elements."""

_Step = tuple[int, str, str | None, tuple[Any, ...]]
"""Kind, dtype that it is given, dtype afterwards, and numbers."""


class _NotKnownError(Exception):
    """The loops have nothing for it."""


def _native(dtype: np.dtype[Any]) -> str:
    """Return a dtype as the loops name it, without its byte order."""
    name = f"{dtype.kind}{dtype.itemsize}"
    if name not in _DTYPES:
        raise _NotKnownError
    return name


def _swapped(dtype: np.dtype[Any]) -> int:
    """Return the length of what is to be reversed of each element; 0 if it has the byte order of this machine."""
    if dtype.isnative or dtype.itemsize == 1:
        return 0
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _conversion(before: str, after: str) -> list[_Step]:
    """Return the steps from one dtype to another, each of which NumPy takes as well."""
    if before == after or (before[0] in "iu" and after[0] in "iu" and before[1:] == after[1:]):
        return []
    via = {"f2": "f4", "c8": "f4", "c16": "f8"}.get(after)
    is_direct = via in (None, before) or before[0] == "c" or (before[0] == "f" and after == "f2")
    path = [before, after] if is_direct or via is None else [before, via, after]
    for one, other in pairwise(path):
        narrows = one[0] in "fc" and other[0] in "iu"  # beyond what fits, C has no answer and NumPy has several
        if narrows or (one[0] == "c" and other[0] != "c"):
            raise _NotKnownError
    return [(_CONVERT, one, other, ()) for one, other in pairwise(path)]


def _arithmetic(kind: int, dtype: str, number: Any) -> _Step:
    if dtype[0] not in "fc" or (dtype[0] == "c" and kind != _ADD) or number != number:  # noqa: PLR0124  # NaN
        raise _NotKnownError
    if isinstance(number, complex) and dtype[0] != "c":
        raise _NotKnownError
    return kind, dtype, None, (number,)


def _steps_of_filter(spec: ElementSpec) -> list[_Step]:
    """Return what decodes elements one by one; raises `_NotKnownError`."""
    encoded, decoded = np.dtype(spec.encoded), np.dtype(spec.decoded)
    before, after = _native(encoded), _native(decoded)
    if isinstance(spec, AsTypeSpec):
        return _conversion(before, after)
    if isinstance(spec, ScaleOffsetSpec) and after[0] == "f" and before == after:
        return [_arithmetic(_DIVIDE, after, spec.scale), _arithmetic(_ADD, after, spec.offset)]
    if isinstance(spec, FixedScaleOffsetSpec):
        between = _native(np.true_divide(np.zeros(0, encoded), spec.scale).dtype)
        shift = [_arithmetic(_DIVIDE, between, spec.scale), _arithmetic(_ADD, between, spec.offset)]
        return [*_conversion(before, between), *shift, *_conversion(between, after)]
    raise _NotKnownError


def _steps_of_cast(stored: np.dtype[Any], cast: Cast) -> list[_Step]:
    """Return what a cast does to stored elements; raises `_NotKnownError`."""
    before, after = _native(cast.seen_as(stored)), _native(np.dtype(cast.arithmetic_dtype))
    steps = _conversion(before, after)
    if cast.mask and after[0] not in "fc":
        raise _NotKnownError
    for at in range(0, len(cast.mask), _MOST_MASKED):
        steps.append((_MASK, after, None, cast.mask[at : at + _MOST_MASKED]))
    if cast.scale is not None:
        steps.append(_arithmetic(_MULTIPLY, after, cast.scale))
    if cast.offset is not None:
        steps.append(_arithmetic(_ADD, after, cast.offset))
    return steps + _conversion(after, _native(np.dtype(cast.dtype)))


class Steps:
    """Steps as the loops take them, and the memory that they lie in."""

    def __init__(self, before: np.dtype[Any], steps: Sequence[_Step], after: np.dtype[Any]) -> None:
        structs = []
        for kind, dtype, to, numbers in steps:
            try:
                values = np.array(numbers, dtype).tobytes()
            except OverflowError as err:
                raise _NotKnownError from err
            dtypes = {"dtype": _DTYPES.index(dtype), "to": _DTYPES.index(to or dtype)}
            structs.append(StepStruct(kind=kind, **dtypes, n_values=len(numbers), values=values))
        self._steps = (StepStruct * len(steps))(*structs)
        self.struct = StepsStruct(
            steps=ctypes.addressof(self._steps),
            n_steps=len(steps),
            in_itemsize=before.itemsize,
            out_itemsize=after.itemsize,
            in_swap=_swapped(before),
            out_swap=_swapped(after),
        )
        self.address = ctypes.addressof(self.struct)


@record
class NativeProgram:
    """Operations of the loops on every chunk of a read."""

    placed: np.dtype[Any]
    """Dtype of a chunk's elements as they are placed."""
    is_copied: bool
    """Whether chunks are neither compressed nor changed."""
    changes_elements: bool
    """Whether elements are changed as they are placed."""
    decodes: Literal["all", "up to", "blocks"]
    """Part of a chunk that the loops decode if a part is wanted: all of it, all up to the last wanted element, or only
    the blocks that hold wanted elements."""
    scratch_nbytes: int
    """Scratch of each thread in bytes: an area that is read, and one that is written if anything is done to whole
    chunks or blocks."""
    struct: JobStruct
    """All this as the loops take it."""
    kept: object
    """Memory that `stages` and `struct` point to."""

    def strides(self, spec: ArraySpec) -> tuple[int, ...]:
        """Return the strides of a chunk's elements as they are placed, along the axes of the array, in bytes."""
        return tuple(stride // spec.numpy_dtype.itemsize * self.placed.itemsize for stride in spec.chunk_strides)


@lru_cache(maxsize=256)
def native_program(codecs: PipelineSpec, chunk_nbytes: int, stored: np.dtype[Any], cast: Cast) -> NativeProgram | None:
    """Return what the loops do to the chunks of a read; None where they do not know how.

    `chunk_nbytes` is of a decoded chunk, `stored` the dtype of its elements.
    """
    if codecs.other is not None or not chunk_nbytes:
        return None
    try:
        return _program(list(codecs.stages), chunk_nbytes, stored, cast)
    except _NotKnownError:
        return None


def _program(stages: list[StageSpec], chunk_nbytes: int, stored: np.dtype[Any], cast: Cast) -> NativeProgram:
    out = np.dtype(cast.dtype)
    placed, steps = stored, [] if cast.is_copy and stored == out else _steps_of_cast(stored, cast)
    while stages and (fused := _fused(stages[-1], placed)) is not None:
        spec = stages.pop()
        assert isinstance(spec, ElementSpec)
        placed, steps = np.dtype(spec.encoded), fused + steps
        chunk_nbytes = _encoded(spec, chunk_nbytes)
    is_copy = not steps and _swapped(placed) == _swapped(out)
    n_checksums = 0
    while stages and stages[0] == ChecksumSpec(algorithm="crc32c"):
        stages.pop(0)
        n_checksums += 1
    compressor = stages.pop(0) if stages and type(stages[0]) in HOST_COMPRESSORS else None
    name = "raw" if compressor is None else native_name(compressor)
    codec = None if name is None else native_codec(name)
    if codec is None:
        advise_of_slow_codecs()
        raise _NotKnownError
    lengths = [chunk_nbytes]
    for spec in reversed(stages):
        lengths.insert(0, _encoded(spec, lengths[0]))
    stage_structs = [*_stages(stages, lengths[1:])]
    shuffles = any(isinstance(spec, ShuffleSpec) for spec in stages)
    area_nbytes = -(-(_HEAD_NBYTES + max(lengths)) // _ALIGNMENT) * _ALIGNMENT
    # zlib inside of Blosc is decoded in half the time that C-Blosc takes.
    of_zlib = isinstance(compressor, BloscSpec) and compressor.cname == "zlib"
    inflating = (native_codec("zlib") if of_zlib else None) or NativeCodec(number=0)
    structs = (StageStruct * len(stage_structs))(*(struct for struct, _ in stage_structs))
    taken = None if is_copy else Steps(placed, steps, out)
    codec_parts: Literal["up to", "blocks"] = "blocks" if isinstance(compressor, BloscSpec) else "up to"
    struct = JobStruct(
        codec=codec.number,
        chunk_nbytes=chunk_nbytes,
        itemsize=placed.itemsize,
        packed_nbytes=lengths[0],
        n_stages=len(stage_structs),
        n_checksums=n_checksums,
        out_itemsize=out.itemsize,
        area_nbytes=area_nbytes,
        decode=codec.decode,
        make_context=codec.make_context or inflating.make_context,
        free_context=codec.free_context or inflating.free_context,
        decode_part=codec.decode_part,
        restart=codec.restart,
        unshuffle=_unshuffle() if shuffles or inflating.decode else 0,
        inflate=inflating.decode,
        stages=ctypes.addressof(structs),
        steps=0 if taken is None else taken.address,
    )
    return NativeProgram(
        placed=placed,
        changes_elements=not is_copy,
        is_copied=codec.number == 0 and not stage_structs and not n_checksums and is_copy,
        decodes="all" if stage_structs or not codec.decode_part or chunk_nbytes < _LEAST_PARTED_NBYTES else codec_parts,
        scratch_nbytes=area_nbytes * (2 if stage_structs or inflating.decode else 1),
        struct=struct,
        kept=(stage_structs, structs, taken),
    )


def _fused(spec: StageSpec, decoded: np.dtype[Any]) -> list[_Step] | None:
    """Return the steps of a filter that decodes elements as they are placed; None if it is none."""
    if not isinstance(spec, ElementSpec) or np.dtype(spec.decoded) != decoded:
        return None
    try:
        return _steps_of_filter(spec)
    except _NotKnownError:
        return None


def _encoded(spec: StageSpec, nbytes: int) -> int:
    length = encoded_nbytes(spec, nbytes)
    if length is None:
        raise _NotKnownError
    return length


def _stages(stages: Sequence[StageSpec], lengths: Sequence[int]) -> Iterator[tuple[StageStruct, object]]:
    """Return stages, given how many bytes each gives, and what they point to."""
    for spec, nbytes in zip(stages, lengths, strict=True):
        if isinstance(spec, ShuffleSpec):
            if spec.elementsize > _MOST_TYPESIZE or nbytes > _MOST_NBYTES:
                raise _NotKnownError
            yield StageStruct(kind=_UNSHUFFLE, nbytes=nbytes, elementsize=spec.elementsize), None
        elif isinstance(spec, ElementSpec):
            encoded, decoded = np.dtype(spec.encoded), np.dtype(spec.decoded)
            native = decoded.newbyteorder("=")
            if isinstance(spec, DeltaSpec):
                steps = Steps(encoded, _conversion(_native(encoded), _native(decoded)), native)
                kind, swap = _ACCUMULATE, _swapped(decoded)
            else:
                steps, kind, swap = Steps(encoded, _steps_of_filter(spec), decoded), _TAKE_STEPS, 0
            if kind == _ACCUMULATE and not _adds_up(encoded, native):
                raise _NotKnownError
            dtype = _DTYPES.index(_native(decoded))
            yield StageStruct(kind=kind, nbytes=nbytes, dtype=dtype, swap=swap, steps=steps.address), steps
        else:
            raise _NotKnownError


def _adds_up(encoded: np.dtype[Any], decoded: np.dtype[Any]) -> bool:
    """Say whether elements that are converted before they are added up give what NumPy gives, which adds up in both.

    int32 and float32 are added as float64, and rounded after; integers of any width wrap around alike.
    """
    is_summed = decoded.kind in "iu" or decoded.str[1:] in ("f4", "f8")
    both = np.result_type(encoded, decoded)
    return is_summed and (both == decoded or both.kind in "iu")


def _unshuffle() -> int:
    codec = native_codec("blosc")
    if codec is None:
        raise _NotKnownError
    return codec.decode
