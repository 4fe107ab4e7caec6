"""Filters on the GPU: codecs of elements, undone for whole batches of chunks at a time.

Each class is one codec, ready to launch. The caller copies the `words` of a codec, the parameters of its kernel, to
device memory. This module knows no Zarr; the CUDA decoder uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceApi, Kernel, Stream
from xarray_gpuzarr.cuda.axes import MAX_BLOCKS, N_THREADS
from xarray_gpuzarr.cuda.cast import REAL_DTYPES, Words, dtype_name, pad_words

Rule = Literal["astype", "scaled", "scaled_integer", "cast_value"]
"""How ``element_codec.cu`` turns an encoded element into a decoded one."""
Rounding = Literal["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]
"""How floating numbers are rounded, in the order of ``Rounding`` in ``element_codec.cu``."""

_ELEMENTS_PER_TILE = 16 * N_THREADS
"""Number of elements that a block of threads decodes. It must be ``n_per_tile`` of ``element_codec.cu``."""
_BOOLEANS_PER_TILE = 32 * N_THREADS
"""Number of booleans that a block of threads unpacks. It must be ``n_per_tile`` of ``packbits.cu``."""
_N_FLOAT_DELTA_THREADS = 64
"""Number of threads in a block of ``float_delta.cu``, which is written for two warps."""
_DELTA_KERNELS = {
    (encoded, decoded): Kernel(file="delta.cu", name="delta", defines=(("FROM", str(encoded)), ("TO", str(decoded))))
    for encoded in (1, 2, 4, 8)
    for decoded in (1, 2, 4, 8)
}
"""Kernel for each pair of lengths in bytes, of an encoded and of a decoded element."""
_DELTA_TILE = 4096
"""Number of elements in one tile of ``delta.cu``, or in two if elements have 8 bytes. A segment, which is the part of a
chunk that one block of threads decodes, has a multiple of this number, except the last segment of a chunk."""
_WHOLE, _SUMS, _OFFSETS, _SEGMENTS = range(4)
"""Steps of ``delta.cu``, numbered as in its ``Step``. Chunks of one segment take `_WHOLE`, others the other three."""
_LEAST_TILES = 4
"""Length of the shortest segment if chunks are split into segments, in multiples of `_DELTA_TILE`."""
_ENOUGH_BLOCKS = 1056
"""Number of blocks of `N_THREADS` threads that fill an H100 or H200: 132 multiprocessors with 2048 threads each."""
_FLOAT_DELTA_KERNELS = {
    name: Kernel(file="float_delta.cu", name="float_delta", defines=(("SUM", name),)) for name in ("f2", "f4", "f8")
}
_PACKBITS = Kernel(file="packbits.cu", name="packbits")


def filter_kernels() -> list[Kernel]:
    """Return all kernels of this module, in all their variants."""
    pairs = [(encoded, decoded) for encoded in REAL_DTYPES for decoded in REAL_DTYPES]
    pairs_of_rule: dict[Rule, list[tuple[str, str]]] = {
        "astype": pairs,
        "scaled": pairs,
        "scaled_integer": [(name, name) for name in REAL_DTYPES if name[0] in "iu"],
        # The codec has no booleans, and `decoders.cuda.chain` leaves float16 to the host.
        "cast_value": [pair for pair in pairs if not {"b1", "f2"} & set(pair)],
    }
    codecs = []
    for rule, dtypes in pairs_of_rule.items():
        codecs += [_element_kernel(encoded, decoded, rule) for encoded, decoded in dtypes]
    return [*_DELTA_KERNELS.values(), *_FLOAT_DELTA_KERNELS.values(), _PACKBITS, *codecs]


def _element_kernel(encoded: str, decoded: str, rule: Rule) -> Kernel:
    defines = (("ENCODED", encoded), ("DECODED", decoded), ("RULE", rule))
    return Kernel(file="element_codec.cu", name="element_codec", defines=defines)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterChunks:
    """The chunks of one launch, in device memory."""

    table: Address
    """uint64, shape (2, n): addresses of encoded and of decoded chunks, aligned to their elements."""
    n: int
    """Number of chunks."""
    n_elements: int
    """Number of elements of every chunk; fewer than 2**31."""
    flags: Address
    """uint64, shape (n,): must hold zeros. The kernel writes 1 for each chunk that is damaged, or holds an element that
    the host has to decode."""
    words: Address
    """The codec's `words`."""


class Filter(Protocol):
    """A codec of elements."""

    @property
    def words(self) -> Words:
        """Parameters of the kernel, to be copied to device memory."""

    def launch(self, api: DeviceApi, stream: Stream, chunks: FilterChunks) -> None:
        """Decode chunks on a stream.

        Raises
        ------
        ValueError
            If one launch cannot have so many blocks of threads.
        """


def why_no_filter(*dtypes: np.dtype[Any]) -> str | None:
    """Return why the kernels do not decode elements of some dtypes, in words; None if they do."""
    return next((f"elements of {dtype}" for dtype in dtypes if dtype_name(dtype) not in REAL_DTYPES), None)


@dataclass(frozen=True, kw_only=True)
class ElementCodec:
    """A codec that decodes each element by itself."""

    encoded: np.dtype[Any]
    """Dtype of encoded elements, with their byte order."""
    decoded: np.dtype[Any]
    """Dtype of decoded elements, with their byte order."""
    rule: Rule
    rounding: Rounding = "nearest-even"
    """How the rule ``cast_value`` rounds; the other rules ignore it."""
    scale: float = 1
    """Scale of the rules ``scaled`` and ``scaled_integer``; representable in `arithmetic_dtype` without rounding."""
    offset: float = 0
    """Offset of the same rules; representable in `arithmetic_dtype` without rounding."""
    mapped: tuple[tuple[int, float], ...] = ()
    """Exceptions to the rule ``cast_value``: pairs of an encoded integer and the value that it decodes to."""

    @property
    def arithmetic_dtype(self) -> np.dtype[Any]:
        """Dtype in which the rules ``scaled`` and ``scaled_integer`` compute."""
        if self.encoded.kind == "f" or self.rule == "scaled_integer":
            return self.encoded.newbyteorder("=")
        return np.dtype("f8")

    @cached_property
    def words(self) -> Words:
        """Fields of ``struct Codec``, followed by the mapped numbers and their values."""
        rounding = get_args(Rounding).index(self.rounding)
        encoded, decoded = self.encoded.newbyteorder("="), self.decoded.newbyteorder("=")
        with np.errstate(all="ignore"):  # a mapped value may overflow to infinity
            scale = _word(np.array([self.scale]).astype(self.arithmetic_dtype))
            offset = _word(np.array([self.offset]).astype(self.arithmetic_dtype))
            mapped = []
            for key, value in self.mapped:
                mapped += [_word(np.array([key], encoded)), _word(np.array([value]).astype(decoded))]
        swaps = [_swap_nbytes(self.encoded), _swap_nbytes(self.decoded)]
        return np.array([*swaps, rounding, scale, offset, len(self.mapped), *mapped], np.uint64)

    def launch(self, api: DeviceApi, stream: Stream, chunks: FilterChunks) -> None:
        """Decode chunks; see `Filter.launch`."""
        n_tiles = -(-chunks.n_elements // _ELEMENTS_PER_TILE)
        args = (chunks.table, chunks.n, n_tiles, chunks.n_elements, chunks.words, chunks.flags)
        kernel = _element_kernel(dtype_name(self.encoded), dtype_name(self.decoded), self.rule)
        _launch(api, stream, kernel, chunks.n * n_tiles, args)


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Differences between neighbours, which are summed in the dtype that NumPy promotes both dtypes to."""

    encoded: np.dtype[Any]
    """Dtype of differences, with their byte order."""
    decoded: np.dtype[Any]
    """Dtype of sums when they are stored, with their byte order."""
    words: ClassVar[Words] = np.zeros(0, np.uint64)

    @property
    def arithmetic_dtype(self) -> np.dtype[Any]:
        """Dtype in which elements are summed."""
        return np.result_type(self.encoded, self.decoded)

    def launch(self, api: DeviceApi, stream: Stream, chunks: FilterChunks) -> None:
        """Decode chunks; see `Filter.launch`.

        Floating numbers are summed one after another, as NumPy does. For integers, a block of threads decodes a chunk.
        If there are too few chunks to fill a device, several blocks share each chunk, in three launches, and read it
        twice; ``delta.cu`` describes the steps.
        """
        dtypes = dtype_word(self.encoded), dtype_word(self.decoded)
        args = (chunks.table, chunks.n, chunks.n_elements, *dtypes)
        if self.arithmetic_dtype.kind == "f":
            kernel = _FLOAT_DELTA_KERNELS[f"f{self.arithmetic_dtype.itemsize}"]
            _launch(api, stream, kernel, chunks.n, args, n_threads=_N_FLOAT_DELTA_THREADS)
            return
        blocks_per_chunk = -(-_ENOUGH_BLOCKS // max(chunks.n, 1))
        tiles_per_segment = max(_LEAST_TILES, -(-chunks.n_elements // (blocks_per_chunk * _DELTA_TILE)))
        segment_length = tiles_per_segment * _DELTA_TILE
        n_segments = chunks.n_elements // segment_length  # the last one also takes the remaining elements
        # Chunks are split if they are long enough, and too few to fill a device without that.
        if n_segments > 1 and blocks_per_chunk > 1:
            steps = [(_SUMS, chunks.n * n_segments), (_OFFSETS, chunks.n), (_SEGMENTS, chunks.n * n_segments)]
        else:  # a chunk is one segment
            steps = [(_WHOLE, chunks.n)]
            n_segments = 1
            segment_length = chunks.n_elements
        kernel = _DELTA_KERNELS[self.encoded.itemsize, self.decoded.itemsize]
        for step, n_blocks in steps:
            _launch(api, stream, kernel, n_blocks, (*args, step, n_segments, segment_length))


@dataclass(frozen=True, kw_only=True)
class PackBits:
    """Booleans, eight in a byte."""

    words: ClassVar[Words] = np.zeros(0, np.uint64)

    def launch(self, api: DeviceApi, stream: Stream, chunks: FilterChunks) -> None:
        """Decode chunks, of any alignment; see `Filter.launch`."""
        n_tiles = -(-chunks.n_elements // _BOOLEANS_PER_TILE)
        args = (chunks.table, chunks.n, n_tiles, chunks.n_elements, chunks.flags)
        _launch(api, stream, _PACKBITS, chunks.n * n_tiles, args)


def _swap_nbytes(dtype: np.dtype[Any]) -> int:
    """Return the number of bytes that are reversed together; 0 if the byte order is the machine's."""
    return 0 if dtype.isnative else dtype.itemsize


def dtype_word(dtype: np.dtype[Any]) -> int:
    """Return a dtype as the word that ``dtypes.cuh`` takes: item size, kind, and whether bytes are to be swapped."""
    is_swapped = dtype.itemsize > 1 and not dtype.isnative
    return dtype.itemsize | ord(dtype.kind) << 8 | is_swapped << 16


def _word(number: npt.NDArray[Any]) -> int:
    """Return the number in an array of one element as a word of 64 bits; signed integers are sign-extended."""
    if number.dtype.kind == "i":
        return int(number[0]) % 2**64
    return int(pad_words(number)[0])


def _launch(
    api: DeviceApi, stream: Stream, kernel: Kernel, n_blocks: int, args: tuple[int, ...], *, n_threads: int = N_THREADS
) -> None:
    if n_blocks > MAX_BLOCKS:
        raise ValueError(f"{n_blocks} blocks of threads in one launch: fewer chunks at a time are needed")
    if n_blocks:
        api.launch(kernel, n_blocks, n_threads, args, stream)
