"""Cases of reads of little, where what is not decoding counts: ``small/``.

Each is repeated until a millisecond or more has gone by, and given per read. Readers with a cache of decoded chunks
have read the same before, except in *planes, first time*, where each loop has a store that was opened anew, and caches
are empty. *xarray alone* reads lazy NumPy arrays through xarray: what is left for a reader below xarray.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

from benchmarks.arrays.fields import make_field
from benchmarks.runner.readers import AbsentError, Box
from benchmarks.runner.session import Case, Contestant, Ready, WrongValuesError
from benchmarks.small.readers import READERS, VARIABLE, Read, Reader
from xarray_gpuzarr.decoders.host import chunk_cache

_LEAST_S = 20e-3
"""What a measurement takes at least."""
_MEANINGFUL_SCALE = 0.01
_SETTLED_S = 2.5
"""Younger files are kept by nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A store."""

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    compressor: BloscCodec | ZstdCodec


_VOLUME = Layout(
    name="volume",
    shape=(256, 256, 256),
    chunks=(32, 32, 32),
    shards=(256, 256, 256),
    compressor=BloscCodec(cname="blosclz", clevel=5, shuffle="bitshuffle", typesize=2),
)
_MAPS = Layout(name="maps", shape=(24, 721, 1440), chunks=(24, 721, 1440), shards=None, compressor=ZstdCodec(level=1))
_CHUNK = (slice(32, 64), slice(64, 96), slice(96, 128))
_BOXES: dict[str, tuple[Box, ...]] = {
    "a chunk": (_CHUNK,),
    "a part of a chunk": ((slice(33, 60), *_CHUNK[1:]),),
    "an element": ((slice(40, 41), slice(70, 71), slice(100, 101)),),
    "a crop of 8 chunks": ((slice(10, 50), slice(40, 80), slice(70, 110)),),
    "an element of each of 512 chunks": tuple(
        (slice(z, z + 1), slice(y, y + 1), slice(x, x + 1))
        for z in range(5, 256, 32)
        for y in range(7, 256, 32)
        for x in range(9, 256, 32)
    ),
}
_PLANES = tuple((slice(i, i + 1), slice(None), slice(None)) for i in range(24))


def cases(scale: float, folder: Path) -> list[Case]:
    """Return the cases of this module; see `benchmarks.__main__.CaseBuilder`."""
    is_meant = scale >= _MEANINGFUL_SCALE
    boxes = _BOXES if is_meant else dict(list(_BOXES.items())[:1])
    volume = [_case(name, _VOLUME, some, folder) for name, some in boxes.items()]
    if not is_meant:
        return volume
    planes = [
        _case("the planes of a chunk, first time", _MAPS, _PLANES, folder, is_first=True),
        _case("the planes of a chunk, again", _MAPS, _PLANES, folder),
        _case("the planes of a chunk at once", _MAPS, ((slice(None),) * 3,), folder),
    ]
    return [*volume, *planes]


def _case(name: str, layout: Layout, boxes: Sequence[Box], folder: Path, *, is_first: bool = False) -> Case:
    def contestants() -> list[Contestant]:
        path = _written(layout, folder)
        values = zarr.open_array(path, path=VARIABLE, mode="r")
        expected = [np.asarray(values[box]) for box in boxes[:8]]
        nbytes = sum(each.nbytes for each in expected) * len(boxes) // len(expected)
        return [
            Contestant(
                name=reader.name,
                side=reader.side,
                nbytes=nbytes,
                prepare=partial(_prepared, reader, path, boxes, expected, is_first=is_first),
            )
            for reader in READERS
        ]

    summary = f"{name}, of {layout.chunks} {layout.compressor.__class__.__name__.removesuffix('Codec').lower()} chunks"
    return Case(name=f"small/{name}", summary=summary, contestants=contestants)


def _prepared(
    reader: Reader, path: Path, boxes: Sequence[Box], expected: Sequence[np.ndarray], *, is_first: bool
) -> Ready:
    if reader.needs and importlib.util.find_spec(reader.needs) is None:
        raise AbsentError(f"not installed ({reader.needs})")
    reader.before()
    read = reader.open(path)
    for box, values in zip(boxes, expected, strict=False):
        if not np.array_equal(np.asarray(read(box)), values):
            raise WrongValuesError(f"{box}")
    if is_first:
        return Ready(measure=partial(_first_seconds, reader, path, boxes))
    _loop(read, boxes)
    return Ready(measure=partial(_seconds, reader, partial(_loop, read, boxes)))


def _loop(read: Read, boxes: Sequence[Box]) -> None:
    for box in boxes:
        read(box)


def _seconds(reader: Reader, loop: Callable[[], None]) -> float:
    """Return the seconds of a loop, repeated for some time; it has run before, so caches are filled."""
    reader.before()
    loop()
    n, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < _LEAST_S:
        loop()
        n += 1
    return took / n


def _first_seconds(reader: Reader, path: Path, boxes: Sequence[Box]) -> float:
    """Return the seconds of a loop over a store that was just opened, with nothing in caches."""
    reader.before()
    chunk_cache.cache.clear()
    read = reader.open(path)
    read((slice(0, 0), slice(0, 0), slice(0, 0)))
    began = time.perf_counter()
    _loop(read, boxes)
    return time.perf_counter() - began


def _written(layout: Layout, folder: Path) -> Path:
    path = folder / f"small-{layout.name}.zarr"
    if not path.exists():
        partial_path = path.with_suffix(".partial")
        group = zarr.create_group(partial_path, overwrite=True)
        values = make_field("volume", layout.shape)
        group.create_array(
            VARIABLE,
            data=values,
            chunks=layout.chunks,
            shards=layout.shards,
            compressors=layout.compressor,
            dimension_names=["z", "y", "x"],
        )
        partial_path.rename(path)
        time.sleep(_SETTLED_S)
    return path
