"""What this package writes is what zarr-python writes, to the byte where the same libraries compress."""

import itertools
import warnings

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from helpers.data.corpus import counting
from helpers.traced import takes_less_than
from helpers.writes import contents, random_array, random_operation, writes_counted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore as ObstoreLocal
from obstore.store import MemoryStore as ObstoreMemory
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, ObjectStore, ZipStore

from xarray_gpuzarr import explain, zarr_pipeline

DATA = counting((24, 30), "f4")
SHARDED = {"chunks": (4, 5), "shards": (12, 15)}


def _both(make, **keywords):
    """Make an array twice: for zarr-python's own pipeline, and for this package's."""
    own = zarr.create_array(make(), **keywords)
    with zarr_pipeline():
        return own, zarr.create_array(make(), **keywords)


def _same_bytes(name):
    """Whether the same library compresses: libdeflate writes other streams than zlib."""
    return not any(word in name.lower() for word in ("gzip", "zlib"))


def _outcome(operation, array):
    """Change an array; return what kind of error that was, None if it was none."""
    try:
        operation.apply(array)
    except Exception as err:  # noqa: BLE001  # zarr-python 3.4 refuses some selections that NumPy takes
        return type(err)
    return None


def _assigned(array, where, value):
    """Assign to elements; return all values, or the error and its words, whatever zarr-python makes of it."""
    try:
        array[where] = value
    except Exception as err:  # noqa: BLE001  # of any library
        return type(err), str(err)
    return np.asarray(array[...]).tolist()


def _check_program(make, seed, *, by_bytes=True):
    rng = np.random.default_rng(seed)
    keywords = random_array(rng)
    own, ours = _both(make, **keywords)
    for _ in range(int(rng.integers(1, 7))):
        operation = random_operation(rng, own.shape, keywords["fill_value"])
        assert _outcome(operation, ours) == _outcome(operation, own), (keywords, operation)
        expected, found = contents(own.store), contents(ours.store)
        if by_bytes:
            assert found.keys() == expected.keys(), (keywords, operation)
        if by_bytes and _same_bytes(str(keywords)):
            assert [key for key in found if found[key] != expected[key]] == [], (keywords, operation)
        assert zarr.open_array(ours.store)[...].tobytes() == own[...].tobytes(), (keywords, operation)


@pytest.mark.parametrize("in_files", [False, True])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs(tmp_path_factory, in_files, seed):
    make = (lambda: LocalStore(tmp_path_factory.mktemp("store"))) if in_files else MemoryStore
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)
        _check_program(make, seed)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_random_programs_in_objects(tmp_path_factory, seed):
    """Of a store without ``set_sync``, zarr-python rewrites whole shards: it stores more empty chunks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)
        _check_program(lambda: ObjectStore(ObstoreLocal(tmp_path_factory.mktemp("store"))), seed, by_bytes=False)


COMPRESSORS = {
    "none": None,
    "zstd 0": ZstdCodec(level=0),
    "zstd -5": ZstdCodec(level=-5),
    "zstd 9": ZstdCodec(level=9, checksum=True),
    "blosc lz4": BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle"),
    "blosc zstd": BloscCodec(cname="zstd", clevel=9, shuffle="bitshuffle"),
    "blosc blocks": BloscCodec(cname="blosclz", clevel=3, shuffle="shuffle", blocksize=256),
    "crc32c": Crc32cCodec(),
    "numcodecs lz4": zarr.codecs.numcodecs.LZ4(acceleration=3),
    "numcodecs zstd": zarr.codecs.numcodecs.Zstd(level=7),
    "numcodecs blosc": zarr.codecs.numcodecs.Blosc(cname="lz4", shuffle=-1),
    "gzip 0": GzipCodec(level=0),
    "gzip 9": GzipCodec(level=9),
    "numcodecs zlib": zarr.codecs.numcodecs.Zlib(level=-1),
}


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("layout", [SHARDED, {"chunks": (5, 7)}], ids=["sharded", "chunked"])
@pytest.mark.parametrize("name", COMPRESSORS)
def test_codecs_and_their_levels(name, layout, tmp_path):
    paths = itertools.count()
    keywords = {"shape": DATA.shape, "dtype": DATA.dtype, "compressors": COMPRESSORS[name], **layout}
    own, ours = _both(lambda: LocalStore(tmp_path / str(next(paths))), **keywords)

    own[...] = DATA
    with writes_counted() as counts:
        ours[...] = DATA

    assert counts == [1, 0]
    assert explain(ours).why_not_written == ""
    if _same_bytes(name):
        assert contents(ours.store) == contents(own.store)
    np.testing.assert_array_equal(zarr.open_array(ours.store)[...], DATA)


def test_little_writes_take_little_memory():
    _, ours = _both(MemoryStore, shape=(), dtype="u1")
    ours[...] = 1
    with takes_less_than(2**18):
        ours[...] = 2


@pytest.mark.parametrize(
    "compressor", [numcodecs.Blosc(shuffle=-1), numcodecs.Blosc(cname="zstd", shuffle=1), numcodecs.Zstd(5)]
)
@pytest.mark.parametrize("dtype", ["<f4", ">i2", "u1"])
def test_format_2(compressor, dtype):
    data = DATA.astype(dtype)
    own, ours = _both(
        MemoryStore, shape=data.shape, dtype=dtype, chunks=(7, 11), compressors=compressor, zarr_format=2, order="F"
    )

    own[...] = data
    with writes_counted() as counts:
        ours[...] = data

    assert counts == [1, 0]
    assert contents(ours.store) == contents(own.store)


@pytest.mark.parametrize("order", ["morton", "lexicographic", "colexicographic", "unordered"])
@pytest.mark.parametrize("shape", [(24, 30), (4, 30), (24, 5), (20, 35)])
def test_order_of_chunks_in_a_shard(order, shape):
    sharding = {"chunk_shape": (4, 5), "index_location": "start"}
    try:
        codec = ShardingCodec(**sharding, subchunk_write_order=order)
    except TypeError:
        pytest.skip("this zarr-python knows one order")
    data = counting(shape, "i2")
    own, ours = _both(MemoryStore, shape=shape, dtype="i2", chunks=shape, serializer=codec, compressors=None)

    own[...] = data
    ours[...] = data

    assert contents(ours.store) == contents(own.store)


@pytest.mark.parametrize("compressor", ["none", "zstd 9", "blosc zstd", "gzip 9", "crc32c"])
def test_other_readers_read_it(compressor, tmp_path):
    with zarr_pipeline():
        array = zarr.create_array(
            tmp_path / "a", shape=DATA.shape, dtype=DATA.dtype, compressors=COMPRESSORS[compressor], **SHARDED
        )
    array[...] = DATA
    array[3:17, 2:9] = expected = -DATA[3:17, 2:9]

    kvstore = {"driver": "file", "path": str(tmp_path / "a")}
    by_tensorstore = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result().read().result()
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        by_zarrs = zarr.open_array(tmp_path / "a")[...]

    for found in (by_tensorstore, by_zarrs):
        np.testing.assert_array_equal(found[3:17, 2:9], expected)
        np.testing.assert_array_equal(found[17:], DATA[17:])


def test_what_the_loops_do_not_know_is_written_by_zarr(tmp_path):
    filters = [zarr.codecs.numcodecs.Delta(dtype="f4")]
    with zarr_pipeline():
        array = zarr.create_array(tmp_path / "a", shape=DATA.shape, dtype="f4", chunks=(5, 7), filters=filters)

    with writes_counted() as counts:
        array[...] = DATA

    assert counts == [0, 1]
    assert explain(array).why_not_written == "codec delta(float32) is encoded by zarr-python"
    assert str(explain(array)).endswith("written by zarr-python (codec delta(float32) is encoded by zarr-python)")
    np.testing.assert_array_equal(array[...], DATA)


@pytest.mark.parametrize(
    ("store", "n_shared"), [(lambda d: ObjectStore(ObstoreLocal(d)), 6), (lambda _: ObjectStore(ObstoreMemory()), 0)]
)
def test_only_stores_that_keep_nothing_are_handed_the_callers_memory(tmp_path, monkeypatch, store, n_shared):
    data, handed, put = DATA.copy(), [], ObjectStore.set
    opened = store(tmp_path)
    with zarr_pipeline():
        array = zarr.create_array(opened, shape=DATA.shape, dtype="f4", chunks=(4, 30), compressors=None)

    async def noting(self, key, value):
        handed.append(np.shares_memory(np.asarray(value.as_buffer_like()), data))
        await put(self, key, value)

    monkeypatch.setattr(ObjectStore, "set", noting)
    array[...] = data
    assert (len(handed), sum(handed)) == (6, n_shared)
    array[2:10] = data[2:10]  # of three chunks, one is written as a whole
    assert (len(handed), sum(handed[6:])) == (9, n_shared > 0)

    data[...] = -1
    np.testing.assert_array_equal(array[...], DATA)


def test_a_store_without_files_or_memory(tmp_path):
    with zarr_pipeline(), ZipStore(tmp_path / "a.zip", mode="w") as store:
        array = zarr.create_array(store, shape=DATA.shape, dtype="f4", **SHARDED)
        with writes_counted() as counts:
            array[...] = DATA
        assert counts == [1, 0]
        np.testing.assert_array_equal(array[...], DATA)


@pytest.mark.parametrize(
    "value", [np.ma.array(np.arange(6, dtype="i2"), mask=[0, 1, 0, 0, 0, 1]), np.matrix(np.arange(6, dtype="i2"))]
)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_arrays_of_other_classes_are_for_zarr_to_judge(value):
    own, ours = _both(MemoryStore, shape=value.shape, dtype="i2", chunks=value.shape)
    assert _assigned(ours, ..., value) == _assigned(own, ..., value)


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize(
    "codec", [zarr.codecs.numcodecs.Zlib(level=12), zarr.codecs.numcodecs.LZ4(acceleration=2**31)], ids=str
)
def test_settings_that_zarr_refuses(codec):
    own, ours = _both(MemoryStore, shape=(6,), dtype="i2", chunks=(6,), compressors=codec)
    assert explain(ours).why_not_written.endswith("has settings about which zarr-python decides")
    error = _assigned(own, ..., np.arange(6))
    assert isinstance(error, tuple)
    assert _assigned(ours, ..., np.arange(6)) == error


def test_elements_that_are_written_twice():
    for array in _both(MemoryStore, shape=(6,), dtype="i2", chunks=(2,), shards=(6,)):
        array.oindex[[1, 1, 3]] = [5, 6, 7]
        assert array[...].tolist() == [0, 6, 0, 7, 0, 0]


@pytest.mark.parametrize(
    "value",
    [*(np.ones(shape, "i2") for shape in ((6, 3), (6, 1), (5, 2), (2,), (6, 2, 1))), np.full((6, 2), -2.7)],
    ids=lambda value: f"{value.dtype}{value.shape}",
)
def test_other_shapes_and_dtypes_are_for_zarr_to_judge(value):
    own, ours = _both(MemoryStore, shape=(6, 4), dtype="i2", chunks=(2, 2), shards=(6, 4))
    assert _assigned(ours, np.s_[:, 1:3], value) == _assigned(own, np.s_[:, 1:3], value)
