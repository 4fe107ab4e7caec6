"""Writes arrays to be read: values like those of an instrument, in one shard of repeated chunks.

Only some chunks are compressed, so that an array of a gigabyte is there in a second; every copy is read and decoded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs

from xarray_gpuzarr.native.library import crc32c

Values = npt.NDArray[np.float32]

N_DISTINCT = 8
"""Chunks that are compressed for an array."""
_SEED = 20261120


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCodec:
    """One compressor, as zarr stores it and as numcodecs encodes with it."""

    for_zarr: Callable[[], Any]
    codec: Any

    def encode(self, chunk: Values) -> bytes:
        """Return the bytes of a stored chunk."""
        return bytes(np.asarray(self.codec.encode(chunk)))


def _blosc(cname: Any) -> SampleCodec:
    return SampleCodec(
        for_zarr=lambda: BloscCodec(cname=cname, clevel=5, shuffle="shuffle", typesize=4),
        codec=numcodecs.Blosc(cname=cname, clevel=5, shuffle=1),
    )


WRITERS: Mapping[str, SampleCodec] = {
    "zstd": SampleCodec(for_zarr=lambda: ZstdCodec(level=3), codec=numcodecs.Zstd(level=3)),
    "gzip": SampleCodec(for_zarr=lambda: GzipCodec(level=5), codec=numcodecs.GZip(level=5)),
    "lz4": SampleCodec(for_zarr=zarr_numcodecs.LZ4, codec=numcodecs.LZ4()),
    "zlib": SampleCodec(for_zarr=lambda: zarr_numcodecs.Zlib(level=5), codec=numcodecs.Zlib(level=5)),
    **{f"blosc {cname}": _blosc(cname) for cname in ("blosclz", "lz4", "zstd", "zlib")},
}
"""By name of the codec."""


def series(n: int) -> Values:
    """Return a record in steps of 1/32, as an instrument gives it: zstd shrinks it five times. Always the same."""
    rng = np.random.default_rng(_SEED)
    knots = rng.standard_normal(n // 2000 + 2).cumsum() * 0.5
    value = np.interp(np.arange(n) / 2000, np.arange(len(knots)), knots) + 0.065 * rng.standard_normal(n)
    return np.asarray(280 + np.round(value * 32) / 32, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSample:
    """A one-dimensional array of float32 in local files, one shard, whose chunks repeat."""

    array: zarr.Array[Any]
    tiles: Values
    """shape (distinct chunks, elements of a chunk)."""

    @property
    def edge(self) -> int:
        """Elements of a chunk."""
        return int(self.tiles.shape[1])

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of a chunk."""
        return self.edge * 4

    @property
    def n_chunks(self) -> int:
        """Chunks of the array."""
        return int(self.array.shape[0]) // self.edge

    def box(self, n_chunks: int) -> slice:
        """Return the selection of the first chunks."""
        return slice(0, n_chunks * self.edge)

    def differs(self, decoded: Any, n_chunks: int) -> bool:
        """Say whether a read of the first chunks has a wrong length, or wrong values in its first or last chunk."""
        if decoded.shape != (n_chunks * self.edge,) or decoded.dtype != self.tiles.dtype:
            return True
        ends = ((0, decoded[: self.edge]), ((n_chunks - 1) % len(self.tiles), decoded[-self.edge :]))
        return any(not np.array_equal(on_host(part), self.tiles[tile]) for tile, part in ends)


def on_host(values: Any) -> npt.NDArray[Any]:
    """Return the values of an array, wherever it is."""
    return np.asarray(values.get() if hasattr(values, "get") else values)


@contextmanager
def sample_of(codec: str, *, chunk_nbytes: int, n_chunks: int) -> Iterator[CodecSample]:
    """Write an array of `n_chunks` chunks into a folder that lasts as long as a ``with`` block."""
    edge = chunk_nbytes // 4
    tiles = series(min(n_chunks, N_DISTINCT) * edge).reshape(-1, edge)
    encoded = list(map(WRITERS[codec].encode, tiles))
    with TemporaryDirectory(prefix="gpuzarr-doctor-") as folder:
        array = write(Path(folder), codec, edge, [encoded[i % len(encoded)] for i in range(n_chunks)])
        yield CodecSample(array=array, tiles=tiles)


def write(folder: Path, codec: str, edge: int, encoded: Sequence[bytes]) -> zarr.Array[Any]:
    """Write one shard of encoded chunks into a folder, which may be missing; return the array.

    References
    ----------
    Zarr v3 sharding-indexed 1.0, "Binary shard format".
    """
    shape = (len(encoded) * edge,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of codecs that no specification has: this is read here and nowhere else
        array = zarr.create_array(
            str(folder),
            shape=shape,
            shards=shape,
            chunks=(edge,),
            dtype="float32",
            compressors=(WRITERS[codec].for_zarr(),),
            filters=None,
        )
    nbytes = np.array([len(chunk) for chunk in encoded], "<u8")
    index = np.stack([np.cumsum(nbytes) - nbytes, nbytes], axis=1).astype("<u8").tobytes()
    (folder / "c").mkdir()
    with (folder / "c" / "0").open("wb") as shard:
        shard.writelines(encoded)
        shard.write(index + crc32c(index).to_bytes(4, "little"))
    return array
