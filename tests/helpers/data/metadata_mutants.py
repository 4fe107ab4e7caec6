"""Metadata that were changed at random, as JSON trees: ``python -m helpers.data.metadata_mutants --mutants 100000``.

What a mutant is read as is compared with what zarr-python makes of it. It may be refused, by an error of this package;
it may not crash, hang, give another value than zarr-python, or one that depends on what memory held before.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from helpers.data.corpus import counting
from helpers.data.registered_filters import CastValue, ScaleOffset
from helpers.stores.fakes import put, take
from helpers.ways import poisoned_by
from xarray_gpuzarr import GpuZarrError, read_array
from xarray_gpuzarr.backend.lazy_array import find_lazy_array
from xarray_gpuzarr.decoders.host import HostDecoder

DATA = counting((8, 12))
PLAIN, SHARDED = {"chunks": (2, 3)}, {"chunks": (2, 3), "shards": (4, 6)}
TRANSPOSE, CRC32C = TransposeCodec(order=(1, 0)), Crc32cCodec()
SCALED = {"offset": 5, "scale": 2, "dtype": "<i4", "astype": "<i2"}

V3: list[tuple[Any, dict[str, Any]]] = [
    ("i4", SHARDED),
    ("i4", PLAIN),
    ("c8", SHARDED),
    ("i4", SHARDED | {"compressors": BloscCodec(), "filters": TRANSPOSE}),
    ("i4", PLAIN | {"compressors": [zn.Shuffle(elementsize=4), GzipCodec(), Crc32cCodec()]}),
    ("i4", PLAIN | {"filters": zn.Delta(dtype="<i4"), "compressors": zn.LZ4()}),
    ("i4", PLAIN | {"filters": zn.FixedScaleOffset(**SCALED)}),
    ("i4", PLAIN | {"filters": zn.AsType(encode_dtype="<i8", decode_dtype="<i4"), "compressors": zn.Zlib()}),
    ("i4", PLAIN | {"filters": ScaleOffset(offset=5, scale=3)}),
    ("i4", PLAIN | {"filters": CastValue(data_type="int16")}),
    ("f4", PLAIN | {"filters": zn.Quantize(digits=2, dtype="<f4"), "fill_value": np.nan}),
    ("?", PLAIN | {"filters": zn.PackBits()}),
    ("i4", PLAIN | {"compressors": zn.BZ2()}),
    ("i4", PLAIN | {"compressors": zn.JenkinsLookup3(initval=7)}),
    ("M8[s]", PLAIN),
    ("U3", PLAIN),
    (
        "i4",
        {
            "chunks": (4, 6),
            "serializer": ShardingCodec(chunk_shape=(2, 3), index_codecs=[BytesCodec(), CRC32C, CRC32C]),
        },
    ),
]
V2: list[tuple[Any, dict[str, Any]]] = [
    ("i4", PLAIN),
    (">f8", PLAIN | {"compressors": None}),
    ("i4", PLAIN | {"order": "F", "compressors": numcodecs.Blosc()}),
    ("i4", PLAIN | {"filters": [numcodecs.Delta("<i4"), numcodecs.Shuffle(4)], "compressors": numcodecs.Zlib()}),
    ("i4", PLAIN | {"filters": numcodecs.FixedScaleOffset(**SCALED), "compressors": numcodecs.LZ4()}),
    ("i4", PLAIN | {"filters": [numcodecs.AsType("<i8", "<i4"), numcodecs.CRC32()], "compressors": numcodecs.GZip()}),
    ("?", PLAIN | {"filters": numcodecs.PackBits(), "compressors": None}),
    ("f8", PLAIN | {"filters": numcodecs.Quantize(2, "<f8")}),
]
_SCALARS = [-1, 0, 1, 2, 3, 5, 2**31 - 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, 0.5, 1e300]
_OTHERS = [
    math.nan,
    math.inf,
    "",
    "x",
    "little",
    "big",
    "NaN",
    "0x7fc0",
    "C",
    "F",
    "/",
    "<i4",
    ">i4",
    "int32",
    "float64",
]
_LEAVES = [*_SCALARS, *_OTHERS, None, True, False, [], {}, [1], [[1]], {"name": "bytes"}, {"id": "zlib"}]
_KEPT = {"attributes", "zarr_format", "node_type"}

Path = tuple[Any, ...]
Scene = tuple[MemoryStore, str, dict[str, Any]]
"""A group with an array ``t``, the name of its metadata, and these."""


def _scene(zarr_format: Any, dtype: Any, keywords: dict[str, Any]) -> Scene:
    store = MemoryStore()
    zarr.create_group(store, zarr_format=zarr_format)
    named: dict[str, Any] = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"], "scale_factor": 0.5}}
    named = {"dimension_names": ["y", "x"]} if zarr_format == 3 else named
    data = DATA.astype(dtype)
    array = zarr.create_array(
        store, name="t", shape=data.shape, dtype=data.dtype, zarr_format=zarr_format, **named, **keywords
    )
    array[...] = data
    key = "t/zarr.json" if zarr_format == 3 else "t/.zarray"
    return store, key, json.loads(take(store, key))


def mutated(document: dict[str, Any], others: list[dict[str, Any]], rng: random.Random) -> dict[str, Any]:
    """Return a document that was changed in one to three places."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path = rng.choice([path for path in _paths(document) if path and path[0] not in _KEPT])
        _mutate(_at(document, path[:-1]), path[-1], others, rng)
    return document


def _mutate(parent: Any, key: Any, others: list[dict[str, Any]], rng: random.Random) -> None:
    value = parent[key]
    if isinstance(value, list) and rng.randrange(2):
        parent[key] = [rng.choice(_SCALARS)] * len(value)
        return
    match rng.randrange(3, 12) if isinstance(value, int) else rng.randrange(9):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(value))
        case 1:
            parent[f"{key}2"] = parent.pop(key)
        case 2:
            other = rng.choice(others)
            parent[key] = copy.deepcopy(_at(other, rng.choice([*_paths(other)])))
        case 3:
            parent[key] = [value]
        case 9 | 10 | 11:
            parent[key] = rng.choice([-value, 2 * value, value + 1, value - 1, value << 32, float(value), str(value)])
        case _:
            parent[key] = copy.deepcopy(rng.choice(_LEAVES))


def _paths(tree: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    for key in [*tree] if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else []:
        yield from _paths(tree[key], (*path, key))


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def fuzz(n: int, seed: int) -> Counter[str]:
    """Read `n` mutants; return how it went."""
    rng, counts = random.Random(seed), Counter[str]()
    written = [_scene(zarr_format, *kind) for zarr_format, kinds in ((3, V3), (2, V2)) for kind in kinds]
    others = [document for _, _, document in written]
    for _ in range(n):
        store, key, document = rng.choice(written)
        mutant = mutated(document, others, rng)
        text = json.dumps(mutant)
        put(store, key, text.encode())
        try:
            counts.update([_read(store), _open(store)])
        except BaseException as err:
            err.add_note(f"{key}: {text}")
            raise
        finally:
            put(store, key, json.dumps(document).encode())
    return counts


def _read(store: MemoryStore) -> str:
    """Compare what `read_array` and zarr-python make of the array."""
    try:
        array = zarr.open_array(store, path="t", mode="r")
    except Exception:  # noqa: BLE001  # whatever zarr-python raises
        return "zarr-python does not open it"
    ends = tuple([-1, 0] for _ in array.shape)
    assert isinstance(_attempt(lambda: read_array(array, ends, device="host")), np.ndarray | GpuZarrError)
    corner = tuple(slice(2) for _ in array.shape)
    ours = _attempt(lambda: _settled(lambda: read_array(array, corner, device="host")))
    if isinstance(ours, GpuZarrError):
        return "refused"
    assert isinstance(ours, np.ndarray), repr(ours)
    theirs = _attempt(lambda: array[corner]) if _is_small(array) else None
    if not isinstance(theirs, np.ndarray):
        return "read, and not compared"
    assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
    return "read alike"


def _open(store: MemoryStore) -> str:
    """Compare what both engines make of the dataset."""
    ours, theirs = (_opened(store, engine) for engine in ("gpuzarr", "zarr"))
    if isinstance(ours, Exception):
        assert isinstance(ours, GpuZarrError) or type(ours) is type(theirs), repr(ours)
        return "not opened"
    variable = ours.variables.get("t")
    if variable is None or (lazy := find_lazy_array(variable._data)) is None:
        return "opened, and left to xarray"
    corner = {dim: slice(2) for dim in variable.dims}
    mine = _attempt(lambda: _settled(lambda: variable.isel(corner).values))
    assert isinstance(mine, np.ndarray | GpuZarrError), repr(mine)
    if isinstance(mine, Exception) or isinstance(theirs, Exception) or math.prod(lazy.shape) > 10**6:
        return "opened, and not compared"
    other = _attempt(lambda: theirs.variables["t"].isel(corner).values)
    assert isinstance(other, Exception) or np.array_equal(mine, other, equal_nan=mine.dtype.kind in "fc")
    return "opened alike"


def _opened(store: MemoryStore, engine: str) -> Any:
    device = {"device": "host"} if engine == "gpuzarr" else {}
    return _attempt(lambda: xr.open_dataset(store, engine=engine, consolidated=False, chunks=None, **device))


def _attempt(action: Callable[[], Any]) -> Any:
    """Return what comes of an action, or the error it ends in."""
    try:
        return action()
    except Exception as err:  # noqa: BLE001  # whatever it raises is looked at
        return err


def _settled(action: Callable[[], Any]) -> Any:
    """Do it twice over memory that holds other bytes, and return what comes of both."""
    found = []
    for byte in (0x5A, 0xA5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HostDecoder, "empty", poisoned_by(byte, HostDecoder.empty))
            found.append(action())
    assert found[0].tobytes() == found[1].tobytes()
    return found[0]


def _is_small(array: zarr.Array) -> bool:
    try:
        grids = (array.shape, array.chunks, array.shards or ())
    except NotImplementedError:  # an irregular grid
        return False
    return all(math.prod(grid) < 10**6 for grid in grids)


def main(arguments: list[str] | None = None) -> int:
    """Read mutants, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    counts = fuzz(chosen.mutants, chosen.seed)
    sys.stdout.write(f"seed {chosen.seed}: {dict(counts)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
