"""Reads by the CUDA decoder on the simulator, and a note of every call: which one, from where, whether it blocked.

A scene is an array whose shards need several staging segments and several batches under `SMALL`: chunks compress
little, two chunks and a shard are missing, and where the host looks at all headers, one chunk is left to its codec.
"""

import gzip
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from helpers.data.corpus import write
from helpers.simulated.simulator import SimulatedDevice
from helpers.simulated.streams import SimulatedEvent
from helpers.stores.fakes import put, take
from helpers.stores.shards import with_chunk
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.process.device_options import in_force
from xarray_gpuzarr.read import StoredArray, read, stored_array

KIB = 1024
SMALL = {"slot_nbytes": 64 * KIB, "n_slots": 2, "batch_nbytes": 96 * KIB, "batch_chunks": 1}
SMALL |= {"scratch_nbytes": 64 * KIB * KIB, "little": "device"}
LAZY = 0
"""The seed of a device that does only what somebody waits for."""
SEEDS = (LAZY, *(seed for seed in range(48) if seed % 4 > 1))
"""Lazy, then by chance."""

_DECODER = "xarray_gpuzarr.decoders.cuda"


@dataclass(frozen=True, slots=True, eq=False)
class Note:
    """One call of the device."""

    call: str
    number: int
    """Its number among those of that name, from 1, as mutations count."""
    site: str
    """Function of the decoder that it comes from."""
    event: SimulatedEvent | None
    blocks: bool


class NotingDevice(SimulatedDevice):
    """Notes every call; `on_call` hears of it before it does anything, and may raise."""

    def __init__(self, seed: int = LAZY, *, on_call: Callable[[Note], object] = lambda _: None, **keywords: Any):
        super().__init__(seed, **keywords)
        self.notes: list[Note] = []
        self._on_call = on_call
        self._enter_call, self._border.call = self._border.call, self._note

    def _note(self, name: str, *used: Any) -> Any:
        event = next((u for u in used if isinstance(u, SimulatedEvent)), None)
        point = self._scheduler.end_of(used[0]) if name == "synchronize" else None if event is None else event.point
        blocks = name.startswith("synchronize") and point is not None and not point.reached
        note = Note(name, self.calls[name] + 1, _site(), event, blocks)
        self.notes.append(note)
        self._on_call(note)
        return self._enter_call(name, *used)


def _site() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(_DECODER):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_qualname


class CudaReads:
    """The CUDA decoder on one device.

    If the host may decode again what the device could not, it hides that work was done in the wrong order.
    """

    def __init__(self, device: SimulatedDevice, *, may_decode_again: bool = False) -> None:
        self.device = device
        self.decoder = CudaDecoder(lambda: device)
        self._may_decode_again = may_decode_again

    def read(self, stored: zarr.Array | StoredArray, selection: Any = ...) -> Any:
        described = stored if isinstance(stored, StoredArray) else stored_array(stored)
        with decoded_again() as numbers:
            result = read(described, selection, self.decoder)
        assert self._may_decode_again or numbers == []
        return result

    def values(self, stored: zarr.Array | StoredArray, selection: Any = ...) -> np.ndarray:
        """Return what the consumer's stream finds."""
        result = self.read(stored, selection)
        with self.device.activate():
            return result.get()


@contextmanager
def decoded_again() -> Iterator[list[int]]:
    """Note down the chunks that the device could not decode and the host then does, by their numbers in a batch."""
    numbers: list[int] = []
    stage_decoded = Stager.stage_decoded

    def noting(self: Stager, pieces: Any, some: np.ndarray) -> Any:
        numbers.extend(some.tolist())
        return stage_decoded(self, pieces, some)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stager, "stage_decoded", noting)
        yield numbers


@contextmanager
def limits(**options: Any) -> Iterator[None]:
    """Let reads within use so much memory: `SMALL`, changed."""
    before = in_force.options
    in_force.choose(SMALL | options)
    try:
        yield
    finally:
        in_force.options = before


@dataclass(frozen=True, slots=True)
class Scene:
    """A stored array, and what it holds."""

    array: zarr.Array
    expected: np.ndarray


def _gzip_with_name(chunk: bytes) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile("name", "wb", fileobj=out) as file:
        file.write(chunk)
    return out.getvalue()


_KINDS: dict[str, tuple[int, Any, Callable[[bytes], bytes] | None]] = {
    "zstd, scattered": (2, ZstdCodec(), None),
    "zstd, straight into the result": (1, ZstdCodec(), None),
    "gzip": (2, GzipCodec(), _gzip_with_name),
    "gzip, straight into the result": (1, GzipCodec(), _gzip_with_name),
    "zlib, moved first": (2, zn.Zlib(level=1), None),
    "lz4": (1, zn.LZ4(), None),
    "blosc, shuffled": (2, BloscCodec(cname="zstd", shuffle="bitshuffle", typesize=2), None),
    "raw": (2, None, None),
    "filters, scattered": (2, [zn.Shuffle(elementsize=2), ZstdCodec()], None),
    "filters, straight into the result": (1, [zn.LZ4(), zn.CRC32()], None),
    "filters of raw chunks": (2, [zn.Adler32()], None),
    "gzip, then zstd": (2, [GzipCodec(), ZstdCodec()], None),
}
"""Axes, compressor, and what makes of a chunk one that is left to the host."""
_FILTERS = {
    "filters, scattered": zn.Delta(dtype="<i2"),
    "filters, straight into the result": [zn.Delta(dtype="<i2"), zn.AsType(encode_dtype="<i4", decode_dtype="<i2")],
    "filters of raw chunks": zn.Delta(dtype="<i2"),
}
ON_HOST = "gzip, then zstd"
"""The scene that the host decodes whole."""
SCENES = tuple(name for name in _KINDS if name != ON_HOST)

# 48 chunks of 8 KiB, four to a shard. With two axes, the rows of a chunk lie apart in the result.
_SHAPES = {1: ((48 * 4096,), (4096,), (4 * 4096,)), 2: ((48, 4096), (4, 1024), (8, 2048))}
_MISSING = {
    1: (slice(4096), slice(24 * 4096, 25 * 4096), slice(20 * 4096, 24 * 4096)),
    2: ((slice(4), slice(1024)), (slice(24, 28), slice(1024)), (slice(16, 24), slice(2048, 4096))),
}
_UNUSUAL = {1: ("c/1", slice(7 * 4096, 8 * 4096)), 2: ("c/0/1", (slice(4, 8), slice(3072, 4096)))}
"""Key of the second shard, and where its last chunk lies."""


@cache
def scene(name: str) -> Scene:
    """Write the array of one scene."""
    ndim, compressor, unusual = _KINDS[name]
    shape, chunks, shards = _SHAPES[ndim]
    data = np.frombuffer(np.random.default_rng(1).bytes(48 * 8 * KIB), "i2").reshape(shape) >> 2
    for box in _MISSING[ndim]:
        data[box] = 0
    array = write(MemoryStore(), data, chunks=chunks, shards=shards, compressors=compressor, filters=_FILTERS.get(name))
    if unusual is not None:
        key, box = _UNUSUAL[ndim]
        put(array.store, key, with_chunk(take(array.store, key), 4, 3, unusual(data[box].tobytes())))
    return Scene(array, data)
