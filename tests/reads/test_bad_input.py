"""Damaged stores: an error that names array, object, chunk and codec, never a wrong number, and the next read works."""

import numcodecs
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import checked_shards, counting, write, write_nested_shards
from helpers.data.damage import (
    DATA,
    KEY,
    N_CHUNKS,
    SHARDED,
    assert_explains,
    assert_only_the_first_shard_is_lost,
    changed_chunk,
    damaged,
    explained,
    read,
)
from helpers.data.datasets import open_ours
from helpers.stores.fakes import FailAfter, ScriptedStore, put, take
from helpers.stores.shards import MISSING, with_chunk, with_entry
from hypothesis import given
from hypothesis import strategies as st
from zarr.abc.store import SuffixByteRequest
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import (
    CorruptChunkError,
    GpuZarrError,
    MetadataError,
    ShardIndexError,
    StoreReadError,
    UnsupportedCodecError,
)

pytestmark = [
    pytest.mark.every_decoder,
    pytest.mark.doubtful_frames,
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore"),
]

INDEX_DAMAGE = {
    "empty object": lambda shard: b"",
    "one byte": lambda shard: shard[:1],
    "half of the index": lambda shard: shard[-66:],
    "last byte missing": lambda shard: shard[:-1],
    "first byte missing": lambda shard: shard[1:],
    "byte appended": lambda shard: shard + b"\0",
    "checksum wrong": lambda shard: shard[:-1] + bytes([shard[-1] ^ 1]),
    "entry flipped": lambda shard: shard[:-20] + bytes([shard[-20] ^ 1]) + shard[-19:],
    "zeros": lambda shard: bytes(len(shard)),
    "offset past the end": lambda shard: with_entry(shard, N_CHUNKS, 5, (len(shard), 10)),
    "length past the end": lambda shard: with_entry(shard, N_CHUNKS, 5, (10, len(shard))),
    "inside the index": lambda shard: with_entry(shard, N_CHUNKS, 5, (len(shard) - 50, 10)),
    "absurd offset": lambda shard: with_entry(shard, N_CHUNKS, 5, (2**63, 10)),
    "absurd length": lambda shard: with_entry(shard, N_CHUNKS, 5, (0, 2**62)),
    "sum that wraps around": lambda shard: with_entry(shard, N_CHUNKS, 5, (MISSING - 1, 10)),
    "overlap": lambda shard: with_entry(shard, N_CHUNKS, 5, (1, 10)),
}
ONLY_LOCAL = {"offset past the end", "length past the end", "inside the index", "first byte missing"}
"""A store does not tell how long an object is, so there these show when the chunk is read."""


@pytest.mark.every_combination
@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_damaged_index(store, damage):
    array = damaged(store, INDEX_DAMAGE[damage])
    is_told = isinstance(store, LocalStore) or damage not in ONLY_LOCAL

    with explained(ShardIndexError if is_told else GpuZarrError, "/a/t", KEY, *["index"] * is_told):
        read(array)
    assert_only_the_first_shard_is_lost(array)


@pytest.mark.parametrize("selection", [..., (0, 0), (slice(0, 1), [2]), (slice(None, None, -1),)])
def test_damaged_index_fails_every_selection_that_needs_it(store, selection):
    array = damaged(store, INDEX_DAMAGE["checksum wrong"])

    with pytest.raises(ShardIndexError):
        read(array, selection)


@given(index=st.binary(min_size=0, max_size=200))
def test_random_shard_is_an_error(index):
    store = MemoryStore()
    array = write(store, DATA, name="a/t", **SHARDED)
    put(store, KEY, index)

    with pytest.raises(GpuZarrError):
        read(array)


ONE_CHUNK = (slice(2), slice(3))
"""So little of a shard that its index is asked for alone."""


LYING = {"disappeared": lambda answer: None, "shorter": lambda answer: answer[: len(answer) - 1]}
"""What is said of a store whose chunks are others than its indexes say."""


@pytest.mark.both_ways
@pytest.mark.parametrize(("said", "lie"), LYING.items(), ids=LYING)
def test_store_that_has_less_than_an_index_says(said, lie):
    """A fill value would be a wrong number."""
    array = write(MemoryStore(), DATA, name="a/t", **SHARDED)
    lying = ScriptedStore(array.store, lambda _, asked, a: a if isinstance(asked, SuffixByteRequest) else lie(a))

    with explained(StoreReadError, KEY, said, *["'/a/t'"] * (said == "disappeared")):
        read(zarr.open_array(lying, path="a/t", mode="r"), ONE_CHUNK)
    assert_same_bits(read(array), DATA)


FAILURES = [
    PermissionError(13, "Permission denied"),
    OSError("connection reset by peer"),
    TimeoutError("no answer in 30 s"),
    RuntimeError("AccessDenied: 403"),
    KeyError("any store may raise anything"),
]


@pytest.mark.parametrize("n_good", [0, 1, 2, 3])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("layout", [SHARDED, {"chunks": (2, 3)}], ids=["sharded", "unsharded"])
def test_store_that_fails_mid_read(failure, n_good, layout):
    script = FailAfter(failure, n_good)
    array = write(ScriptedStore(MemoryStore(), lambda key, wanted, answer: answer), DATA, name="a/t", **layout)
    array = zarr.open_array(ScriptedStore(array.store._store, script), path="a/t", mode="r")

    with pytest.raises(StoreReadError) as caught:
        read(array, (slice(None), slice(3)))
    script.healed = True

    assert_explains(caught.value, "a/t/c/", type(failure).__name__, str(failure))
    assert type(caught.value.__cause__) is type(failure)
    assert isinstance(caught.value, OSError)
    assert_same_bits(read(array), DATA)


def test_store_that_fails_under_many_threads(monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "4")
    data = counting((512, 512))
    script = FailAfter(OSError("gone"), n_good=10)
    inner = MemoryStore()
    write(inner, data, name="t", chunks=(32, 32), shards=(128, 128))
    array = zarr.open_array(ScriptedStore(inner, script), path="t", mode="r")

    with pytest.raises(StoreReadError, match="gone"):
        read(array)
    script.healed = True

    assert_same_bits(read(array), data)


@pytest.mark.parametrize("layout", [SHARDED, {"chunks": (4, 12)}], ids=["sharded", "unsharded"])
def test_file_that_cannot_be_opened(tmp_path, layout):
    array = write(LocalStore(tmp_path), DATA, name="a/t", **layout)
    (tmp_path / KEY).unlink()
    (tmp_path / KEY).symlink_to(tmp_path / KEY)  # which fails for every user, root included

    with explained(StoreReadError, f"{tmp_path}/{KEY}", "OSError"):
        read(array)
    assert_only_the_first_shard_is_lost(array)


@pytest.mark.parametrize("selection", [..., (slice(None, None, -1), [0, 11])], ids=["everything", "outer"])
def test_damaged_array_that_zarr_reads_as_a_whole(memory, selection):
    array = write_whole_by_zarr(memory, "a/t")
    put(memory, KEY, b"nonsense")

    with explained(StoreReadError, "/a/t", "zarr-python", "checksum"):
        read(array, selection)
    assert_only_the_first_shard_is_lost(array)


def write_whole_by_zarr(store, name):
    """Write an array that this package does not plan: a codec stands around the sharding codec."""
    return write(store, DATA, name=name, chunks=(4, 12), dimension_names=["y", "x"], **checked_shards((2, 3)))


def test_damaged_chunk_inside_nested_shards(memory):
    array = write_nested_shards(memory, DATA)
    put(memory, "c/0/0", with_chunk(take(memory, "c/0/0"), 2, 0, b"nonsense"))

    with explained(CorruptChunkError, "c/0/0", "chunk (0, 0)", "sharding"):
        read(array)
    assert_only_the_first_shard_is_lost(array)


def dataset_with(memory, **keywords):
    zarr.create_group(memory)
    write(memory, DATA, name="t", dimension_names=["y", "x"], **keywords)
    return memory


def test_damaged_chunk_met_by_points(memory):
    dataset_with(memory, **SHARDED)
    put(memory, "t/c/0/0", changed_chunk(lambda _chunk: b"nonsense")(take(memory, "t/c/0/0")))
    ds = open_ours(memory, consolidated=False)

    with pytest.raises(CorruptChunkError, match=r"chunk \(1, 1\)"):
        ds["t"].isel(y=("p", [2, 5]), x=("p", [3, 0])).load()

    assert ds["t"].isel(y=("p", [0, 5]), x=("p", [3, 0])).values.tolist() == [4, 61]


def test_damaged_array_that_zarr_reads_met_by_points(memory):
    zarr.create_group(memory)
    write_whole_by_zarr(memory, "t")
    put(memory, "t/c/0/0", b"nonsense")
    ds = open_ours(memory, consolidated=False)

    with explained(StoreReadError, "/t", "zarr-python", "checksum"):
        ds["t"].isel(y=("p", [2, 5]), x=("p", [3, 0])).load()


@pytest.mark.every_value
@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_error_arrives_whole_through_xarray_and_dask(tmp_path, chunks, scheduler):
    store = LocalStore(tmp_path)
    dataset_with(store, **SHARDED)
    put(store, "t/c/0/0", changed_chunk(lambda _chunk: b"nonsense")(take(store, "t/c/0/0")))
    ds = open_ours(tmp_path, chunks=chunks, consolidated=False)

    with explained(CorruptChunkError, "'/t'", "t/c/0/0", "chunk (1, 1)", "zstd"):
        ds.compute(scheduler=scheduler) if chunks is not None else ds.load()


OF_FORMATS = {
    2: {"zarr_format": 2, "compressors": numcodecs.Zstd(), "attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}},
    3: {"dimension_names": ["y", "x"]},
}


@pytest.mark.parametrize(("zarr_format", "document"), [(2, "t/.zarray"), (3, "t/zarr.json")])
def test_unknown_codec_is_refused(memory, zarr_format, document):
    zarr.create_group(memory, zarr_format=zarr_format)
    write(memory, DATA, name="t", chunks=(4, 12), **OF_FORMATS[zarr_format])
    rewrite_metadata(memory, document, b'"zstd"', b'"acme.squeeze"')

    with pytest.raises((UnsupportedCodecError, MetadataError)) as caught:
        open_ours(memory, consolidated=False).load()

    assert_explains(caught.value, "acme.squeeze")


def rewrite_metadata(store, key, old, new):
    put(store, key, take(store, key).replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"regular"', b'"hexagonal"', id="unknown grid"),
        pytest.param(b'"int32"', b'"int33"', id="unknown dtype"),
        pytest.param(b'"shape": [\n    8', b'"shape": [\n    -8', id="negative shape"),
        pytest.param(b"{", b"", id="not JSON"),
    ],
)
def test_metadata_that_the_zarr_engine_refuses_is_refused(memory, old, new):
    dataset_with(memory, **SHARDED)
    rewrite_metadata(memory, "t/zarr.json", old, new)
    with pytest.raises(Exception) as expected:  # noqa: PT011  # whatever it raises
        xr.open_dataset(memory, engine="zarr", consolidated=False).load()

    with pytest.raises((expected.type, GpuZarrError)):
        open_ours(memory, consolidated=False).load()
