"""Plain zarr with this package's pipeline gives what zarr-python's own gives of every layout; others are random."""

import numcodecs
import numpy as np
import pytest
from helpers.codec_pipeline import assert_same_reads, opened_by_both, reads_planned
from helpers.data.corpus import counting, write
from zarr.codecs import BytesCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore, MemoryStore

SHAPE = (7, 6, 5)
DATA = counting(SHAPE)
DATA[:4, :3] = 0  # chunks and a shard that are never written

LAYOUTS = {
    "sharded zstd": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "compressors": ZstdCodec()},
    "sharded raw": {"chunks": (1, 3, 5), "shards": (4, 6, 5), "compressors": None},
    "sharded delta": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "filters": zn.Delta(dtype="<i4")},
    "sharded transposed": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "filters": TransposeCodec(order=(2, 0, 1))},
    "big-endian": {"chunks": (2, 3, 2), "shards": (4, 3, 4), "serializer": BytesCodec(endian="big")},
    "unsharded raw": {"chunks": (3, 4, 2), "compressors": None},
    "order F in memory": {"chunks": (3, 4, 2), "config": {"order": "F"}},
    "v2 keys": {"chunks": (3, 4, 2), "chunk_key_encoding": {"name": "v2", "separator": "."}},
    "dots": {"chunks": (3, 4, 2), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "v2 order F": {"chunks": (3, 4, 2), "zarr_format": 2, "order": "F"},
    "v2 lz4": {"chunks": (3, 4, 2), "zarr_format": 2, "compressors": numcodecs.LZ4()},
    "v2 slashes": {"chunks": (3, 4, 2), "zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
}
MASKS = {density: np.random.default_rng(0).random(SHAPE) < density for density in (0.0, 0.02, 0.5)}
READS = {
    "all": lambda a: a[...],
    "nothing left out": lambda a: a[()],
    "a plane": lambda a: a[3],
    "an element": lambda a: a[3, 1, 2],
    "a box": lambda a: a[2:6, 1:5, -3:],
    "steps": lambda a: a[1::3, ::4, ::2],
    "nothing": lambda a: a[2:2],
    "a number of NumPy": lambda a: a[:, np.int64(4)],
    "rows": lambda a: a.oindex[[6, 0, 2], 1:5, [4, 4, 1]],
    "rows by a mask": lambda a: a.oindex[np.arange(7) % 3 == 0, :, -1],
    "points": lambda a: a.vindex[[0, 6, -1], [5, 0, 0], [4, 1, 1]],
    "points in a table": lambda a: a.vindex[[[0, 6], [3, 3]], [[5, 0], [1, 2]], [2, 2]],
    **{f"a mask of {density}": lambda a, mask=mask: a.vindex[mask] for density, mask in MASKS.items()},
    "the first block": lambda a: a.blocks[0, 0, 0],
    "blocks": lambda a: a.blocks[1, slice(1, 2), -1],
    "a row of blocks": lambda a: a.blocks[:, 0],
}


@pytest.fixture(scope="module", params=["memory", "local", "root"])
def place(request):
    """In memory, in files, and in files at the root of the store."""
    return request.param


@pytest.fixture(scope="module", params=LAYOUTS)
def arrays(request, place, tmp_path_factory):
    """(The array opened with zarr-python's pipeline, with this package's)."""
    layout = LAYOUTS[request.param]
    store = MemoryStore() if place == "memory" else LocalStore(tmp_path_factory.mktemp("s"))
    written = write(store, DATA, **layout, **({} if place == "root" else {"name": "a/b"}))
    return opened_by_both(store, path=written.path, config=layout.get("config"))


def test_selections_of_every_layout(arrays):
    with reads_planned():
        for read in READS.values():
            assert_same_reads(arrays, read)
