"""Batches for nvCOMP in host memory, laid out as unfavourably as is allowed."""

import gzip
import zlib

import imagecodecs
import numcodecs
import numpy as np
import zstandard

from helpers.simulated.fake_nvcomp import needed_temp
from xarray_gpuzarr.cuda.nvcomp import Batch, Format, Nvcomp


def _deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


ENCODE = {
    "zstd": zstandard.ZstdCompressor().compress,
    "lz4": lambda data: numcodecs.LZ4().encode(data)[4:],
    "gzip": gzip.compress,
    "gzip, looking ahead": gzip.compress,
    "deflate": _deflate,
    "snappy": lambda data: imagecodecs.snappy_encode(data, None),
}
LENGTHS = [1, 70_000, *range(2, 2000, 50)]
CHUNKS = [np.arange(n, dtype="u2").tobytes()[:n] for n in LENGTHS]
NAMES = {"zstd": "Zstd", "gzip, looking ahead": "Gzip, looking ahead"}
"""Of formats that need scratch memory."""


class HostBatch:
    """Chunks that start as misaligned as their format allows."""

    def __init__(self, fmt: Format, encoded: list[bytes], capacity: list[int]) -> None:
        n = len(encoded)
        self.fmt = fmt
        self.sources = [_misaligned(chunk, 4 if fmt in {"deflate", "gzip, looking ahead"} else 1) for chunk in encoded]
        self.outputs = [np.zeros(nbytes, "u1") for nbytes in capacity]
        self.temp = np.zeros(needed_temp(NAMES.get(fmt, fmt), n, sum(capacity)) // 8 + (fmt in NAMES), "u8")
        self.columns = {
            "sources": np.array([source.ctypes.data for source in self.sources], "u8"),
            "source_nbytes": np.array([len(source) for source in self.sources], "u8"),
            "capacity": np.array(capacity, "u8"),
            "actual": np.full(n, 99, "u8"),
            "outputs": np.array([output.ctypes.data for output in self.outputs], "u8"),
            "statuses": np.full(n, -1, "i4"),
        }
        self.addresses = {name: column.ctypes.data for name, column in self.columns.items()}
        self.addresses["temp"] = self.temp.ctypes.data

    def decompress(self, functions: object, *, stream: int = 0, lacking: int = 0) -> None:
        """Decode through the binding; `lacking` bytes of scratch memory are kept back."""
        addresses = dict(self.addresses)
        scratch = {"temp": addresses.pop("temp"), "temp_nbytes": self.temp.nbytes - lacking}
        batch = Batch(**addresses)
        Nvcomp(functions).decompress(self.fmt, batch, n_chunks=len(self.outputs), **scratch, stream=stream)

    @property
    def statuses(self) -> list[int]:
        return self.columns["statuses"].tolist()

    @property
    def decoded(self) -> list[bytes]:
        actual = self.columns["actual"].tolist()
        return [output[:nbytes].tobytes() for output, nbytes in zip(self.outputs, actual, strict=True)]


def whole_batch(fmt: Format) -> HostBatch:
    """Return a batch of `CHUNKS`."""
    return HostBatch(fmt, [ENCODE[fmt](chunk) for chunk in CHUNKS], LENGTHS)


def _misaligned(chunk: bytes, alignment: int) -> np.ndarray:
    memory = np.zeros(len(chunk) + 16, "u1")
    first = -memory.ctypes.data % 8 + alignment
    memory[first : first + len(chunk)] = np.frombuffer(chunk, "u1")
    return memory[first : first + len(chunk)]
