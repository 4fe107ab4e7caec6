"""Arrays that another thread changes while they are written: what is stored can be decoded, whatever it holds."""

import threading

import numpy as np
import pytest
import zarr
from helpers.loops import require_loops
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs.numcodecs import LZ4, Zlib

from xarray_gpuzarr import read_array, zarr_pipeline

CODECS = {"gzip": GzipCodec(), "zlib": Zlib(level=5), "zstd": ZstdCodec(), "blosc": BloscCodec(), "lz4": LZ4()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("codec", CODECS)
def test_chunks_of_an_array_that_changes_can_be_decoded(codec):
    require_loops()
    values, stop = np.random.default_rng(0).integers(0, 4, 2**20).astype("u1"), threading.Event()

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            values[number * 7919 % 2**20 :][:4096] = number % 5

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(6):
            with zarr_pipeline():
                array = zarr.create_array(
                    {}, shape=2**20, chunks=2**18, dtype="u1", compressors=CODECS[codec], filters=None
                )
            array[:] = values
            assert read_array(array, device="host").max() < 5
    finally:
        stop.set()
        thread.join()
