"""A program: read an array once and print how many lengths of it were held or copied beyond the result.

`copies_cases` runs ``python -m benchmarks.count_copies '{"reader": ..., "store": ..., "path": ..., "variable": ...}'``.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from obstore.store import LocalStore as ObstoreLocal
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ObjectStore

from benchmarks.range_server import RangeServer
from benchmarks.remote.cases import fsspec_store, s3_store
from xarray_gpuzarr import read_array
from xarray_gpuzarr.bench.readers import PIPELINES

Read = Callable[[zarr.Array[Any]], Any]


def main(request: dict[str, str]) -> None:
    """Carry out a request."""
    warnings.simplefilter("ignore")
    path, reader = Path(request["path"]), request["reader"]
    with _opened(request["store"], path) as store:
        pipeline = PIPELINES[reader.removeprefix("zarr ")] if reader.startswith("zarr ") else PIPELINES["default"]
        with zarr.config.set({"codec_pipeline.path": pipeline}):
            array = zarr.open_array(store, path=request["variable"], mode="r")
        count = _count_on_device if "simulated" in reader else _count_allocated
        print(count(array, _zarr if reader.startswith("zarr ") else _ours))


def _zarr(array: zarr.Array[Any]) -> Any:
    return array[...]


def _ours(array: zarr.Array[Any]) -> Any:
    return read_array(array, device="host")


@contextmanager
def _opened(name: str, path: Path) -> Iterator[Store]:
    if name == "local":
        yield LocalStore(path)
    elif name == "obstore local":
        yield ObjectStore(ObstoreLocal(path))
    else:
        with RangeServer(path.parent.parent) as server:
            yield ObjectStore(s3_store(server, path)) if name == "obstore S3" else fsspec_store(server, path)


def _count_allocated(array: zarr.Array[Any], read: Read) -> float:
    """Return the most memory that was allocated at once, less the result, over the array's length."""
    import memray  # noqa: PLC0415 - only here, it is slow to import

    _warm_up(array, read)
    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory) / "record"
        destination = memray.FileDestination(record)
        with memray.Tracker(destination=destination, file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS):
            result = read(array)
        peak = memray.FileReader(record).metadata.peak_memory
    return float((peak - result.nbytes) / result.nbytes)


def _warm_up(array: zarr.Array[Any], read: Read) -> None:
    """Let modules and pools be made before anything is counted."""
    small = zarr.create_array(MemoryStore(), data=np.zeros(1000, array.dtype), compressors=array.compressors)
    read(small)
    zarr.open_array(array.store, path=array.path, mode="r")


def _count_on_device(array: zarr.Array[Any], _: Read) -> float:
    """Return the bytes that the host copied into pinned memory, over the array's; what was read there is none."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from helpers.simulator import SimulatedDevice  # type: ignore[import-not-found]  # noqa: PLC0415 - of the tests

    from xarray_gpuzarr.decoders.cuda import CudaDecoder, image  # noqa: PLC0415
    from xarray_gpuzarr.read import read, stored_array  # noqa: PLC0415

    copied, copy_bytes = [0], image.copy_bytes

    def counting_copy(src: memoryview, dst: memoryview) -> None:
        copied[0] += len(src)
        copy_bytes(src, dst)

    image.copy_bytes = counting_copy  # type: ignore[assignment]
    device = SimulatedDevice(1, memory_nbytes=1 << 33)
    values = read(stored_array(array), ..., CudaDecoder(lambda: device))
    return float(copied[0] / values.nbytes)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
