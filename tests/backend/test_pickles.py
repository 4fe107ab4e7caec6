"""What is loaded is pickled as xarray's own: it can be loaded where this package is not installed."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_dataset
from helpers.data.datasets import open_ours, open_stock, write_weather
from helpers.stores.fakes import Wrapper
from zarr.storage import MemoryStore

import xarray_gpuzarr
from xarray_gpuzarr.backend.block_reader import find_block_reader

pytestmark = pytest.mark.filterwarnings("ignore")

WITHOUT_PACKAGE = """
import pickle, sys
import xarray as xr
from helpers.compare import assert_same_dataset
sys.modules["xarray_gpuzarr"] = None
for what, ours, stock in pickle.load(sys.stdin.buffer):
    ours, stock = pickle.loads(ours), pickle.loads(stock)
    print(what)
    xr.testing.assert_identical(ours, stock)
    if isinstance(stock, xr.Dataset):
        assert_same_dataset(ours, stock)
"""


def explained(what):
    """Use an accessor, which xarray may keep."""
    assert repr(what.gpuzarr)
    return what


KINDS = {
    "loaded": lambda opens, store: opens(store).load(),
    "computed": lambda opens, store: opens(store, chunks={}).compute(),
    "selected": lambda opens, store: opens(store).isel(time=slice(1, 4), lat=[3, 0]).load(),
    "one after another": lambda opens, store: opens(store).map(lambda array: array.load(), keep_attrs=True),
    "used accessor": lambda opens, store: explained(opens(store)).load(),
    "used accessor of an array": lambda opens, store: explained(opens(store)["t2m"]).load(),
    "array": lambda opens, store: opens(store)["u10"].load(),
    "variable": lambda opens, store: opens(store)["u10"].variable.load(),
    "copy": lambda opens, store: copy.copy(opens(store).load()),
    "deep copy": lambda opens, store: copy.deepcopy(opens(store)["t2m"].load()),
    "result": lambda opens, store: opens(store, chunks={})[["count"]].max("time").compute() + 1,
    "chunked again": lambda opens, store: opens(store)["count"].load().chunk(time=4),
    "tree": lambda opens, store: explained(xr.DataTree.from_dict({"/a": opens(store)})).load(),
}


@pytest.mark.parametrize(
    ("pickler", "settings"), [(pickle, {}), (cloudpickle, {"codec_pipeline.path": "xarray_gpuzarr.CodecPipeline"})]
)
def test_what_is_loaded_needs_no_package(tmp_path, pickler, settings):
    write_weather(tmp_path)
    memory = MemoryStore()
    write_weather(memory)
    pairs = [*((kind, tmp_path) for kind in KINDS), ("loaded", memory), ("loaded", Wrapper(memory))]

    with zarr.config.set(settings):
        ours = [pickler.dumps(KINDS[kind](open_ours, store)) for kind, store in pairs]
    stock = [pickle.dumps(KINDS[kind](open_stock, store)) for kind, store in pairs]

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_PACKAGE],
        input=pickle.dumps([(repr(pair), *each) for pair, *each in zip(pairs, ours, stock, strict=True)]),
        cwd=Path(__file__).parents[1],
        capture_output=True,
        check=False,
    )
    assert not done.returncode, done.stdout.decode() + done.stderr.decode()


COPIES = {
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    **{by.__name__: lambda ds, by=by: by.loads(by.dumps(ds)) for by in (pickle, cloudpickle)},
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_what_is_lazy_still_chunks_itself(tmp_path, copied):
    write_weather(tmp_path)

    again = copied(open_ours(tmp_path))

    assert find_block_reader(again["u10"].chunk(time=4).data) is not None
    assert_same_dataset(again, open_stock(tmp_path))


def test_a_batch_is_pickled_as_what_is_loaded(tmp_path):
    write_weather(tmp_path)

    (batch,) = xarray_gpuzarr.batches(open_ours(tmp_path)[["u10", "t2m"]], sizes={"time": 5}, batch=2)

    assert b"xarray_gpuzarr" not in pickle.dumps(batch)
