"""Damaged stores: an error that names array, object, chunk and codec, never a wrong number, and the next read works."""

import gzip
import tracemalloc

import google_crc32c
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
import zstandard
from helpers.compare import assert_same_bits
from helpers.corpus import V2_CODECS, V3_CODECS, V3_CODECS_BY_ZARR, counting, write, write_nested_shards
from helpers.datasets import open_ours
from helpers.shards import MISSING, chunk_bytes, index_bytes, with_chunk, with_entry
from helpers.stores import FailAfter, ScriptedStore, cut_chunks_short, drop, put, take, vanish_after_index
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import (
    CorruptChunkError,
    GpuZarrError,
    MetadataError,
    ShardIndexError,
    StoreReadError,
    UnsupportedCodecError,
    read_array,
)

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]

DATA = counting((8, 12))
SHARDED = {"chunks": (2, 3), "shards": (4, 12)}
N_CHUNKS = 8
KEY = "a/t/c/0/0"


def read(array, selection=...):
    return read_array(array, selection, device="host")


def damaged(store, change, **codecs):
    """Write two shards, change the bytes of the first, and return the array."""
    array = write(store, DATA, name="a/t", **SHARDED, **codecs)
    put(store, KEY, change(take(store, KEY)))
    return array


def assert_explains(error, *parts):
    """The message has its three lines and names each of `parts`."""
    assert isinstance(error, GpuZarrError)
    assert error.tried.strip()
    assert error.found.strip()
    assert error.do.strip()
    assert [part for part in parts if part not in str(error)] == []


def assert_only_the_first_shard_is_lost(array):
    """The next read works."""
    assert_same_bits(read(array, slice(4, None)), DATA[4:])


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


@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_damaged_index_in_a_file(local, damage):
    array = damaged(local, INDEX_DAMAGE[damage])

    with pytest.raises(ShardIndexError) as caught:
        read(array)

    assert_explains(caught.value, "/a/t", KEY, "index")
    assert_only_the_first_shard_is_lost(array)


@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_damaged_index_in_a_store(memory, damage):
    array = damaged(memory, INDEX_DAMAGE[damage])

    with pytest.raises(ShardIndexError if damage not in ONLY_LOCAL else GpuZarrError) as caught:
        read(array)

    assert_explains(caught.value, "a/t", KEY)
    assert_only_the_first_shard_is_lost(array)


@pytest.mark.parametrize("selection", [..., (0, 0), (slice(0, 1), [2]), (slice(None, None, -1),)])
def test_damaged_index_fails_every_selection_that_needs_it(store, selection):
    array = damaged(store, INDEX_DAMAGE["checksum wrong"])

    with pytest.raises(ShardIndexError):
        read(array, selection)


@given(st.data())
def test_damaged_index_without_checksum_is_an_error_or_chunks_in_other_places(data):
    store = MemoryStore()
    sharding = ShardingCodec(chunk_shape=(3,), codecs=[BytesCodec(), Crc32cCodec()], index_codecs=[BytesCodec()])
    array = write(store, counting((12,)), name="t", chunks=(12,), serializer=sharding, compressors=None)
    shard = take(store, "t/c/0")
    entries = data.draw(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 20)), min_size=4, max_size=4))
    put(store, "t/c/0", shard[:64] + index_bytes(entries, checksum=False))

    assert_error_or(array, lambda got: set(got.tolist()) <= set(range(13)))


def assert_error_or(array, is_right):
    """Read, and accept a package error or a result that `is_right`."""
    try:
        got = read(array)
    except GpuZarrError:
        return
    assert is_right(got)


@given(index=st.binary(min_size=0, max_size=200))
def test_random_shard_is_an_error(index):
    store = MemoryStore()
    array = write(store, DATA, name="a/t", **SHARDED)
    put(store, KEY, index)

    with pytest.raises(GpuZarrError):
        read(array)


BAD_CHUNKS = {
    "empty": lambda chunk: b"",
    "one byte": lambda chunk: chunk[:1],
    "zeros": lambda chunk: bytes(len(chunk)),
    "another chunk's length": lambda chunk: chunk[: len(chunk) // 2],
    "text": lambda chunk: b"<html>404 not found</html>",
}
BULK = [*V3_CODECS]


def damages(table, uncompressed):
    """Every codec with every damage that it can notice: zeros are valid elements."""
    cases = [(codecs, damage) for codecs in table for damage in BAD_CHUNKS]
    return [case for case in cases if case not in [(codecs, "zeros") for codecs in uncompressed]]


@pytest.mark.parametrize(("codecs", "damage"), damages(V3_CODECS, ["bytes", "transpose", "big-endian"]))
def test_damaged_chunk_of_a_shard(memory, codecs, damage):
    array = damaged(memory, changed_chunk(BAD_CHUNKS[damage]), **V3_CODECS[codecs])
    last_codec = codecs.split("-")[0].split("+")[-1].removeprefix("numcodecs.").replace("big", "bytes")

    with pytest.raises(CorruptChunkError) as caught:
        read(array)

    assert_explains(caught.value, "'/a/t'", KEY, "chunk (1, 1)", last_codec)
    assert_only_the_first_shard_is_lost(array)
    assert_same_bits(read(array, (slice(0, 2), slice(0, 3))), DATA[:2, :3])


def changed_chunk(change):
    """Change chunk (1, 1) of the first shard: number 5."""
    return lambda shard: with_chunk(shard, N_CHUNKS, 5, change(chunk_bytes(shard, N_CHUNKS, 5)))


@pytest.mark.parametrize(("codecs", "damage"), damages(V2_CODECS, ["none", "order-F"]))
def test_damaged_v2_chunk(local, codecs, damage):
    array = write(local, DATA, name="a/t", chunks=(4, 12), zarr_format=2, **V2_CODECS[codecs])
    put(local, "a/t/0.0", BAD_CHUNKS[damage](take(local, "a/t/0.0")))

    with pytest.raises(CorruptChunkError) as caught:
        read(array)

    assert_explains(caught.value, "'/a/t'", "a/t/0.0", "chunk (0, 0)")
    assert_only_the_first_shard_is_lost(array)


@pytest.mark.parametrize("codecs", V3_CODECS_BY_ZARR)
def test_damaged_chunk_that_zarr_decodes(memory, codecs):
    array = damaged(memory, changed_chunk(lambda chunk: b"nonsense"), **V3_CODECS_BY_ZARR[codecs])

    with pytest.raises(CorruptChunkError) as caught:
        read(array)

    assert_explains(caught.value, "'/a/t'", KEY, "chunk (1, 1)")
    assert_only_the_first_shard_is_lost(array)


ENCODE = {
    "bytes": bytes,
    "zstd": zstandard.ZstdCompressor().compress,
    "gzip": gzip.compress,
    "numcodecs.zlib": numcodecs.Zlib().encode,
    "numcodecs.lz4": numcodecs.LZ4().encode,
    "blosc-lz4-shuffle": numcodecs.Blosc(cname="lz4").encode,
    "crc32c": lambda raw: raw + google_crc32c.value(raw).to_bytes(4, "little"),
}


@pytest.mark.parametrize("nbytes", [0, 1, 23, 25, 48, 5000])
@pytest.mark.parametrize("codecs", ENCODE)
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_chunk_of_another_decoded_length(request, kind, codecs, nbytes):
    encoded = ENCODE[codecs](bytes(nbytes))
    array = damaged(request.getfixturevalue(kind), changed_chunk(lambda _chunk: bytes(encoded)), **V3_CODECS[codecs])

    with pytest.raises(CorruptChunkError) as caught:
        read(array)

    assert_explains(caught.value, "24", "chunk (1, 1)")
    assert_only_the_first_shard_is_lost(array)


GIANTS = {
    "numcodecs.lz4": lambda chunk: (2**28).to_bytes(4, "little") + chunk[4:],
    "blosc-lz4-shuffle": lambda chunk: chunk[:4] + (2**28).to_bytes(4, "little") + chunk[8:],
    "zstd": lambda chunk: b"\x28\xb5\x2f\xfd\xe0" + (2**28).to_bytes(8, "little") + chunk[6:],
}
"""Frames that claim to decode to 256 MiB."""


@pytest.fixture
def traced_memory():
    """Return a function that says how many bytes Python allocated at most."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("codecs", GIANTS)
def test_absurd_declared_length_is_refused_before_it_is_allocated(memory, codecs, traced_memory):
    array = damaged(memory, changed_chunk(GIANTS[codecs]), **V3_CODECS[codecs])

    with pytest.raises(CorruptChunkError):
        read(array)

    assert traced_memory() < 2**25


@pytest.mark.parametrize("nbytes", [0, 1, 191, 193, 400])
@pytest.mark.parametrize("codecs", ["bytes", "crc32c"])
def test_unsharded_object_of_another_length(store, codecs, nbytes):
    array = write(store, DATA, name="a/t", chunks=(4, 12), **V3_CODECS[codecs])
    put(store, KEY, ENCODE[codecs](bytes(nbytes)))

    with pytest.raises(CorruptChunkError) as caught:
        read(array)

    assert_explains(caught.value, "192", "chunk (0, 0)", KEY)
    assert_only_the_first_shard_is_lost(array)


def one_chunk(codecs):
    """Return an array of one compressible chunk, its store and its key."""
    store = MemoryStore()
    data = np.repeat(counting((40,)), 5).reshape(10, 20)
    return write(store, data, name="t", chunks=(10, 20), **V3_CODECS[codecs]), store, data


def outcomes(codecs, mutants):
    """Read every mutant of the chunk: how many gave the right numbers, other numbers, an error."""
    array, store, data = one_chunk(codecs)
    counts = {"right": 0, "wrong": 0, "error": 0}
    for mutant in mutants(take(store, "t/c/0/0")):
        put(store, "t/c/0/0", mutant)
        try:
            right = np.array_equal(read(array), data)
        except CorruptChunkError:
            counts["error"] += 1
        else:
            counts["right" if right else "wrong"] += 1
    return counts


def flipped(chunk, bit):
    return chunk[: bit // 8] + bytes([chunk[bit // 8] ^ 1 << bit % 8]) + chunk[bit // 8 + 1 :]


def bits_flipped(chunk):
    """Flip every bit of the header, and about a thousand others."""
    n_bits = 8 * len(chunk)
    return [flipped(chunk, bit) for bit in sorted({*range(min(n_bits, 256)), *range(0, n_bits, n_bits // 1000 + 1)})]


def every_truncation(chunk):
    return [chunk[:at] for at in range(0, len(chunk), len(chunk) // 200 + 1)] + [chunk[:-1]]


CHECKED = [
    *("zstd-checksum", "gzip", "numcodecs.gzip", "numcodecs.zlib"),
    *("crc32c", "zstd+crc32c", "crc32c+zstd", "crc32c+crc32c"),
]
UNCHECKED = [c for c in BULK if c not in CHECKED]


@pytest.mark.parametrize("codecs", CHECKED)
def test_flipped_bits_never_give_other_numbers_where_a_checksum_is_stored(codecs):
    counts = outcomes(codecs, bits_flipped)

    assert counts["wrong"] == 0
    assert counts["error"] > counts["right"]


@pytest.mark.parametrize("codecs", UNCHECKED)
def test_flipped_bits_give_numbers_or_a_package_error(codecs):
    assert sum(outcomes(codecs, bits_flipped).values()) >= 64


@pytest.mark.parametrize("codecs", BULK)
def test_truncated_chunk_never_gives_other_numbers(codecs):
    counts = outcomes(codecs, every_truncation)

    assert counts["wrong"] == 0
    assert counts["error"] > 10 * counts["right"]


@pytest.mark.parametrize("codecs", BULK)
@given(data=st.data())
def test_random_bytes_instead_of_a_chunk_give_a_package_error_or_numbers(codecs, data):
    array, store, _ = one_chunk(codecs)
    chunk = take(store, "t/c/0/0")
    at = data.draw(st.integers(0, len(chunk)))
    put(store, "t/c/0/0", chunk[:at] + data.draw(st.binary(max_size=40)))

    assert_error_or(array, lambda got: got.shape == (10, 20))


def test_shard_deleted_between_index_and_chunks():
    array = write(MemoryStore(), DATA, name="a/t", **SHARDED)
    lying = zarr.open_array(ScriptedStore(array.store, vanish_after_index), path="a/t", mode="r")

    with pytest.raises(StoreReadError) as caught:
        read(lying)

    assert_explains(caught.value, "'/a/t'", KEY, "disappeared")
    assert_same_bits(read(array), DATA)


def test_shard_deleted_after_opening_is_missing(store):
    array = write(store, DATA, name="a/t", **SHARDED)
    drop(store, KEY)

    assert_same_bits(read(array), np.concatenate([np.zeros((4, 12), "i4"), DATA[4:]]))


def test_store_that_answers_too_short():
    array = write(MemoryStore(), DATA, name="a/t", **SHARDED)
    lying = zarr.open_array(ScriptedStore(array.store, cut_chunks_short), path="a/t", mode="r")

    with pytest.raises(StoreReadError, match="shorter") as caught:
        read(lying)

    assert_explains(caught.value, KEY)


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
        read(array)
    script.healed = True

    assert_explains(caught.value, "a/t/c/", type(failure).__name__, str(failure))
    assert type(caught.value.__cause__) is type(failure)
    assert isinstance(caught.value, OSError)
    assert_same_bits(read(array), DATA)


def test_store_that_fails_under_many_threads(monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "4")
    data = counting((512, 512))
    script = FailAfter(OSError("gone"), n_good=20)
    inner = MemoryStore()
    write(inner, data, name="t", chunks=(32, 32), shards=(128, 128))
    array = zarr.open_array(ScriptedStore(inner, script), path="t", mode="r")

    with pytest.raises(StoreReadError, match="gone"):
        read(array)
    script.healed = True

    assert_same_bits(read(array), data)


def loop_of_links(path):
    """Replace a file by a link to itself: opening it fails for every user, root included."""
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("layout", [SHARDED, {"chunks": (4, 12)}], ids=["sharded", "unsharded"])
def test_file_that_cannot_be_opened(tmp_path, layout):
    array = write(LocalStore(tmp_path), DATA, name="a/t", **layout)
    loop_of_links(tmp_path / KEY)

    with pytest.raises(StoreReadError) as caught:
        read(array)

    assert_explains(caught.value, f"{tmp_path}/{KEY}", "OSError")
    assert_only_the_first_shard_is_lost(array)


def test_file_without_permission(tmp_path):
    array = write(LocalStore(tmp_path), DATA, name="a/t", **SHARDED)
    (tmp_path / KEY).chmod(0)
    if can_read(tmp_path / KEY):
        pytest.skip("this user may read every file")

    with pytest.raises(StoreReadError) as caught:
        read(array)

    assert_explains(caught.value, KEY, "PermissionError")


def can_read(path):
    try:
        return bool(path.read_bytes())
    except PermissionError:
        return False


def test_directory_in_place_of_a_shard(tmp_path):
    array = write(LocalStore(tmp_path), DATA, name="a/t", **SHARDED)
    (tmp_path / KEY).unlink()
    (tmp_path / KEY).mkdir()

    with pytest.raises(GpuZarrError) as caught:
        read(array)

    assert_explains(caught.value, KEY)
    assert_only_the_first_shard_is_lost(array)


@pytest.mark.parametrize("selection", [..., (slice(None, None, -1), [0, 11])], ids=["everything", "outer"])
def test_damaged_array_that_zarr_reads_as_a_whole(memory, selection):
    array = write_whole_by_zarr(memory, "a/t")
    put(memory, KEY, b"nonsense")

    with pytest.raises(StoreReadError) as caught:
        read(array, selection)

    assert_explains(caught.value, "/a/t", "zarr-python", "checksum")
    assert_only_the_first_shard_is_lost(array)


def write_whole_by_zarr(store, name):
    """Write an array that this package does not plan: a codec stands around the sharding codec."""
    sharding = ShardingCodec(chunk_shape=(2, 3), codecs=[BytesCodec(), ZstdCodec()])
    codecs = {"serializer": sharding, "compressors": Crc32cCodec(), "dimension_names": ["y", "x"]}
    return write(store, DATA, name=name, chunks=(4, 12), **codecs)


def test_damaged_nested_shards(memory):
    array = write_nested_shards(memory, DATA)
    put(memory, "c/0/0", b"nonsense")

    with pytest.raises(GpuZarrError) as caught:
        read(array)

    assert_explains(caught.value, "c/0/0")
    assert_only_the_first_shard_is_lost(array)


def test_damaged_chunk_inside_nested_shards(memory):
    array = write_nested_shards(memory, DATA)
    put(memory, "c/0/0", with_chunk(take(memory, "c/0/0"), 2, 0, b"nonsense"))

    with pytest.raises(CorruptChunkError) as caught:
        read(array)

    assert_explains(caught.value, "c/0/0", "chunk (0, 0)", "sharding")
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

    with pytest.raises(StoreReadError) as caught:
        ds["t"].isel(y=("p", [2, 5]), x=("p", [3, 0])).load()

    assert_explains(caught.value, "/t", "zarr-python", "checksum")


@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_error_arrives_whole_through_xarray_and_dask(tmp_path, chunks, scheduler):
    store = LocalStore(tmp_path)
    dataset_with(store, **SHARDED)
    put(store, "t/c/0/0", changed_chunk(lambda _chunk: b"nonsense")(take(store, "t/c/0/0")))
    ds = open_ours(tmp_path, chunks=chunks, consolidated=False)

    with pytest.raises(CorruptChunkError) as caught:
        ds.compute(scheduler=scheduler) if chunks is not None else ds.load()

    assert_explains(caught.value, "'/t'", "t/c/0/0", "chunk (1, 1)", "zstd")


def test_unknown_v3_codec_is_refused(memory):
    dataset_with(memory, **SHARDED)
    rewrite_metadata(memory, "t/zarr.json", b'"zstd"', b'"acme.squeeze"')

    with pytest.raises(GpuZarrError) as caught:
        open_ours(memory, consolidated=False).load()

    assert isinstance(caught.value, UnsupportedCodecError | MetadataError)
    assert_explains(caught.value, "acme.squeeze")


def test_unknown_v2_compressor_is_refused(memory):
    zarr.create_group(memory, zarr_format=2)
    named = {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}}
    write(memory, DATA, name="t", chunks=(4, 12), zarr_format=2, compressors=numcodecs.Zstd(), **named)
    rewrite_metadata(memory, "t/.zarray", b'"zstd"', b'"acme"')

    with pytest.raises(GpuZarrError) as caught:
        open_ours(memory, consolidated=False).load()

    assert isinstance(caught.value, UnsupportedCodecError | MetadataError)
    assert_explains(caught.value, "acme")


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
