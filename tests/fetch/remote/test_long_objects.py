"""Objects of a server that are longer than their chunks: no client takes memory for what cannot be wanted."""

import os
import resource

import numpy as np
import pytest
import zarr
from helpers.fresh_process import in_fresh_process
from helpers.stores.range_server import RangeServer
from helpers.stores.remote import CLIENTS
from helpers.stores.shards import chunk_bytes, index_bytes
from zarr.codecs import ZstdCodec
from zarr.storage import LocalStore

from xarray_gpuzarr import CorruptChunkError, read_array

pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore")]

MIB = 1024 * 1024
LENGTH = 256 * MIB
MOST_NBYTES = 64 * MIB
DATA = np.arange(64, dtype="i4")


def write(folder, name, **keywords):
    array = zarr.create_array(
        LocalStore(folder / name), shape=(64,), chunks=(16,), dtype="i4", compressors=ZstdCodec(), **keywords
    )
    array[...] = DATA
    return folder / name / "c/0"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Long objects, and a shard with a long gap between its chunks, as one has that was written to again and again."""
    directory = tmp_path_factory.mktemp("served")
    write(directory / "bucket", "good")
    os.truncate(write(directory / "bucket", "object"), LENGTH)
    entry = write(directory / "bucket", "entry", shards=(32,))
    os.truncate(entry, LENGTH)
    with entry.open("ab") as file:
        file.write(index_bytes([(0, LENGTH - 100), (LENGTH - 100, 100)]))
    gap = write(directory / "bucket", "gap", shards=(32,))
    first, second = (chunk_bytes(gap.read_bytes(), 2, number) for number in (0, 1))
    gap.write_bytes(first)
    os.truncate(gap, LENGTH)
    with gap.open("ab") as file:
        file.write(second + index_bytes([(0, len(first)), (LENGTH, len(second))]))
    with RangeServer(directory) as running:
        yield running


def read_in_little_memory(client, url, name, n_wanted):
    """Return what a read gives, or the error, and the bytes that the process grew by."""
    read_array(zarr.open_array(CLIENTS[client](url, "bucket/good"), mode="r"), device="host")
    array = zarr.open_array(CLIENTS[client](url, f"bucket/{name}"), mode="r")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        found = read_array(array, slice(n_wanted), device="host").tolist()
    except CorruptChunkError as err:
        found = str(err)
    return found, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ["object", "entry"])
def test_a_long_chunk_is_refused(server, client, name):
    found, nbytes = in_fresh_process(read_in_little_memory, client, server.url, name, 32, seconds=90)

    assert "chunk (0,)" in found
    assert "for a chunk of 64 bytes when decoded" in found
    assert nbytes < MOST_NBYTES


@pytest.mark.parametrize("client", CLIENTS)
def test_a_shard_with_a_long_gap_is_read_without_it(server, client):
    found, nbytes = in_fresh_process(read_in_little_memory, client, server.url, "gap", 32, seconds=90)

    assert found == DATA[:32].tolist()
    assert nbytes < MOST_NBYTES


@pytest.mark.parametrize("client", ["fsspec http"])
@pytest.mark.parametrize("n_wanted", [8, 32])
def test_of_all_that_a_server_without_ranges_sends_no_more_is_kept_than_is_wanted(server, client, n_wanted):
    server.spoil({"kind": "no ranges"})

    found, nbytes = in_fresh_process(read_in_little_memory, client, server.url, "gap", n_wanted, seconds=150)
    server.spoil()

    assert found == DATA[:n_wanted].tolist()
    assert nbytes < MOST_NBYTES
