"""Random arrays and writes to them, as zarr-python takes them, and what two stores hold afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4
from zarr.core.sync import sync

from xarray_gpuzarr.codec_pipeline.writing import ArrayWriter
from xarray_gpuzarr.write.block_target import BlockTarget

_DTYPES = ["i1", "u2", "i4", "f4", "f8", "f2", "c8", "c16", "bool", "i8", ">i2", ">f4", "u1"]


@contextmanager
def writes_counted() -> Iterator[list[int]]:
    """Count the writes that this package carries out, and those that it leaves to zarr-python, within a block."""
    counts, write, write_block = [0, 0], ArrayWriter.write_by_loops, BlockTarget.write

    async def counted(writer: ArrayWriter, batch: Any, *more: Any) -> Any:
        left = await write(writer, batch, *more)
        counts[bool(left)] += 1
        return left

    def counted_block(target: BlockTarget, *of_block: Any) -> bool:
        is_written = write_block(target, *of_block)
        counts[not is_written] += 1
        return is_written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArrayWriter, "write_by_loops", counted)
        patch.setattr(BlockTarget, "write", counted_block)
        yield counts


def contents(store: Any) -> dict[str, bytes]:
    """Return all that a zarr store holds, by key."""

    async def get() -> dict[str, bytes]:
        keys = [key async for key in store.list()]
        return {key: (await store.get(key, zarr.buffer.cpu.buffer_prototype)).to_bytes() for key in keys}

    return sync(get())


def _compressors(rng: np.random.Generator) -> Any:
    cname = str(rng.choice(["lz4", "zstd", "lz4hc", "blosclz", "zlib"]))
    shuffle = str(rng.choice(["shuffle", "noshuffle", "bitshuffle"]))
    clevel, blocksize = int(rng.integers(0, 10)), int(rng.choice([0, 0, 64, 4096]))
    found = [
        None,
        [ZstdCodec(level=int(rng.integers(-3, 9)), checksum=bool(rng.random() < 0.5))],
        [BloscCodec(cname=cname, clevel=clevel, shuffle=shuffle, blocksize=blocksize)],
        [GzipCodec(level=int(rng.integers(0, 10)))],
        [Crc32cCodec()],
        [ZstdCodec(level=1), Crc32cCodec()],
        [LZ4(acceleration=1)],
    ]
    return found[int(rng.integers(len(found)))]


def _format_2(rng: np.random.Generator) -> dict[str, Any]:
    found = [
        None,
        numcodecs.Zstd(level=3),
        numcodecs.Blosc(cname="lz4", shuffle=-1),
        numcodecs.Blosc(cname="zstd", shuffle=2),
        numcodecs.LZ4(),
        numcodecs.Zlib(3),
        numcodecs.GZip(2),
    ]
    separator = str(rng.choice([".", "/"]))
    return {
        "order": str(rng.choice(["C", "F"])),
        "compressors": found[int(rng.integers(len(found)))],
        "chunk_key_encoding": {"name": "v2", "separator": separator},
    }


def _format_3(rng: np.random.Generator, chunks: tuple[int, ...], endian: str) -> dict[str, Any]:
    ndim, bytes_codec = len(chunks), BytesCodec(endian=endian)
    order = tuple(map(int, rng.permutation(ndim)))
    filters = [TransposeCodec(order=order)] if ndim > 1 and rng.random() < 0.4 else None
    compressors = _compressors(rng)
    if rng.random() < 0.35:
        return {"chunks": chunks, "serializer": bytes_codec, "filters": filters, "compressors": compressors}
    sharding = ShardingCodec(
        chunk_shape=chunks,
        codecs=[*(filters or []), bytes_codec, *(compressors or [])],
        index_location=str(rng.choice(["start", "end"])),
        index_codecs=[BytesCodec(), Crc32cCodec()] if rng.random() < 0.8 else [BytesCodec()],
    )
    shards = tuple(n * int(rng.integers(1, 5)) for n in chunks)
    return {"chunks": shards, "serializer": sharding, "filters": None, "compressors": None}


def random_array(rng: np.random.Generator) -> dict[str, Any]:
    """Return the keywords of `zarr.create_array` for an array that the loops can write."""
    shape = tuple(map(int, rng.integers(1, 30, int(rng.integers(0, 4)))))
    chunks = tuple(int(rng.integers(1, min(n, 9) + 1)) for n in shape)
    zarr_format, name = int(rng.choice([2, 3, 3])), str(rng.choice(_DTYPES))
    endian = "big" if name.startswith(">") else "little"
    dtype = np.dtype(name if zarr_format == 2 else name.lstrip(">"))
    more = {"chunks": chunks, **_format_2(rng)} if zarr_format == 2 else _format_3(rng, chunks, endian)
    number = rng.choice([0, 1, -0.0, np.nan, 5]) if dtype.kind in "fc" else rng.choice([0, 1])
    fill = complex(number, rng.choice([0.0, -0.0, np.nan, 1])) if dtype.kind == "c" else number
    return {
        "shape": shape,
        "dtype": dtype,
        "fill_value": dtype.type(fill),
        "zarr_format": zarr_format,
        "config": {"write_empty_chunks": bool(rng.random() < 0.3)},
        **more,
    }


@dataclass(frozen=True)
class Operation:
    """A change of an array."""

    kind: str
    where: Any
    value: Any = None

    def apply(self, array: Any) -> None:
        """Change an array."""
        if self.kind in ("oindex", "vindex", "blocks"):
            getattr(array, self.kind)[self.where] = self.value
        elif self.kind == "mask":
            array.set_mask_selection(self.where, self.value)
        elif self.kind == "append":
            array.append(self.value, axis=self.where)
        elif self.kind == "resize":
            array.resize(self.where)
        else:
            array[self.where] = self.value


def _value(rng: np.random.Generator, shape: tuple[int, ...], fill: np.generic) -> Any:
    """Return what is written: a scalar, or an array with any strides, that may be the fill value here and there."""
    dtype, kind = fill.dtype, rng.random()
    if kind < 0.25:
        return fill
    if kind < 0.35:
        return dtype.type(rng.integers(0, 2))
    value = np.array(rng.integers(0, 3 if kind < 0.7 else 100, shape)).astype(dtype)
    if dtype.kind in "fc" and rng.random() < 0.5:
        part = rng.random(shape)
        value = np.where(part < 0.1, np.nan, np.where(part < 0.5, -0.0, value)).astype(dtype)
    if rng.random() < 0.15:
        value = np.broadcast_to(fill, shape)
    if rng.random() < 0.3:
        value = np.asfortranarray(value)
    if value.ndim and rng.random() < 0.2:
        value = value[::-1]
    return value.astype(dtype.newbyteorder()) if rng.random() < 0.1 else value


def _slices(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for n in shape:
        kind, start = rng.random(), int(rng.integers(0, n))
        stop = int(rng.integers(start + 1, n + 1))
        step = int(rng.choice([1, 1, 1, 2, 3, 11]))
        found.append(start if kind < 0.15 else slice(None) if kind < 0.4 else slice(start, stop, step))
    return tuple(found)


def _oindex(rng: np.random.Generator, shape: tuple[int, ...], fill: np.generic) -> Operation:
    where: list[Any] = []
    for n in shape:
        numbers = rng.choice(n, int(rng.integers(1, n + 1)), replace=False)
        kind = rng.random()
        where.append(slice(0, len(numbers)) if kind < 0.4 else numbers if kind < 0.6 else np.sort(numbers))
    lengths = tuple(each.stop if isinstance(each, slice) else len(each) for each in where)
    return Operation("oindex", tuple(where), _value(rng, lengths, fill))


def random_operation(rng: np.random.Generator, shape: tuple[int, ...], fill: np.generic) -> Operation:
    """Return a change of an array of some shape, of which each element is written once."""
    kind = rng.random()
    if not shape or kind < 0.6:
        where = _slices(rng, shape) or Ellipsis
        return Operation("basic", where, _value(rng, np.empty(shape, "b")[where].shape, fill))
    if kind < 0.7:
        return _oindex(rng, shape, fill)
    if kind < 0.75:
        points = rng.choice(int(np.prod(shape)), min(int(np.prod(shape)), 7), replace=False)
        where = np.unravel_index(points, shape)
        return Operation("vindex", where, _value(rng, (len(points),), fill))
    if kind < 0.8:
        mask = rng.random(shape) < 0.4
        mask.flat[0] = True
        return Operation("mask", mask, _value(rng, (int(mask.sum()),), fill))
    if kind < 0.9:
        return Operation("resize", tuple(map(int, rng.integers(1, 30, len(shape)))))
    axis = int(rng.integers(0, len(shape)))
    more = (*shape[:axis], int(rng.integers(1, 6)), *shape[axis + 1 :])
    return Operation("append", axis, np.broadcast_to(_value(rng, more, fill), more))
