"""Files read straight into the memory of a real GPU. kvikio's compatibility mode is enough: it takes the same calls."""

import importlib

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import V3_CODECS, write
from zarr.storage import LocalStore

from xarray_gpuzarr.cuda import gds_files
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.read import read, stored_array

pytestmark = pytest.mark.gpu


@pytest.fixture
def reads_files(monkeypatch):
    """Let kvikio read files, in whatever mode it is."""
    try:
        importlib.import_module("kvikio")
    except ImportError as error:
        pytest.skip(f"no kvikio: {error}")
    monkeypatch.setattr("xarray_gpuzarr.cuda.gds_files.why_no_gds", lambda: None)
    opened, original = [], gds_files.NativeFile

    def open_file(*args):
        opened.append(args[0])
        return original(*args)

    monkeypatch.setattr("xarray_gpuzarr.cuda.gds_files.NativeFile", open_file)
    return opened


@pytest.mark.parametrize("codecs", ["bytes", "zstd"])
@pytest.mark.parametrize("shape", [(2000, 1000), (61, 43)])
def test_values_are_the_same_as_through_the_host(tmp_path, reads_files, codecs, shape):
    data = np.random.default_rng(0).integers(-99, 99, shape).astype("f4")
    layout = {"chunks": (50, 100), "shards": (500, 500)} if shape[0] > 500 else {"chunks": (10, 20), "shards": (20, 40)}
    array = write(LocalStore(tmp_path), data, **layout, **V3_CODECS[codecs])
    decoder = decoder_for("cuda")

    direct = read(stored_array(array, storage="gds"), ..., decoder)
    assert reads_files
    staged = read(stored_array(array, storage="posix"), ..., decoder)

    assert_same_bits(direct.get(), data)
    assert_same_bits(staged.get(), data)


def test_long_reads(tmp_path, reads_files):
    data = np.arange(12 * 1024**2, dtype="f4")
    array = write(LocalStore(tmp_path), data, chunks=data.shape, shards=data.shape, compressors=None)

    assert_same_bits(read(stored_array(array, storage="gds"), ..., decoder_for("cuda")).get(), data)


def test_gpudirect_storage_is_real_or_says_why_not():
    why = gds_files.why_no_gds()

    assert why is None or any(name in why for name in ("kvikio", "cuFile"))
