"""Partial updates of mutated shards, under sanitizers: ``make fuzz``.

A shard is changed at random, and a box of the array written over it. Either the loops refuse the shard, or the new one
has the box, what the stored chunks beside it decode to, and each chunk that the box does not touch, byte by byte.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import google_crc32c
import imagecodecs
import numcodecs
import numpy as np
import zarr
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.storage import MemoryStore

from helpers.fuzz import mutants, run_sanitized
from helpers.loops import require_loops
from xarray_gpuzarr.errors import ShardIndexError
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.plan.selection import outer_selection
from xarray_gpuzarr.plan.targets import box_target
from xarray_gpuzarr.read import stored_array
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.write.call import WriteCall
from xarray_gpuzarr.write.encoder import Encoder, make_encoder
from xarray_gpuzarr.write.written_object import DamagedObjectError

CHUNK, N_CHUNKS = 16, 8
LENGTH = CHUNK * N_CHUNKS
_MISSING = 2**64 - 1
_ENTRY_NBYTES, _CRC_NBYTES = 16, 4


class Layout(NamedTuple):
    """How shards of one kind are encoded."""

    spec: ArraySpec
    encoder: Encoder
    codec: Any
    """Of numcodecs; None for raw chunks."""
    is_first: bool
    """Whether the index is."""
    shards: list[bytes]


def layouts() -> Iterator[Layout]:
    """Yield raw, zstd, Blosc and gzip shards, some with missing chunks, the index at either end."""
    codecs: list[tuple[BytesBytesCodec | None, Any]] = [
        (None, None),
        (ZstdCodec(level=1), numcodecs.Zstd()),
        (BloscCodec(cname="lz4", typesize=4), numcodecs.Blosc()),
        (GzipCodec(level=1), numcodecs.GZip()),
    ]
    for compressor, codec in codecs:
        for location in ("end", "start"):
            shards = []
            for n_written in (LENGTH, 5 * CHUNK):
                objects: dict[str, Any] = {}
                sharding = zarr.codecs.ShardingCodec(
                    chunk_shape=(CHUNK,),
                    codecs=[zarr.codecs.BytesCodec(), *([compressor] if compressor else [])],
                    index_location=location,
                )
                array = zarr.create_array(
                    MemoryStore(objects),
                    shape=(LENGTH,),
                    chunks=(LENGTH,),
                    dtype="i4",
                    serializer=sharding,
                    compressors=None,
                )
                array[:n_written] = np.arange(n_written) % 50 + 1
                shards.append(objects["c/0"].to_bytes())
            spec = stored_array(array).spec
            assert isinstance(spec, ArraySpec)
            encoder = make_encoder(spec, "morton")
            assert isinstance(encoder, Encoder)
            yield Layout(spec, encoder, codec, location == "start", shards)


def entries(layout: Layout, shard: bytes) -> list[bytes | None] | None:
    """Return the encoded chunks of a shard, None for those that are missing; None if its index is damaged."""
    nbytes = N_CHUNKS * _ENTRY_NBYTES
    index = shard[: nbytes + _CRC_NBYTES] if layout.is_first else shard[-nbytes - _CRC_NBYTES :]
    numbers, checksum = index[:nbytes], int.from_bytes(index[nbytes:], "little")
    if len(index) != nbytes + _CRC_NBYTES or google_crc32c.value(numbers) != checksum:
        return None
    pairs = np.frombuffer(numbers, "<u8").reshape(N_CHUNKS, 2).tolist()
    return [None if pair == [_MISSING] * 2 else shard[pair[0] : sum(pair)] for pair in pairs]


def decoded(layout: Layout, chunk: bytes | None) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the elements of a chunk."""
    if chunk is None:
        return np.zeros(CHUNK, "i4")
    if layout.codec is None:
        return np.frombuffer(chunk, "<i4")
    try:
        return np.frombuffer(layout.codec.decode(chunk), "<i4")
    except zlib.error:
        # libdeflate decodes some distances that zlib refuses; the checksum in gzip tells right from wrong.
        return np.frombuffer(imagecodecs.gzip_decode(chunk), "<i4")


def update(layout: Layout, old: bytes, first: int, end: int, folder: Path | None = None) -> bytes | None:
    """Write elements ``[first, end)`` over what is stored in `old`; None if the loops refuse it.

    In memory, or in a file below `folder`, which has to stay as it is then.
    """
    target = box_target(outer_selection((slice(first, end),), (LENGTH,)), layout.spec.grid)
    call = WriteCall(layout.encoder, target, np.arange(first, end, dtype="i4") + 1000, keeps_empty=False)
    needed: list[memoryview | None] = [memoryview(old) if each.needs_stored else None for each in call.objects]
    try:
        if folder is None:
            (new,) = call.to_memory(call.objects, needed)
            assert new is not None
            return new.tobytes()
        file = folder / call.objects[0].key
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(old)
        call.to_files(call.objects, LocalSource(root=str(folder)))
        return file.read_bytes()
    except (DamagedObjectError, ShardIndexError):
        assert folder is None or [each.read_bytes() for each in file.parent.iterdir()] == [old]
        return None


def check(layout: Layout, old: bytes, new: bytes, first: int, end: int) -> None:
    """Raise unless a new shard is right."""
    before, after = entries(layout, old), entries(layout, new)
    assert after is not None
    if (first, end) == (0, LENGTH):
        before = [None] * N_CHUNKS
    assert before is not None, "a damaged index was taken"
    for number, (was, now) in enumerate(zip(before, after, strict=True)):
        low, high = max(first - number * CHUNK, 0), min(end - number * CHUNK, CHUNK)
        if low >= high:
            assert was == now
            continue
        values = np.zeros(CHUNK, "i4") if high - low == CHUNK else decoded(layout, was).copy()
        values[low:high] = np.arange(low, high) + number * CHUNK + 1000
        assert decoded(layout, now).tolist() == values.tolist()


def fuzz(n: int, seed: int) -> dict[str, int]:
    """Update `n` mutated shards, one of 16 in a file; return how it went."""
    require_loops()
    with TemporaryDirectory() as folder:
        return _fuzz(n, seed, Path(folder))


def _fuzz(n: int, seed: int, folder: Path) -> dict[str, int]:
    rng, counts = np.random.default_rng(seed), {"updates": 0, "written": 0}
    streams = [(layout, mutants(layout.shards, seed)) for layout in layouts()]
    for layout, stream in cycle(streams):
        for old, box in zip(islice(stream, 250), rng.integers(0, LENGTH + 1, (250, 2)).tolist(), strict=True):
            if counts["updates"] == n:
                return counts
            first, end = min(box), max(box)
            if first == end:
                continue
            old = signed(layout, old) if box[0] % 2 else old  # noqa: PLW2901
            new = update(layout, old, first, end, None if box[1] % 16 else folder)
            counts["updates"] += 1
            if new is not None:
                counts["written"] += 1
                try:
                    check(layout, old, new, first, end)
                except Exception as err:
                    raise AssertionError(f"{layout.spec.codecs} {first}:{end} of {old.hex()} gave {new.hex()}") from err
    raise AssertionError


def signed(layout: Layout, shard: bytes) -> bytes:
    """Return a shard with the right checksum of its index, whatever that says."""
    nbytes = N_CHUNKS * _ENTRY_NBYTES
    if len(shard) < nbytes + _CRC_NBYTES:
        return shard
    first = 0 if layout.is_first else len(shard) - nbytes - _CRC_NBYTES
    checksum = google_crc32c.value(shard[first : first + nbytes]).to_bytes(_CRC_NBYTES, "little")
    return shard[: first + nbytes] + checksum + shard[first + nbytes + _CRC_NBYTES :]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run under sanitizers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args(arguments)
    if os.environ.get("XARRAY_GPUZARR_SANITIZE") != "1":
        return run_sanitized("helpers.fuzzed_updates", f"--updates={chosen.updates}", f"--seed={chosen.seed}")
    begun = time.perf_counter()
    counts = ", ".join(f"{value} {key}" for key, value in fuzz(chosen.updates, chosen.seed).items())
    sys.stdout.write(f"{counts}; seed {chosen.seed}, {time.perf_counter() - begun:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
