"""`sample_of`: writes arrays of one shard for the measurements, with values like those of an instrument.

Only a few distinct chunks are compressed, and the shard repeats them, so that a gigabyte is written in a second. A read
of the array decodes every repetition.
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
"""Largest number of distinct chunks in an array."""
_SEED = 20261120


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCodec:
    """A compressor."""

    for_zarr: Callable[[], Any]
    """Returns zarr-python's codec, for the metadata."""
    codec: Any
    """The codec of numcodecs, which encodes."""

    def encode(self, chunk: Values) -> bytes:
        """Return the bytes that are stored for a chunk."""
        return bytes(np.asarray(self.codec.encode(chunk)))


def _blosc(cname: Any) -> SampleCodec:
    return SampleCodec(
        for_zarr=lambda: BloscCodec(cname=cname, clevel=5, shuffle="shuffle", typesize=4),
        codec=numcodecs.Blosc(cname=cname, clevel=5, shuffle=1),
    )


COMPRESSORS: Mapping[str, SampleCodec] = {
    "zstd": SampleCodec(for_zarr=lambda: ZstdCodec(level=3), codec=numcodecs.Zstd(level=3)),
    "gzip": SampleCodec(for_zarr=lambda: GzipCodec(level=5), codec=numcodecs.GZip(level=5)),
    "lz4": SampleCodec(for_zarr=zarr_numcodecs.LZ4, codec=numcodecs.LZ4()),
    "zlib": SampleCodec(for_zarr=lambda: zarr_numcodecs.Zlib(level=5), codec=numcodecs.Zlib(level=5)),
    **{f"blosc {cname}": _blosc(cname) for cname in ("blosclz", "lz4", "zstd", "zlib")},
}
"""Name -> compressor."""


def series(n: int) -> Values:
    """Return a series like that of an instrument, in steps of 1/32, shape (n,).

    It is always the same. zstd compresses it by a factor of five.
    """
    rng = np.random.default_rng(_SEED)
    # A random walk with a step every 2000 elements, interpolated, and noise.
    knots = rng.standard_normal(n // 2000 + 2).cumsum() * 0.5
    value = np.interp(np.arange(n) / 2000, np.arange(len(knots)), knots) + 0.065 * rng.standard_normal(n)
    return np.asarray(280 + np.round(value * 32) / 32, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecSample:
    """A one-dimensional array of float32 in local files, with one shard, which repeats a few chunks in turn."""

    array: zarr.Array[Any]
    tiles: Values
    """Values of the distinct chunks, shape (n_distinct, chunk_length)."""

    @property
    def chunk_length(self) -> int:
        """Number of elements in a chunk."""
        return int(self.tiles.shape[1])

    @property
    def chunk_nbytes(self) -> int:
        """Decoded size of a chunk in bytes."""
        return self.chunk_length * 4

    @property
    def n_chunks(self) -> int:
        """Number of chunks in the array."""
        return int(self.array.shape[0]) // self.chunk_length

    def differs(self, decoded: Any, n_chunks: int) -> bool:
        """Whether a read of the first chunks has a wrong shape or dtype, or wrong values in its first or last chunk."""
        if decoded.shape != (n_chunks * self.chunk_length,) or decoded.dtype != self.tiles.dtype:
            return True
        first_tile = self.tiles[0]
        last_tile = self.tiles[(n_chunks - 1) % len(self.tiles)]
        has_first = np.array_equal(on_host(decoded[: self.chunk_length]), first_tile)
        has_last = np.array_equal(on_host(decoded[-self.chunk_length :]), last_tile)
        return not (has_first and has_last)


def on_host(values: Any) -> npt.NDArray[Any]:
    """Return a NumPy array with the values of an array on the host or on a GPU."""
    return np.asarray(values.get() if hasattr(values, "get") else values)


@contextmanager
def sample_of(codec: str, *, chunk_nbytes: int, n_chunks: int) -> Iterator[CodecSample]:
    """Write an array to a temporary folder, and yield it. The folder is deleted at the end of the ``with`` block.

    Parameters
    ----------
    codec : str
        Key of `COMPRESSORS`.
    chunk_nbytes : int
        Decoded size of a chunk in bytes, a multiple of 4.
    n_chunks : int
        Number of chunks.
    """
    chunk_length = chunk_nbytes // 4
    tiles = series(min(n_chunks, N_DISTINCT) * chunk_length).reshape(-1, chunk_length)
    encoded = list(map(COMPRESSORS[codec].encode, tiles))
    with TemporaryDirectory(prefix="gpuzarr-doctor-") as folder:
        array = write_shard(Path(folder), codec, chunk_length, [encoded[i % len(encoded)] for i in range(n_chunks)])
        yield CodecSample(array=array, tiles=tiles)


def write_shard(folder: Path, codec: str, chunk_length: int, encoded: Sequence[bytes]) -> zarr.Array[Any]:
    """Write an array of one shard and return it.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the array. It is created if it does not exist.
    codec : str
        Key of `COMPRESSORS`.
    chunk_length : int
        Number of elements in a chunk.
    encoded : sequence of bytes
        The encoded chunks, in order.

    References
    ----------
    Zarr v3 sharding-indexed 1.0, "Binary shard format".
    """
    shape = (len(encoded) * chunk_length,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about codecs without a specification, which only this process reads
        array = zarr.create_array(
            str(folder),
            shape=shape,
            shards=shape,
            chunks=(chunk_length,),
            dtype="float32",
            compressors=(COMPRESSORS[codec].for_zarr(),),
            filters=None,
        )
    nbytes = np.array([len(chunk) for chunk in encoded], "<u8")
    index = np.stack([np.cumsum(nbytes) - nbytes, nbytes], axis=1).astype("<u8").tobytes()
    (folder / "c").mkdir()
    with (folder / "c" / "0").open("wb") as shard:
        shard.writelines(encoded)
        shard.write(index + crc32c(index).to_bytes(4, "little"))
    return array
