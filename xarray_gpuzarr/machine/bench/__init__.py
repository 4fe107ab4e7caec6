"""Readers of Zarr arrays, ours and others, measured in turns on one store; ``gpuzarr bench`` prints what comes out."""

from xarray_gpuzarr.machine.bench.readers import READERS, ArrayReader, Location
from xarray_gpuzarr.machine.bench.results import CaseRows, Row
from xarray_gpuzarr.machine.bench.rounds import BenchResult, bench_array

__all__ = [
    "READERS",
    "ArrayReader",
    "BenchResult",
    "CaseRows",
    "Location",
    "Row",
    "bench_array",
]
