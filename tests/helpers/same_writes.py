"""Writes by `ds.gpuzarr.to_zarr` beside those of xarray with the same chunks: the same bytes, or the same error."""

import re
import warnings
from collections.abc import Iterable

import dask
import numpy as np
import xarray as xr
import zarr
from zarr.storage import MemoryStore

from helpers.data.random_datasets import Draw, Write
from xarray_gpuzarr.backend.accessor.encodings import layout_of
from xarray_gpuzarr.errors import OptionError

METADATA = (".json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


def by_xarray(store: MemoryStore, write: Write, zarr_format: int) -> None:
    """Write with xarray alone, in the chunks and shards that the accessor would choose."""
    layout = layout_of(write.dataset.dims, write.chunks, write.shards, zarr_format)
    ds, options = write.dataset.copy(), dict(write.options)
    changes = options.pop("encoding", {})
    for name, variable in ds.variables.items():
        shapes = layout.shapes(name, variable)
        encoding = dict(variable.encoding)
        if shapes or (variable.chunks is not None and variable.size):
            encoding = {k: v for k, v in encoding.items() if k not in ("chunks", "shards", "preferred_chunks")}
        variable.encoding = encoding | shapes | dict(changes.get(name, {}))
        if variable.chunks is not None:  # one block of dask, so that no two tasks write to one shard
            lengths = dict.fromkeys(variable.dims, -1) if shapes else map(max, variable.chunks)
            whole = variable.chunk(lengths if shapes else dict(zip(variable.dims, lengths, strict=True)))
            variable.data = whole.data
    for name, change in changes.items():
        variable = ds.variables[name].to_base_variable().drop_encoding().load()
        alone = xr.Dataset(coords=xr.Coordinates({name: variable}, indexes={}))
        alone.to_zarr(MemoryStore(), encoding={name: dict(change)}, zarr_format=zarr_format, consolidated=False)
        if options.get("mode") in ("a", "r+", "a-"):
            raise NotImplementedError
    with dask.config.set(scheduler="synchronous"):  # in threads, two tasks would write to one chunk of text
        delayed = ds.to_zarr(store, **options, safe_chunks=False)
        if options.get("compute") is False:
            delayed.compute()


def by_accessor(store: MemoryStore, write: Write) -> None:
    delayed = write.dataset.gpuzarr.to_zarr(store, write.chunks, write.shards, rechunk=True, **write.options)
    if write.options.get("compute") is False:
        delayed.compute()


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


def outcome(write, store, *arguments):
    try:
        write(store, *arguments)
    except Exception as err:  # noqa: BLE001  # it is compared
        return err
    return None


def compare(seed: int) -> str:
    """Make the writes of a seed in both ways; return how they ended, or raise `AssertionError`."""
    return compare_writes(Draw(seed).writes(), f"seed {seed}, ")


def compare_writes(writes: Iterable[Write], about: str = "") -> str:
    """Make writes in both ways; return how they ended, or raise `AssertionError`."""
    stores = MemoryStore(), MemoryStore()
    for number, write in enumerate(writes):
        zarr_format = write.options.get("zarr_format") or _format_of(stores[0], write.options)
        said = f"{about}write {number}: {write.options}, {write.chunks}, {write.shards}\n{write.dataset}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if write.before is not None:
                for store in stores:
                    write.before(store)
            expected = outcome(by_xarray, stores[0], write, zarr_format)
            found = outcome(by_accessor, stores[1], write)
        for refused in ("do not fit the", "arrays of different lengths", "are stored in one array"):
            if isinstance(found, OptionError) and refused in str(found):
                return refused  # xarray would store other values, or what cannot be opened
        if isinstance(expected, NotImplementedError) and not str(expected):
            return "skipped"
        other_codecs = re.search("Codec. Got|is not iterable|do not support `serializer`", str(expected))
        if found is None and isinstance(expected, TypeError | ValueError) and other_codecs:
            return "codecs of the other format"
        # xarray encodes variables in no order, so another one may be the first to fail.
        assert (found is None) == (expected is None), f"{said}\nexpected {expected!r}\nfound {found!r}"
        if expected is not None:
            return f"error {number}"
        different = differences(*stores)
        assert not different, f"{said}\n{different[:5]}\n{_first(*map(contents, stores), different[0])}"
    return "same"


def differences(one: MemoryStore, other: MemoryStore) -> list[str]:
    """Return the keys whose objects differ, but for what gzip and zlib make of equal values."""
    first, second = contents(one), contents(other)
    different = [key for key in first | second if first.get(key) != second.get(key)]
    return [key for key in different if not _is_equal_gzip(one, other, key)]


def _is_equal_gzip(one, other, key):
    """Whether an object holds chunks of gzip or zlib, and its array has the same values in both stores."""
    keys = {*contents(one)} & {*contents(other)}
    if key.endswith(METADATA) or key not in keys:
        return False
    parts = key.split("/")
    parents = ["/".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]
    path = next(path for path in parents if {f"{path}/zarr.json", f"{path}/.zarray"} & keys)
    first, second = (zarr.open_array(store, path=path) for store in (one, other))
    codecs = str(first.compressors).lower()
    values, others = (repr(np.asarray(array[...]).tolist()) for array in (first, second))
    return ("gzip" in codecs or "zlib" in codecs) and values == others


def _format_of(store, options):
    if options.get("mode") == "w":
        return 3
    return 3 if any(key.endswith("zarr.json") for key in store._store_dict) else 2


def _first(one, other, key):
    a, b = one.get(key), other.get(key)
    if key.endswith(METADATA):
        return f"xarray: {a and a.decode()}\nours: {b and b.decode()}"
    return f"xarray: {a and np.frombuffer(a, 'u1')[:60]}\nours: {b and np.frombuffer(b, 'u1')[:60]}"
