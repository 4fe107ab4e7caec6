"""Readers of Zarr arrays, ours and others, measured in turns on one store; ``gpuzarr bench`` prints what comes out."""

from xarray_gpuzarr.machine.bench.readers import READERS, ArrayReader, Location, Operation, ReaderAbsentError
from xarray_gpuzarr.machine.bench.rounds import BenchResult, Row, bench_array

__all__ = [
    "READERS",
    "ArrayReader",
    "BenchResult",
    "Location",
    "Operation",
    "ReaderAbsentError",
    "Row",
    "bench_array",
]
