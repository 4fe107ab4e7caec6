"""Arrays, selections, casts and damage, for reads that go all ways; and what zarr-python and NumPy make of them."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import mul
from pathlib import Path
from random import Random
from typing import Any

import numcodecs
import numpy as np
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore

from helpers.data.corpus import BLOSC_CNAMES, NUMERIC_DTYPES, SHUFFLES, edge_values, write
from helpers.data.selections import numpy_outer
from helpers.data.stacks import numpy_stack
from helpers.stores.shards import chunk_bytes, index_entries, with_chunk
from xarray_gpuzarr.plan.crops import Crops
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
_SIMPLE = {"none", "zstd", "zstd-checksum", "gzip", "zlib", "lz4"}
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
        if self.kind == "stack":
            picked = numpy_stack(values, *self.key)
        else:
            picked = numpy_outer(values, self.key) if self.kind == "box" else values[self.key]
        return np.asarray(picked, values.dtype, order="C")  # an element, and a stack, lose their byte order

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


def draw_case(rng: Random) -> Case:
    """Everything at once; two thirds are what the loops know."""
    is_simple = rng.random() < 0.7
    stored, is_run = _draw_stored(rng, is_simple), rng.random() < 0.25
    selected = _draw_selected(rng, stored.shape, is_simple)
    if is_run:
        stored = _as_runs(rng, stored)
        selected = Selected(kind="box", key=(slice(None),) * len(stored.shape), out=rng.choice(["none", "C"]))
    return Case(
        stored=stored,
        selected=selected,
        cast={} if is_simple and rng.random() < 0.9 else _draw_cast(rng, np.dtype(stored.dtype)),
        damage=Damage(
            kind="none"
            if rng.random() < 0.6
            else rng.choice(["missing", "cut", "flip", "longer", "empty", "directory"]),
            inner=rng.random() < 0.7,
            which=rng.randint(0, 2**16),
            where=rng.randint(0, 2**16),
        ),
        n_threads=rng.choice([1, 2, 2, 4]),
    )


def _draw_stored(rng: Random, is_simple: bool) -> Stored:
    zarr_format = rng.choice([3, 3, 2])
    dtype = np.dtype(rng.choice(NUMERIC_DTYPES)).newbyteorder(rng.choice("<<<<<>" if is_simple else "<<>"))
    n_axes = rng.choice([1, 2, 2, 3])
    chunks = (*(rng.randint(1, 5) for _ in range(n_axes - 1)), rng.choice([1, 3, 4, 8, 40]))
    per_shard = [rng.randint(1, 3) for _ in range(n_axes)]
    shape = tuple(rng.randint(1, 4 * n) for n in chunks)
    kinds = [name for name in _COMPRESSORS if zarr_format == 3 or name not in _ONLY_V3]
    kinds = [name for name in kinds if not is_simple or name in _SIMPLE]
    filters = ["delta", "scale", "astype"] if dtype.kind in "iuf" and not is_simple and rng.random() < 0.5 else ["none"]
    order = [*range(n_axes)]
    if zarr_format == 2 and rng.random() < 0.4:
        order.reverse()
    elif rng.random() < 0.25 and zarr_format == 3:
        rng.shuffle(order)
    return Stored(
        shape=shape,
        chunks=chunks,
        shards=tuple(map(mul, chunks, per_shard)) if zarr_format == 3 and rng.random() < 0.7 else None,
        index_location=rng.choice(["end", "end", "start"]),
        zarr_format=zarr_format,
        dtype=dtype.str,
        compressor=rng.choice([rng.choice(["none", "zstd"]), rng.choice(kinds), rng.choice(_BLOSC)]),
        element_filter=rng.choice(filters),
        shuffle=0 if is_simple else rng.choice([0, 0, dtype.itemsize]),
        order=tuple(order),
        missing=tuple(rng.choice([0, 0, 0.5, 1]) for _ in range(n_axes)),
        fill=rng.randint(0, 1),
        seed=rng.randint(0, 2**16),
    )


def _as_runs(rng: Random, stored: Stored) -> Stored:
    """Let chunks be runs of memory of the output, most of them raw."""
    n = rng.randint(1, 6) * stored.chunks[0]
    compressor = rng.choice(["none", "none", stored.compressor])
    return replace(stored, shape=(n, *stored.chunks[1:]), order=(*range(len(stored.order)),), compressor=compressor)


def _draw_selected(rng: Random, shape: tuple[int, ...], is_simple: bool) -> Selected:
    kind = rng.choice(["box", "box", "stack"] if is_simple else ["box", "box", "points", "stack"])
    if kind == "box":
        one = "all" if rng.random() < 0.3 else "plain" if is_simple else None
        key: Any = tuple(_axis_key(rng, n, one) for n in shape)
    elif kind == "points":
        n = rng.randint(0, 9)
        key = tuple(np.array([rng.randrange(-length, length) for _ in range(n)], np.int64) for length in shape)
    else:
        n = rng.choice([0, 1, 2, 3, 5])
        key = [_stack_axis(rng, length, n, is_simple) for length in shape], n
    return Selected(kind=kind, key=key, out=rng.choice(["none", "C", "F", "gaps"]))


def _axis_key(rng: Random, n: int, kind: str | None) -> Any:
    """What indexes one axis."""
    draws: dict[str, Callable[[], Any]] = {
        "all": lambda: slice(None),
        "plain": lambda: slice(rng.randint(0, n // 2), rng.randint(n - n // 2, n), rng.choice([1, 1, 2, 3, n])),
        "slice": lambda: slice(
            rng.randint(-n, n), rng.choice([None, rng.randint(-n, n)]), rng.choice([1, 2, 7, -1, -3])
        ),
        "number": lambda: rng.randrange(-n, n),
        "numbers": lambda: np.array([rng.randrange(-n, n) for _ in range(rng.randint(0, 8))], np.int64),
        "repeats": lambda: np.repeat(np.arange(n), [rng.randint(0, 3) for _ in range(n)]),
        "mask": lambda: np.array([rng.random() < 0.5 for _ in range(n)]),
    }
    return draws[kind or rng.choice([*draws, "plain"])]()


def _stack_axis(rng: Random, length: int, n_samples: int, is_simple: bool) -> Any:
    """What samples want along one axis, as `StackAxis` says."""
    match "crops" if is_simple and rng.random() < 0.8 else rng.choice(["slice", "array", "crops", "table"]):
        case "slice":
            return slice(rng.randint(0, length // 2), rng.randint(0, length), rng.randint(1, 3))
        case "array":
            return np.array(sorted(rng.randrange(length) for _ in range(rng.randint(0, 6))), np.int64)
        case "table":
            n = rng.randint(0, 5)
            rows = [sorted(rng.randrange(length) for _ in range(n)) for _ in range(n_samples)]
            return np.array(rows, np.int64).reshape(n_samples, n)
        case _:
            step = rng.choice([1, 1, 1, 2, 5])
            count = rng.randint(min(1, length), -(-length // step))
            last = length - 1 - max(0, count - 1) * step
            start = np.array([rng.randint(0, last) for _ in range(n_samples)], np.int64)
            return Crops(start=start, count=count, step=step)


def _draw_cast(rng: Random, dtype: np.dtype) -> dict[str, Any]:
    kind = rng.choice(["none", "wider", "packed", "packed"])
    if kind == "none":
        return {}
    cast: dict[str, Any] = {"dtype": rng.choice(["<c8", "<c16"] if dtype.kind == "c" else ["<f4", "<f8", ">f8", "<f2"])}
    if kind == "packed":
        cast["mask"] = tuple(rng.randint(0, 2**16) for _ in range(rng.randint(0, 4)))
        cast["scale"] = rng.choice([None, 2, 0.01, 1e30])
        cast["offset"] = rng.choice([None, -3, 273.15])
    if dtype.kind in "iu" and dtype.isnative and rng.random() < 0.5:
        cast["view"] = f"{'u' if dtype.kind == 'i' else 'i'}{dtype.itemsize}"
    return cast


# ---- what is written


def write_case(path: Path, case: Case) -> None:
    """Write the array of a case below `path`, undamaged."""
    stored = case.stored
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        keywords = _v3(stored) if stored.zarr_format == 3 else _v2(stored)
        write(
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
    return Cast(**case.cast | {"mask": tuple(sorted((value for value in mask if not np.isnan(value)), key=repr))})


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
