"""Filters on the GPU: codecs of elements, whole batches of chunks at a time.

Each class is one codec, ready to launch: what it needs to know beside addresses is in its `words`, which lie in device
memory. Knows no Zarr. Called by the CUDA decoder.
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
Rounding = Literal["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]

_ELEMENTS_PER_TILE, _BOOLEANS_PER_TILE = 16 * N_THREADS, 32 * N_THREADS
_LANES = 32
_DELTA = {
    (stored, decoded): Kernel(file="delta.cu", name="delta", defines=(("FROM", str(stored)), ("TO", str(decoded))))
    for stored in (1, 2, 4, 8)
    for decoded in (1, 2, 4, 8)
}
_DELTA_TILE, _LEAST_TILES, _ENOUGH_BLOCKS = 4096, 4, 1056
"""Elements of a tile, tiles of a segment, blocks of threads that fill 132 multiprocessors."""
_FLOAT_DELTA = {
    name: Kernel(file="float_delta.cu", name="float_delta", defines=(("SUM", name),)) for name in ("f2", "f4", "f8")
}
_PACKBITS = Kernel(file="packbits.cu", name="packbits")


def filter_kernels() -> list[Kernel]:
    """Return the kernels of this module."""
    pairs = [(encoded, decoded) for encoded in REAL_DTYPES for decoded in REAL_DTYPES]
    cast = [pair for pair in pairs if not {"b1", "f2"} & set(pair)]
    integers = [(name, name) for name in REAL_DTYPES if name[0] in "iu"]
    rules: tuple[Rule, ...] = ("astype", "scaled", "scaled_integer", "cast_value")
    of_rules = zip(rules, (pairs, pairs, integers, cast), strict=True)
    codecs = [_element_kernel(*pair, rule) for rule, pairs_of_rule in of_rules for pair in pairs_of_rule]
    return [*_DELTA.values(), *_FLOAT_DELTA.values(), _PACKBITS, *codecs]


def _element_kernel(encoded: str, decoded: str, rule: Rule) -> Kernel:
    defines = (("ENCODED", encoded), ("DECODED", decoded), ("RULE", rule))
    return Kernel(file="element_codec.cu", name="element_codec", defines=defines)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterChunks:
    """Where the chunks of a launch lie, in device memory."""

    table: Address
    """uint64, shape (2, n): addresses of encoded and of decoded chunks, aligned to their elements."""
    n: int
    """Number of chunks."""
    n_elements: int
    """Elements of every chunk; fewer than 2**31."""
    flags: Address
    """uint64, shape (n,), zeros. Written: 1 where a chunk is not what it should be, or holds an element whose decoded
    value is left to the host."""
    words: Address
    """The codec's `words`."""


class Filter(Protocol):
    """A codec of elements."""

    @property
    def words(self) -> Words:
        """Words that the kernel reads besides."""

    def launch(self, api: DeviceApi, stream: Stream, places: FilterChunks) -> None:
        """Decode chunks; `ValueError` if so many do not fit one launch."""


def why_no_filter(*dtypes: np.dtype[Any]) -> str | None:
    """Return why the kernels do not decode elements of some dtypes, in words, or None if they do."""
    return next((f"elements of {d}" for d in dtypes if dtype_name(d) not in REAL_DTYPES), None)


@dataclass(frozen=True, kw_only=True)
class ElementCodec:
    """A codec of each element by itself."""

    encoded: np.dtype[Any]
    decoded: np.dtype[Any]
    rule: Rule
    rounding: Rounding = "nearest-even"
    scale: float = 1
    """Scale of the rules that have one: exactly a number of `inner`."""
    offset: float = 0
    mapped: tuple[tuple[int, float], ...] = ()
    """Encoded integers, and what they decode to before any rule."""

    @property
    def inner(self) -> np.dtype[Any]:
        """Dtype in which elements are scaled."""
        is_inner = self.encoded.kind == "f" or self.rule == "scaled_integer"
        return self.encoded.newbyteorder("=") if is_inner else np.dtype("f8")

    @cached_property
    def words(self) -> Words:
        """Fields of ``struct Codec``, and the pairs of numbers behind them."""
        rounding, native = get_args(Rounding).index(self.rounding), self.decoded.newbyteorder("=")
        with np.errstate(all="ignore"):
            scale, offset = (_word(np.array([number]).astype(self.inner)) for number in (self.scale, self.offset))
            pairs = [
                (_word(np.array([key], self.encoded.newbyteorder("="))), _word(np.array([value]).astype(native)))
                for key, value in self.mapped
            ]
        head = [_swap_nbytes(self.encoded), _swap_nbytes(self.decoded), rounding, scale, offset, len(pairs)]
        return np.array([*head, *(word for pair in pairs for word in pair)], np.uint64)

    def launch(self, api: DeviceApi, stream: Stream, places: FilterChunks) -> None:
        """Decode chunks; see `Filter.launch`."""
        n_tiles = -(-places.n_elements // _ELEMENTS_PER_TILE)
        args = (places.table, places.n, n_tiles, places.n_elements, places.words, places.flags)
        kernel = _element_kernel(dtype_name(self.encoded), dtype_name(self.decoded), self.rule)
        _launch(api, stream, kernel, places.n * n_tiles, args)


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Differences between neighbours, added up in the dtype that NumPy takes for both."""

    encoded: np.dtype[Any]
    decoded: np.dtype[Any]
    words: ClassVar[Words] = np.zeros(0, np.uint64)

    @property
    def inner(self) -> np.dtype[Any]:
        """Dtype in which elements are added up."""
        return np.result_type(self.encoded, self.decoded)

    def launch(self, api: DeviceApi, stream: Stream, places: FilterChunks) -> None:
        """Decode chunks; see `Filter.launch`."""
        dtypes = dtype_words(self.encoded), dtype_words(self.decoded)
        args = (places.table, places.n, places.n_elements, *dtypes)
        if self.inner.kind == "f":
            _launch(api, stream, _FLOAT_DELTA[f"f{self.inner.itemsize}"], places.n, args, n_threads=2 * _LANES)
            return
        # A block decodes a chunk. Where there are too few for a device, several share each, and read it twice.
        blocks_per_chunk = -(-_ENOUGH_BLOCKS // max(places.n, 1))
        n_tiles = max(_LEAST_TILES, -(-places.n_elements // (blocks_per_chunk * _DELTA_TILE)))
        n_segments, length = places.n_elements // (n_tiles * _DELTA_TILE), n_tiles * _DELTA_TILE
        steps = [(1, places.n * n_segments), (2, places.n), (3, places.n * n_segments)]
        if n_segments <= 1 or blocks_per_chunk == 1:
            steps, n_segments, length = [(0, places.n)], 1, places.n_elements
        kernel = _DELTA[self.encoded.itemsize, self.decoded.itemsize]
        for step, n_blocks in steps:
            _launch(api, stream, kernel, n_blocks, (*args, step, n_segments, length))


@dataclass(frozen=True, kw_only=True)
class PackBits:
    """Eight booleans a byte."""

    words: ClassVar[Words] = np.zeros(0, np.uint64)

    def launch(self, api: DeviceApi, stream: Stream, places: FilterChunks) -> None:
        """Decode chunks, of any alignment; see `Filter.launch`."""
        n_tiles = -(-places.n_elements // _BOOLEANS_PER_TILE)
        args = (places.table, places.n, n_tiles, places.n_elements, places.flags)
        _launch(api, stream, _PACKBITS, places.n * n_tiles, args)


def _swap_nbytes(dtype: np.dtype[Any]) -> int:
    return 0 if dtype.isnative else dtype.itemsize


def dtype_words(dtype: np.dtype[Any]) -> int:
    """Return a dtype as ``dtypes.cuh`` takes it apart."""
    is_swapped = dtype.itemsize > 1 and not dtype.isnative
    return dtype.itemsize | ord(dtype.kind) << 8 | is_swapped << 16


def _word(number: npt.NDArray[Any]) -> int:
    """Return a number of one element as it stands in a register: with its sign in all higher bits."""
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
