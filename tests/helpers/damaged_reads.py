"""Reads of damaged chunks with the compiled loops and without: ``python -m helpers.damaged_reads zstd 100 1``.

Both ways must give the same values or raise the same error. Prints how many reads gave values, how many errors, and how
many chunks the loops took.
"""

import itertools
import sys
import warnings

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from helpers.fuzz import CONTENT, SPECS, mutants
from helpers.loops import Taken, require_loops, rows_taken, without_loops
from helpers.stores.fakes import put, take
from helpers.stores.shards import with_chunk
from xarray_gpuzarr import GpuZarrError, read_array

N_CHUNKS, DAMAGED = 6, 2
DATA = np.tile(np.frombuffer(CONTENT, "<i4"), N_CHUNKS)
COMPRESSORS = {
    "none": None,
    "zstd": ZstdCodec(),
    "gzip": GzipCodec(),
    "zlib": zn.Zlib(),
    "lz4": zn.LZ4(),
    "blosc": BloscCodec(),
}


class Damaged:
    """An array of one shard, of which one chunk is replaced, between others that are whole."""

    def __init__(self, codec: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numcodecs' codecs
            nbytes = len(DATA) // N_CHUNKS
            self._array = zarr.create_array(
                MemoryStore(),
                data=DATA,
                chunks=(nbytes,),
                shards=(len(DATA),),
                compressors=COMPRESSORS[codec],
            )
        self._shard = take(self._array.store, "c/0")

    def read(self, frame: bytes) -> bytes | str:
        """Read with this frame in place of a chunk; return the bytes of its elements, or what error there was.

        Fails if another chunk is wrong.
        """
        put(self._array.store, "c/0", with_chunk(self._shard, N_CHUNKS, DAMAGED, frame))
        try:
            found = read_array(self._array, slice(1, None), device="host").tobytes()
        except GpuZarrError as error:
            return f"{type(error).__name__}: {error}"
        first, expected = DAMAGED * len(CONTENT) - 4, DATA[1:].tobytes()
        assert found[:first] == expected[:first]
        assert found[first + len(CONTENT) :] == expected[first + len(CONTENT) :]
        return found[first : first + len(CONTENT)]

    def both(self, frame: bytes) -> tuple[bytes | str, bytes | str, Taken]:
        """Return what is read with the loops and without, and what the loops did."""
        with rows_taken() as taken:
            by_loops = self.read(frame)
        with pytest.MonkeyPatch.context() as patch:
            without_loops(patch)
            in_python = self.read(frame)
        return by_loops, in_python, taken


def frames_of(codec: str) -> list[bytes]:
    """Return right frames, written in all ways."""
    if codec == "none":
        return [CONTENT]
    if codec == "blosc":  # snappy is not in every C-Blosc
        return [frame for frame in SPECS[codec][1] if frame[2] >> 5 != 2]
    frames = SPECS[codec][1]
    return [*frames, bytes(numcodecs.Zstd(checksum=True).encode(CONTENT))] if codec == "zstd" else frames


def compare(codec: str, n: int, seed: int) -> tuple[int, int, int]:
    """Read `n` mutants both ways; return how many gave values, how many errors, and the chunks that loops took."""
    damaged, n_values, n_rows = Damaged(codec), 0, 0
    stream = mutants(frames_of(codec), seed, length_at=12 if codec == "blosc" else None)
    for frame in itertools.islice(stream, n):
        by_loops, in_python, taken = damaged.both(frame)
        assert by_loops == in_python, f"{codec} {frame.hex()}:\n{by_loops!r}\n{in_python!r}"
        n_values += isinstance(by_loops, bytes)
        n_rows += taken.n_rows
    return n_values, n - n_values, n_rows


def main() -> None:
    codec, n, seed = sys.argv[1:]
    require_loops()
    for name in COMPRESSORS if codec == "all" else [codec]:
        n_values, n_errors, n_rows = compare(name, int(n), int(seed))
        sys.stdout.write(f"{name} {n_values} {n_errors} {n_rows}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
