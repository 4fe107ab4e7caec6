"""Blosc frames of every writer at hand, on several threads and with forced block sizes."""

import blosc
import imagecodecs
import numcodecs
import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import tensorstore_write, write
from helpers.data.damage import read
from helpers.stores.fakes import put
from helpers.stores.shards import chunk_bytes, with_chunk
from zarr.codecs import BloscCodec
from zarr.storage import LocalStore

from xarray_gpuzarr import CorruptChunkError

pytestmark = pytest.mark.every_decoder

SHAPE, CHUNKS = (6, 20_000), (2, 20_000)
CNAMES = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")


def volume(dtype="u2"):
    """Return noise on slopes, so that frames hold compressed streams and raw ones; chunks are 80 kB and more."""
    rng = np.random.default_rng(0)
    slopes = np.arange(np.prod(SHAPE)).reshape(SHAPE) // 7 + rng.integers(0, 4, SHAPE)
    slopes[:, 9000:11_000] = rng.integers(0, 2**15, (6, 2000))
    return slopes.astype(dtype)


def read_frames(store, data, encode):
    """Store what `encode` makes of each chunk, and read the array."""
    array = write(store, data, name="t", chunks=CHUNKS, compressors=BloscCodec(cname="lz4", typesize=data.itemsize))
    for number in range(3):
        put(store, f"t/c/{number}/0", bytes(encode(np.ascontiguousarray(data[2 * number : 2 * number + 2]))))
    return read(array)


@pytest.fixture
def threads():
    """Let C-Blosc compress on several threads: blocks then lie in the order in which threads end."""
    before = blosc.set_nthreads(4)
    yield
    blosc.set_nthreads(before)
    blosc.set_blocksize(0)


@pytest.mark.parametrize("blocksize", [0, 512, 4096, 30_000])
@pytest.mark.parametrize("shuffle", [blosc.NOSHUFFLE, blosc.SHUFFLE, blosc.BITSHUFFLE])
@pytest.mark.parametrize("cname", CNAMES)
def test_frames_of_python_blosc(memory, threads, cname, shuffle, blocksize):
    data = volume()
    blosc.set_blocksize(blocksize)
    settings = {"typesize": 2, "clevel": 5, "shuffle": shuffle, "cname": cname}

    assert_same_bits(read_frames(memory, data, lambda chunk: blosc.compress(chunk.tobytes(), **settings)), data)


@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("cname", [*CNAMES, "snappy"])
def test_frames_of_imagecodecs(memory, cname, shuffle):
    data = volume()
    settings = {"level": 5, "compressor": cname, "shuffle": shuffle, "typesize": 2, "numthreads": 4}

    assert_same_bits(read_frames(memory, data, lambda chunk: imagecodecs.blosc_encode(chunk, **settings)), data)


def tensorstore_spec(driver, cname, shuffle):
    metadata = {
        "zarr": {
            "chunks": CHUNKS,
            "compressor": {"id": "blosc", "cname": cname, "clevel": 5, "shuffle": SHUFFLES.index(shuffle)},
        },
        "zarr3": {
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNKS}},
            "codecs": [{"name": "blosc", "configuration": {"cname": cname, "clevel": 5, "shuffle": shuffle}}],
        },
    }
    return {"driver": driver, "metadata": metadata[driver]}


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("cname", CNAMES)
@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
def test_arrays_of_tensorstore(tmp_path, driver, cname, shuffle):
    data = volume()

    tensorstore_write(f"{tmp_path}/t", data, tensorstore_spec(driver, cname, shuffle))

    assert_same_bits(read(zarr.open_array(LocalStore(tmp_path), path="t", mode="r")), data)


@pytest.mark.parametrize("shards", [None, (6, 20_000)])
@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("cname", CNAMES)
def test_arrays_of_zarrs(tmp_path, cname, shuffle, shards):
    data, store = volume(), LocalStore(tmp_path)

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        codec = BloscCodec(cname=cname, shuffle=shuffle, typesize=2, blocksize=4096)
        write(store, data, name="t", chunks=CHUNKS, shards=shards, compressors=codec)

    assert_same_bits(read(zarr.open_array(store, path="t", mode="r")), data)


BEHIND = {"zeros, as z5 writes": bytes(16), "a byte": b"\xff", "noise": np.random.default_rng(1).bytes(333)}


def padded(shard, n_chunks, behind):
    """Put bytes behind each chunk of a shard."""
    for number in range(n_chunks):
        shard = with_chunk(shard, n_chunks, number, chunk_bytes(shard, n_chunks, number) + behind)
    return shard


@pytest.mark.every_value
@pytest.mark.both_ways
@pytest.mark.also_with("host-1-lz4-v2-zeros, as z5 writes", "simulated-1-lz4-v2-zeros, as z5 writes")
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("layout", ["v3", "v2", "sharded"])
@pytest.mark.parametrize("cname", CNAMES)
@pytest.mark.parametrize("typesize", [1, 4])
def test_bytes_behind_a_frame_are_passed_over(tmp_path, cname, layout, behind, typesize):
    """Writers leave some there, and numcodecs and zarr-python keep reading them."""
    store, data = LocalStore(tmp_path), volume("i4")
    if layout == "v2":
        codec = numcodecs.Blosc(cname=cname, clevel=5, shuffle=1)
        zarr.create_array(store, data=data, chunks=CHUNKS, zarr_format=2, compressors=codec)
    else:
        codec = BloscCodec(cname=cname, shuffle="shuffle", typesize=typesize)
        zarr.create_array(
            store, data=data, chunks=CHUNKS, shards=SHAPE if layout == "sharded" else None, compressors=codec
        )
    for path in (*tmp_path.glob("c/*/*"), *tmp_path.glob("?.?")):
        path.write_bytes(padded(path.read_bytes(), 3, behind) if layout == "sharded" else path.read_bytes() + behind)
    array = zarr.open_array(store, mode="r")

    for selection in ((slice(None), slice(None)), (slice(1, 2), slice(17, 40)), ([5, 0], slice(None))):
        assert_same_bits(np.ascontiguousarray(read(array, selection)), array.oindex[selection])
    assert_same_bits(read(array), data)


@pytest.mark.parametrize("cname", CNAMES)
def test_a_frame_that_is_longer_than_its_chunk_is_damage(memory, cname):
    data = volume()
    with pytest.raises(CorruptChunkError, match="where the blosc header says"):
        read_frames(memory, data, lambda chunk: numcodecs.Blosc(cname=cname).encode(chunk)[:-1])
