"""Who gives batches, and how: `xarray_gpuzarr.batches`, and its peers in the best ways that they have.

Every loader opens its array before the clock starts, reads what is stored each time, and gives batches as NumPy arrays
of shape (BATCH, *crop). Samples are read one after another by plain xbatcher only; all others have a batch's under way
at once, and read as many batches ahead as ours. Peers are imported by the loader that needs them.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr
import zarr
from zarr.storage import LocalStore, ObjectStore

from benchmarks.host.task import Array
from benchmarks.remote.readers import s3_store
from benchmarks.runner.readers import PIPELINES, AbsentError
from benchmarks.runner.results import Side
from benchmarks.training.feeds import BATCH, PREFETCH, Feed
from xarray_gpuzarr import batches
from xarray_gpuzarr.fetch import index_cache

Epoch = Callable[[], Iterator[Array]]
"""Begins to read all batches of a feed, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One row of a table."""

    name: str
    side: Side = "peer"
    open: Callable[[Feed], Callable[[], Iterator[Any]]]
    in_order: bool = True
    """Whether batches come in the order of the feed; else an epoch gives pairs, of samples' numbers and samples."""
    needs: str = ""
    """Module that has to be installed."""
    settings: Mapping[str, object] = field(default_factory=lambda: {"codec_pipeline.path": PIPELINES["default"]})
    """Of zarr-python."""

    def why_absent(self) -> str:
        """Say what is missing for this loader; nothing if it can take part. Imports nothing."""
        return f"not installed (pip install {self.needs})" if self.needs and not find_spec(self.needs) else ""


def _store(feed: Feed) -> Any:
    return ObjectStore(s3_store(feed.url, feed.path.name), read_only=True) if feed.url else feed.path


def _open_dataset(feed: Feed, engine: str, chunks: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(_store(feed), engine=engine, chunks=chunks, cache=False, consolidated=False, **options)


# ---- ours


def _open_ours(chunks: Any, feed: Feed) -> Epoch:
    ds = _open_dataset(feed, "gpuzarr", chunks, device="host")
    variable, dims = feed.workload.variable, feed.workload.dims
    positions = dict(zip(dims, feed.start.reshape(-1, len(dims)).T, strict=True))
    sizes = dict(zip(dims, feed.crop, strict=True))
    loader = batches(ds, sizes=sizes, batch=BATCH, positions=positions, prefetch=PREFETCH)

    def epoch() -> Iterator[Array]:
        index_cache.cache.clear()
        return (batch[variable].values for batch in loader)

    return epoch


# ---- peers

Start = Callable[[Any], Callable[[], Array]]
"""Begins to read a batch, and returns what waits for it."""


def _ahead(start: Start, wanted: Sequence[Any]) -> Iterator[Array]:
    """Give all batches, the next ones being read meanwhile."""
    under_way = deque(map(start, wanted[:PREFETCH]))
    for number in range(len(wanted)):
        batch = under_way.popleft()()
        under_way.extend(map(start, wanted[number + PREFETCH :][:1]))
        yield batch


def _by_threads(read: Callable[[Any], Array], wanted: Sequence[Sequence[Any]]) -> Epoch:
    """Read every sample on a thread of its own: those of all batches that are under way at once."""
    threads = ThreadPoolExecutor(BATCH * PREFETCH)

    def start(batch: Sequence[Any]) -> Callable[[], Array]:
        samples = [threads.submit(read, each) for each in batch]
        return lambda: np.stack([sample.result() for sample in samples])

    return lambda: _ahead(start, wanted)


def _open_xbatcher(feed: Feed) -> Epoch:
    generator, variable = _generator(feed), feed.workload.variable

    def read(batch: Sequence[int]) -> Array:
        return np.stack([generator[number][variable].values for number in batch])

    return lambda: map(read, feed.sample.tolist())


def _open_xbatcher_threads(feed: Feed) -> Epoch:
    generator, variable = _generator(feed), feed.workload.variable
    return _by_threads(lambda number: generator[number][variable].values, feed.sample.tolist())


def _generator(feed: Feed) -> Any:
    """Return xbatcher's samples; variables that are lazy without dask, which is several times quicker than with it."""
    dims = feed.workload.dims
    overlap = {dim: n - stride for dim, n, stride in zip(dims, feed.crop, feed.stride, strict=True)}
    ds = _open_dataset(feed, "zarr", None)
    make = importlib.import_module("xbatcher").BatchGenerator
    return make(ds, input_dims=dict(zip(dims, feed.crop, strict=True)), input_overlap=overlap)


def _open_zarr(feed: Feed) -> Epoch:
    array: Any = zarr.open_array(_store(feed), path=feed.workload.variable, mode="r")
    return _by_threads(lambda box: array[box], feed.boxes)


def _open_tensorstore(feed: Feed) -> Epoch:
    tensorstore = importlib.import_module("tensorstore")
    folder = feed.path / feed.workload.variable
    url = f"{feed.url}/stores/{feed.path.name}/{feed.workload.variable}/"
    kvstore = {"driver": "http", "base_url": url} if feed.url else {"driver": "file", "path": f"{folder}/"}
    array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, read=True).result()

    def start(boxes: Sequence[Any]) -> Callable[[], Array]:
        samples = [array[box].read(order="C") for box in boxes]
        return lambda: np.stack([sample.result() for sample in samples])

    return lambda: _ahead(start, feed.boxes)


def _open_insitubatch(feed: Feed) -> Callable[[], Iterator[tuple[Array, Array]]]:
    """Open it as global a shuffle as it has: all chunks in one block, which it decodes once each and holds."""
    shape, variable = feed.workload.shape, feed.workload.variable
    if feed.crop != (1, *shape[1:]) or feed.n_samples != shape[0]:
        raise AbsentError("gives whole samples of an axis, in an order of its own")
    found = importlib.import_module("insitubatch")
    store = ObjectStore(s3_store(feed.url, feed.path.name), read_only=True) if feed.url else LocalStore(feed.path)
    geometries = found.open_geometries(store, variables=[variable])
    split = found.split_by_chunk(geometries[variable], fractions=(1.0, 0.0, 0.0))

    def epoch() -> Iterator[tuple[Array, Array]]:
        options = {"batch_size": BATCH, "block_chunks": split.n_chunks, "prefetch_depth": PREFETCH}
        dataset = found.InSituDataset(store, split, geometries=geometries, **options)  # anew: it keeps what it decoded
        try:
            for batch in dataset.train:
                yield batch.sample_indices, batch.arrays[variable][:, None]
        finally:
            dataset.close()

    return epoch


_LOADERS = (
    Loader(name="zarr default, threads", open=_open_zarr),
    Loader(name="TensorStore, futures", open=_open_tensorstore, needs="tensorstore"),
    Loader(name="xbatcher", open=_open_xbatcher, needs="xbatcher"),
    Loader(name="xbatcher, threads", open=_open_xbatcher_threads, needs="xbatcher"),
    Loader(name="insitubatch", open=_open_insitubatch, needs="insitubatch", in_order=False),
    Loader(name="gpuzarr batches, no dask", side="ours", open=partial(_open_ours, None)),
    Loader(name="gpuzarr batches, chunks={}", side="ours", open=partial(_open_ours, {})),
)
LOADERS: Mapping[str, Loader] = {loader.name: loader for loader in _LOADERS}
"""Name -> loader; the first one's values are what the others' are compared with."""
