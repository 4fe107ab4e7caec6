"""Arrays, selections, casts and damage, for reads that go all ways; and what zarr-python and NumPy make of them."""

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore

from helpers.data.corpus import BLOSC_CNAMES, NUMERIC_DTYPES, SHUFFLES, edge_values, write
from helpers.data.selections import axis_keys, numpy_outer, points
from helpers.data.stacks import numpy_stack, stacks
from helpers.stores.shards import chunk_bytes, index_entries, with_chunk
from xarray_gpuzarr.stored.cf import Cast

NAME = "t"

_COMPRESSORS: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "zstd": (ZstdCodec(), numcodecs.Zstd()),
    "zstd-checksum": (ZstdCodec(checksum=True), numcodecs.Zstd(checksum=True)),
    "gzip": (GzipCodec(level=1), numcodecs.GZip(1)),
    "zlib": (zn.Zlib(level=1), numcodecs.Zlib(1)),
    "lz4": (zn.LZ4(), numcodecs.LZ4()),
    "bz2": (zn.BZ2(level=1), numcodecs.BZ2(1)),
    "crc32c": (Crc32cCodec(), None),
    "zstd+crc32c": ([ZstdCodec(), Crc32cCodec()], None),
    "crc32c+zstd": ([Crc32cCodec(), ZstdCodec()], None),
    "gzip+zstd": ([GzipCodec(level=1), ZstdCodec()], None),
}
_ONLY_V3 = {"crc32c", "zstd+crc32c", "crc32c+zstd", "gzip+zstd"}
_BLOSC = [f"blosc {cname} {shuffle}" for cname in BLOSC_CNAMES for shuffle in SHUFFLES]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """How an array is stored."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    """In format 3."""
    index_location: str
    zarr_format: int
    dtype: str
    compressor: str
    element_filter: str
    shuffle: int
    """Bytes of an element that are shuffled before they are compressed; 0: none."""
    order: tuple[int, ...]
    """Of the axes in memory."""
    missing: tuple[float, ...]
    """How much of each axis has the fill value only, so that there are chunks and shards that are not there."""
    fill: int
    seed: int

    @property
    def chunk_nbytes(self) -> int:
        return math.prod(self.chunks) * np.dtype(self.dtype).itemsize

    def values(self) -> np.ndarray:
        values = edge_values(np.dtype(self.dtype).newbyteorder("="), self.shape, self.seed).astype(self.dtype)
        values[tuple(slice(0, int(n * part)) for n, part in zip(self.shape, self.missing, strict=True))] = self.fill
        return values


@dataclass(frozen=True, kw_only=True)
class Selected:
    """What is wanted of it, and where that goes."""

    kind: str
    """``box``, ``points`` or ``stack``."""
    key: Any
    out: str
    """Memory that is given for the result: ``none``, ``C``, ``F`` or ``gaps``."""

    def of(self, values: np.ndarray) -> np.ndarray:
        """Select with NumPy."""
        if self.kind == "box":
            return np.ascontiguousarray(numpy_outer(values, self.key)).reshape(numpy_outer(values, self.key).shape)
        return values[self.key] if self.kind == "points" else np.ascontiguousarray(numpy_stack(values, *self.key))

    def memory(self, shape: tuple[int, ...], dtype: np.dtype) -> tuple[np.ndarray | None, np.ndarray]:
        """Return memory for a result, and all the memory that it lies in."""
        if self.out == "none" or self.kind == "points":
            return None, np.empty(0, dtype)
        if self.out == "gaps":
            whole = np.zeros((*(2 * n + 1 for n in shape), 2), dtype)
            whole.view(np.uint8)[...] = 0xA5
            return whole[(*(slice(1, 2 * n, 2) for n in shape), 0)][::-1] if shape else whole[0], whole
        whole = np.zeros(math.prod(shape) + 2, dtype)
        whole.view(np.uint8)[...] = 0xA5
        return whole[1:-1].reshape(shape, order=self.out), whole


@dataclass(frozen=True, kw_only=True)
class Damage:
    """One object, or one chunk of a shard, that is no longer what was written."""

    kind: str
    """``none``, ``missing``, ``cut``, ``flip``, ``longer``, ``empty`` or ``directory``."""
    inner: bool
    """Whether a chunk of a shard is, where that can be done."""
    which: int
    where: int


@dataclass(frozen=True, kw_only=True)
class Case:
    stored: Stored
    selected: Selected
    cast: dict[str, Any]
    """Of `Cast`; none: values are as stored. Masks are places in the array whose values they are."""
    damage: Damage
    n_threads: int


# ---- what is drawn


@st.composite
def stored_arrays(draw: Any) -> Stored:
    zarr_format = draw(st.sampled_from([3, 3, 2]))
    dtype = np.dtype(draw(st.sampled_from(NUMERIC_DTYPES)))
    dtype = dtype.newbyteorder(draw(st.sampled_from("<<>")))
    n_axes = draw(st.integers(1, 3))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(n_axes - 1)) + (draw(st.sampled_from([1, 3, 4, 8, 40])),)
    per_shard = tuple(draw(st.integers(1, 3)) for _ in range(n_axes))
    shape = tuple(draw(st.integers(1, 4 * n)) for n in chunks)
    is_sharded = zarr_format == 3 and draw(st.booleans())
    kinds = [name for name in _COMPRESSORS if zarr_format == 3 or name not in _ONLY_V3]
    compressor = draw(st.one_of(st.sampled_from(["none", "zstd"]), st.sampled_from(kinds), st.sampled_from(_BLOSC)))
    filters = ["none", "none", "none", "delta", "scale", "astype"] if dtype.kind in "iuf" else ["none"]
    f_order = zarr_format == 2 and n_axes > 1 and draw(st.booleans())
    order = tuple(range(n_axes))
    if f_order:
        order = order[::-1]
    elif zarr_format == 3 and draw(st.integers(0, 3)) == 0:
        order = tuple(draw(st.permutations(order)))
    return Stored(
        shape=shape,
        chunks=chunks,
        shards=tuple(c * n for c, n in zip(chunks, per_shard, strict=True)) if is_sharded else None,
        index_location=draw(st.sampled_from(["end", "end", "start"])),
        zarr_format=zarr_format,
        dtype=dtype.str,
        compressor=compressor,
        element_filter=draw(st.sampled_from(filters)),
        shuffle=draw(st.sampled_from([0, 0, 0, dtype.itemsize, 3])),
        order=order,
        missing=tuple(draw(st.sampled_from([0, 0.5, 1])) for _ in range(n_axes)),
        fill=draw(st.integers(0, 1)),
        seed=draw(st.integers(0, 2**16)),
    )


def plain_slices(length: int) -> st.SearchStrategy[Any]:
    """Most of an axis, as most reads want it."""
    return st.builds(slice, st.integers(0, length // 2), st.integers(length - length // 2, length), st.integers(1, 2))


@st.composite
def selections(draw: Any, shape: tuple[int, ...]) -> Selected:
    kind = draw(st.sampled_from(["box", "box", "any box", "points", "stack", "stack"]))
    if kind == "box":
        key: Any = tuple(draw(plain_slices(n)) for n in shape)
    elif kind == "any box":
        key = tuple(draw(axis_keys(n)) for n in shape)
    else:
        key = draw(points(shape) if kind == "points" else stacks(shape))
    return Selected(kind=kind.removeprefix("any "), key=key, out=draw(st.sampled_from(["none", "C", "F", "gaps"])))


@st.composite
def casts(draw: Any, stored: Stored) -> dict[str, Any]:
    dtype = np.dtype(stored.dtype)
    kind = draw(st.sampled_from(["none", "none", "wider", "packed", "packed"]))
    if kind == "none":
        return {}
    to = draw(st.sampled_from(["<c8", "<c16"] if dtype.kind == "c" else ["<f4", "<f8", ">f8", "<f2"]))
    cast: dict[str, Any] = {"dtype": to}
    if kind == "packed":
        cast["mask"] = tuple(draw(st.lists(st.integers(0, 2**16), max_size=4)))
        cast["scale"] = draw(st.sampled_from([None, 2, 0.01, 1e300]))
        cast["offset"] = draw(st.sampled_from([None, -3, 273.15]))
    if dtype.kind in "iu" and dtype.isnative and draw(st.booleans()):
        cast["view"] = f"{'u' if dtype.kind == 'i' else 'i'}{dtype.itemsize}"
    return cast


def damages() -> st.SearchStrategy[Damage]:
    kinds = ["none"] * 8 + ["missing", "cut", "flip", "longer", "empty", "directory"]
    return st.builds(
        Damage,
        kind=st.sampled_from(kinds),
        inner=st.booleans(),
        which=st.integers(0, 2**16),
        where=st.integers(0, 2**16),
    )


@st.composite
def cases(draw: Any) -> Case:
    """Everything at once."""
    stored = draw(stored_arrays())
    return Case(
        stored=stored,
        selected=draw(selections(stored.shape)),
        cast=draw(casts(stored)),
        damage=draw(damages()),
        n_threads=draw(st.sampled_from([1, 2, 4])),
    )


# ---- what is written


def write_case(path: Path, case: Case) -> zarr.Array:
    """Write the array of a case below `path`, and damage it; what zarr-python says of the array is right only before."""
    stored = case.stored
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        keywords = _v3(stored) if stored.zarr_format == 3 else _v2(stored)
        return write(
            LocalStore(path),
            stored.values(),
            name=NAME,
            fill_value=np.dtype(stored.dtype).type(stored.fill),
            zarr_format=stored.zarr_format,
            **keywords,
        )


def _element_filters(stored: Stored, order: str) -> list[tuple[str, dict[str, Any]]]:
    dtype = np.dtype(stored.dtype).newbyteorder(order).str
    wide = np.dtype("f8" if stored.dtype[1] == "f" else "i8").newbyteorder(order).str
    return {
        "none": [],
        "delta": [("Delta", {"dtype": dtype})],
        "scale": [("FixedScaleOffset", {"offset": 3, "scale": 1, "dtype": dtype, "astype": wide})],
        "astype": [("AsType", {"encode_dtype": wide, "decode_dtype": dtype})],
    }[stored.element_filter]


def _v3(stored: Stored) -> dict[str, Any]:
    native = np.dtype(stored.dtype)
    filters: list[Any] = [getattr(zn, name)(**conf) for name, conf in _element_filters(stored, "<")]
    if stored.order != tuple(range(len(stored.order))):
        filters.insert(0, TransposeCodec(order=stored.order))
    shuffle = [zn.Shuffle(elementsize=stored.shuffle)] if stored.shuffle else []
    chosen = _compressor(stored, 3)
    compressors = shuffle + (chosen if isinstance(chosen, list) else [chosen] if chosen is not None else [])
    serializer = BytesCodec(endian=None if native.itemsize == 1 else "little" if native.isnative else "big")
    if native.itemsize == 1 and stored.element_filter in {"scale", "astype"}:
        serializer = BytesCodec(endian="little")
    if stored.shards is not None and stored.index_location == "start":
        sharding = ShardingCodec(
            chunk_shape=stored.chunks, codecs=[*filters, serializer, *compressors], index_location="start"
        )
        return {"chunks": stored.shards, "serializer": sharding, "filters": None, "compressors": None}
    return {
        "chunks": stored.chunks,
        "shards": stored.shards,
        "filters": filters or None,
        "serializer": serializer,
        "compressors": compressors or None,
    }


def _v2(stored: Stored) -> dict[str, Any]:
    order = np.dtype(stored.dtype).byteorder
    filters: list[Any] = [getattr(numcodecs, name)(**c) for name, c in _element_filters(stored, order)]
    filters += [numcodecs.Shuffle(stored.shuffle)] if stored.shuffle else []
    is_f = stored.order != tuple(range(len(stored.order)))
    return {
        "chunks": stored.chunks,
        "filters": filters or None,
        "compressors": _compressor(stored, 2),
        "order": "F" if is_f else "C",
    }


def _compressor(stored: Stored, zarr_format: int) -> Any:
    if not stored.compressor.startswith("blosc "):
        return _COMPRESSORS[stored.compressor][zarr_format == 2]
    _, cname, shuffle = stored.compressor.split()
    itemsize = np.dtype(stored.dtype).itemsize
    if zarr_format == 3:
        return BloscCodec(cname=cname, shuffle=shuffle, typesize=itemsize)
    return numcodecs.Blosc(cname=cname, shuffle=SHUFFLES.index(shuffle))


# ---- what is damaged


def damage(path: Path, case: Case) -> None:
    """Damage one object, if there is any."""
    how, stored = case.damage, case.stored
    files = sorted(file for file in (path / NAME).rglob("*") if file.is_file() and _is_data(file.name))
    if how.kind == "none" or not files:
        return
    file = files[how.which % len(files)]
    content = file.read_bytes()
    n_chunks = math.prod(s // c for s, c in zip(stored.shards or (), stored.chunks, strict=False))
    if how.inner and stored.shards is not None and stored.index_location == "end":
        numbers = [i for i, entry in enumerate(index_entries(content, n_chunks)) if entry[0] < 2**63]
        number = numbers[how.where % len(numbers)]
        chunk = _changed(chunk_bytes(content, n_chunks, number), how)
        if chunk is not None:
            file.write_bytes(with_chunk(content, n_chunks, number, chunk))
            return
    changed = _changed(content, how)
    file.unlink()
    if changed is not None:
        file.write_bytes(changed)
    elif how.kind == "directory":
        file.mkdir()


def _is_data(name: str) -> bool:
    return name not in {"zarr.json", ".zarray", ".zattrs", ".zgroup"}


def _changed(content: bytes, how: Damage) -> bytes | None:
    at = how.where % max(1, len(content))
    match how.kind:
        case "cut":
            return content[:at]
        case "flip":
            return content[:at] + bytes([content[at] ^ 1 << how.which % 8]) + content[at + 1 :]
        case "longer":
            return content + content[: 1 + at]
        case "empty":
            return b""
        case _:
            return None


# ---- what is right


def cast_of(case: Case, values: np.ndarray) -> Cast | None:
    """Return the cast of a case, given the stored values."""
    if not case.cast:
        return None
    view = case.cast.get("view")
    as_result = _converted(values, view, case.cast["dtype"])
    mask = {as_result.reshape(-1)[at % values.size].item() for at in case.cast.get("mask", ())}
    return Cast(**case.cast | {"mask": tuple(sorted((m for m in mask if m == m), key=repr))})


def _converted(values: np.ndarray, view: str | None, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return (values if view is None else values.view(view)).astype(dtype)


def numpy_cast(cast: Cast | None, values: np.ndarray) -> np.ndarray:
    """Carry out a cast on all values at once, with NumPy."""
    if cast is None:
        return values
    result = _converted(values, cast.view, cast.dtype)
    dtype = result.dtype.type
    with np.errstate(all="ignore"):
        for value in cast.mask:
            result[result == value] = np.nan if result.dtype.kind != "c" else complex(np.nan, np.nan)
        if cast.scale is not None:
            result = (result * dtype(cast.scale)).astype(cast.dtype)
        if cast.offset is not None:
            result = (result + dtype(cast.offset)).astype(cast.dtype)
    return result
