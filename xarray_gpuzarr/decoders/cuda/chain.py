"""The chain of codecs that the device undoes for each chunk: one compressor, one shuffle, codecs of elements.

A codec of elements, such as delta, changes elements rather than bytes; a `Filter` of `cuda.filters` undoes it.

The chain follows from metadata alone. The host checks the checksums around stored chunks before the chunks cross to
the device. An array has no chain if its codecs come in another order, or if there is no kernel for one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from xarray_gpuzarr.cuda.axes import MAX_BOX
from xarray_gpuzarr.cuda.blosc import MAX_NBYTES as MAX_SHUFFLED_NBYTES
from xarray_gpuzarr.cuda.filters import Delta, ElementCodec, Filter, PackBits, Rule, why_no_filter
from xarray_gpuzarr.cuda.nvcomp_formats import fastest_format, zstd_temp_nbytes
from xarray_gpuzarr.decoders.cuda.batches.formats import ENVELOPES, longest_stream
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import aligned
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.codecs import (
    BloscSpec,
    ChecksumSpec,
    CompressorSpec,
    GzipSpec,
    ShuffleSpec,
    StageSpec,
    ZlibSpec,
    ZstdSpec,
    complete_table,
    encoded_nbytes,
)
from xarray_gpuzarr.stored.element_codecs import (
    AnyElementSpec,
    AsTypeSpec,
    CastValueSpec,
    DeltaSpec,
    ElementSpec,
    FixedScaleOffsetSpec,
    PackBitsSpec,
    ScaleOffsetSpec,
)

_MAX_TYPESIZE = 255
"""Largest length in bytes of an element that the kernel unshuffles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementStage:
    """A codec of elements, such as delta, as one step of a chain."""

    filter: Filter
    """Kernel that undoes it."""
    nbytes: int
    """Bytes of a chunk before this codec is undone, that is, encoded by it."""
    n_elements: int
    """Number of elements of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Codecs of each chunk, in the order in which they are undone."""

    checksums: tuple[ChecksumSpec, ...]
    """Checksums that the host checks and removes."""
    compressor: CompressorSpec | None
    shuffle: ShuffleSpec | None
    elements: tuple[ElementStage, ...]
    inner_nbytes: int
    """Bytes of a chunk after it is decompressed, before it is unshuffled."""
    chunk_nbytes: int
    """Bytes of a decoded chunk."""

    @property
    def reads_staged(self) -> bool:
        """Whether the first codec of elements reads chunks as they were staged."""
        return self.compressor is None and self.shuffle is None

    @property
    def step_nbytes(self) -> tuple[int, ...]:
        """For each codec of elements, the bytes of scratch memory that its input takes; 0 if it is read as staged."""
        nbytes = [stage.nbytes for stage in self.elements]
        if nbytes and self.reads_staged:
            nbytes[0] = 0
        return tuple(nbytes)


@lru_cache(maxsize=256)
def find_chain(spec: ArraySpec) -> Chain | str:
    """Return the chain of an array, or the reason why the device cannot decode it, in words."""
    remaining = deque(spec.codecs.stages)
    checksums = tuple(_take_leading(remaining, ChecksumSpec))
    compressor = next(_take_leading(remaining, CompressorSpec), None)
    shuffle = next(_take_leading(remaining, ShuffleSpec), None)
    elements = list(_take_leading(remaining, ElementSpec))
    if remaining:
        return f"{spec.codecs}: checksums, one compressor, one shuffle and codecs of elements are undone, in this order"
    stages: list[ElementStage] = []
    nbytes = spec.chunk_nbytes
    # The last codec gives decoded chunks, so lengths are found from the last one to the first.
    for codec in reversed(elements):
        stage = _element_stage(codec, nbytes)
        if isinstance(stage, str):
            return stage
        stages.insert(0, stage)
        nbytes = stage.nbytes
    why_not = _why_no_decompression(compressor, shuffle, nbytes)
    if why_not is not None:
        return why_not
    return Chain(
        checksums=checksums,
        compressor=compressor,
        shuffle=shuffle,
        elements=tuple(stages),
        inner_nbytes=nbytes,
        chunk_nbytes=spec.chunk_nbytes,
    )


def _take_leading(stages: deque[StageSpec], kind: Any) -> Iterator[Any]:
    """Yield the leading stages of a kind. Each is removed when it is drawn, so `next` removes one only."""
    while stages and isinstance(stages[0], kind):
        yield stages.popleft()


def _why_no_decompression(compressor: CompressorSpec | None, shuffle: ShuffleSpec | None, nbytes: int) -> str | None:
    """Return why the device cannot undo a compressor and a shuffle of chunks of `nbytes` bytes; None if it can."""
    if compressor is not None and not isinstance(compressor, BloscSpec) and ENVELOPES.get(type(compressor)) is None:
        return f"{compressor}: no decoder of the device knows it"
    if shuffle is not None and isinstance(compressor, BloscSpec):
        return f"{compressor}, then {shuffle}: chunks are unshuffled once"
    if shuffle is not None and (shuffle.elementsize > _MAX_TYPESIZE or nbytes % shuffle.elementsize):
        return f"{shuffle}: elements have up to {_MAX_TYPESIZE} bytes, and fill a chunk"
    if shuffle is not None and nbytes > MAX_SHUFFLED_NBYTES:
        return f"chunks of {nbytes} bytes, {shuffle} is decoded up to {MAX_SHUFFLED_NBYTES}"
    if compressor is not None and nbytes > longest_stream(compressor):
        return f"chunks of {nbytes} bytes, {compressor} is decoded up to {longest_stream(compressor)}"
    return None


def _element_stage(codec: ElementSpec, nbytes: int) -> ElementStage | str:
    """Return the stage of a codec that decodes a chunk to `nbytes` bytes, or why no kernel undoes it, in words."""
    encoded, decoded = np.dtype(codec.encoded), np.dtype(codec.decoded)
    stage_nbytes = encoded_nbytes(codec, nbytes)
    n_elements = nbytes // decoded.itemsize
    if stage_nbytes is None:
        return f"{codec}: chunks of {nbytes} bytes are no whole number of elements"
    if n_elements >= MAX_BOX:
        return f"{codec}: chunks of {n_elements} elements, the kernels handle fewer than {MAX_BOX}"
    filter_or_reason = why_no_filter(encoded, decoded) or _FILTERS[type(codec)](codec, encoded, decoded)
    if isinstance(filter_or_reason, str):
        return f"{codec}: {filter_or_reason}"
    return ElementStage(filter=filter_or_reason, nbytes=stage_nbytes, n_elements=n_elements)


DType = np.dtype[Any]


def _scale_filter(codec: FixedScaleOffsetSpec | ScaleOffsetSpec, encoded: DType, decoded: DType) -> Filter:
    # FixedScaleOffset always divides with "/"; scale_offset has integer arithmetic for integers.
    is_floating = isinstance(codec, FixedScaleOffsetSpec) or decoded.kind == "f"
    rule: Rule = "scaled" if is_floating else "scaled_integer"
    return ElementCodec(rule=rule, encoded=encoded, decoded=decoded, scale=codec.scale, offset=codec.offset)


def _delta_filter(_: DeltaSpec, encoded: DType, decoded: DType) -> Filter | str:
    delta = Delta(encoded=encoded, decoded=decoded)
    # The kernels convert sums only to another length, not to another kind of number.
    kinds = "f" if delta.arithmetic_dtype.kind == "f" else "iu"
    if decoded.kind not in kinds:
        return f"NumPy adds up elements of {delta.arithmetic_dtype}, and no kernel converts such sums to {decoded}"
    return delta


def _cast_value_filter(codec: CastValueSpec, encoded: DType, decoded: DType) -> Filter | str:
    if np.dtype("f2") in (encoded.newbyteorder("="), decoded.newbyteorder("=")):
        return "no kernel for float16"
    if codec.scalar_map and encoded.kind == "f":
        return "no kernel for a scalar map of floating numbers"
    # NumPy calls the cast of 8-byte integers to float64 safe, although it rounds.
    is_exact = np.can_cast(encoded, decoded) and not (encoded.kind in "iu" and encoded.itemsize == 8)
    if decoded.kind == "f" and codec.rounding != "nearest-even" and not is_exact:
        return f"no kernel rounds floating numbers {codec.rounding}"
    mapped = tuple((int(key), value) for key, value in codec.numbers.items())
    return ElementCodec(rule="cast_value", encoded=encoded, decoded=decoded, rounding=codec.rounding, mapped=mapped)


_FILTERS: dict[type, Callable[[Any, DType, DType], Filter | str]] = complete_table(
    AnyElementSpec,
    {
        AsTypeSpec: lambda _, encoded, decoded: ElementCodec(rule="astype", encoded=encoded, decoded=decoded),
        CastValueSpec: _cast_value_filter,
        DeltaSpec: _delta_filter,
        FixedScaleOffsetSpec: _scale_filter,
        PackBitsSpec: lambda *_: PackBits(),
        ScaleOffsetSpec: _scale_filter,
    },
)
"""Class of a codec of elements -> function that returns its filter, or why no kernel undoes it, in words.

The arguments are the codec, its encoded dtype and its decoded dtype.
"""


@lru_cache(maxsize=256)
def chunk_device_nbytes(spec: ArraySpec) -> int:
    """Return the bytes of device memory that one chunk of a batch takes: encoded, decoded, and scratch memory.

    The array that the read returns is not counted. Each part is rounded up to a multiple of 16. An encoded chunk is
    taken to be as long as it is after decompression.
    """
    chain = require_chain(spec)
    compressor, inner_nbytes = chain.compressor, aligned(chain.inner_nbytes)
    nbytes = inner_nbytes + aligned(chain.chunk_nbytes) + sum(map(aligned, chain.step_nbytes))
    if isinstance(compressor, ZstdSpec | BloscSpec):  # a Blosc frame may hold zstd streams
        nbytes += zstd_temp_nbytes(1, inner_nbytes)
    if isinstance(compressor, GzipSpec) and fastest_format("gzip", inner_nbytes) != "gzip":
        # An estimate of nvCOMP's scratch memory: the library tells its length only on a machine with a GPU.
        nbytes += inner_nbytes
    if isinstance(compressor, GzipSpec | ZlibSpec | BloscSpec) or (compressor is None and chain.elements):
        nbytes += inner_nbytes  # a copy at an aligned address, which streams of these formats and raw elements may need
    if isinstance(compressor, BloscSpec) or (compressor is not None and chain.shuffle is not None):
        nbytes += inner_nbytes  # the decompressed chunk, before it is unshuffled
    return nbytes


def require_chain(spec: ArraySpec) -> Chain:
    """Return the chain of an array that must have one: `routes.route` sends all other arrays to the host."""
    chain = find_chain(spec)
    if isinstance(chain, str):
        raise TypeError(chain)
    return chain


def why_host_checks(chain: Chain) -> str | None:
    """Return why the host must see the bytes of a chain's chunks before they are decoded; None if it need not."""
    if chain.checksums:
        return "checksums around chunks are checked on the host"
    if chain.compressor is not None and not isinstance(chain.compressor, ZstdSpec):
        return f"the headers of {chain.compressor} are checked on the host"
    return None
