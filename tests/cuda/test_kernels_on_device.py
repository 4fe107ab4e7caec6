"""What takes the kernels' tests to a GPU does take them to a device: shown on the simulator, a few of each kind."""

import os

import numpy as np
import pytest
import test_blosc_kernels as blosc_tests
import test_checksum_kernels as checksum_tests
import test_filter_kernels as filter_tests
import test_kernels as placing_tests
import test_zstd_kernel as zstd_tests
from helpers.kernels import on_device as kernels_on_device
from helpers.kernels import runs
from helpers.kernels.on_device import Image
from helpers.kernels.on_host import require_compiler, run_child
from helpers.kernels.runs import run_moves
from helpers.simulated.simulator import SimulatedDevice

from xarray_gpuzarr.cuda.launch import move

CHOSEN = {
    "boxes": lambda: placing_tests.test_box_is_what_numpy_indexes(placing_tests.BOXES[7], placing_tests.CASTS[1]),
    "fill": lambda: placing_tests.test_missing_chunks_take_the_cast_fill_value((1, 0), placing_tests.CASTS[0]),
    "points": placing_tests.test_a_chunk_of_many_points,
    "unshuffle": lambda: blosc_tests.test_block_of_any_length(blosc_tests.SHUFFLE, 4),
    "bitunshuffle": lambda: blosc_tests.test_block_of_any_length(blosc_tests.BITSHUFFLE, 4),
    "blosclz": lambda: blosc_tests.test_match_that_overlaps_itself(7),
    "zstd blocks": lambda: zstd_tests.test_each_of_many_frames_is_judged_by_itself(33),
    "elements": lambda: filter_tests.test_scaled(("i2", "f4"), 0.1, 2.5),
    "running sums": lambda: filter_tests.test_chunks_of_any_length(("f4", "f4"), 129),
    "bits": lambda: filter_tests.test_packbits(8193),
    "moves": lambda: run_moves([(0, 0, 100), (1, 2, 65_537), (3, 3, 0)]),
    "checksums": lambda: checksum_tests.test_many_messages_in_one_launch("crc32c"),
}


@pytest.fixture
def device():
    require_compiler()
    return SimulatedDevice()


@pytest.fixture
def image(device, monkeypatch):
    image = Image(device, 16 << 20)
    kernels_on_device.use(image, monkeypatch)
    yield image
    image.close()
    device.check()


@pytest.mark.parametrize("name", CHOSEN)
def test_kernels_tests_pass_on_a_device(device, image, name):
    CHOSEN[name]()
    assert device.calls["launch"] > 0


def test_a_kernel_that_writes_elsewhere_is_found_out(image):
    image.cleared()
    at = image.place(np.zeros(8, np.uint8))
    table = image.place(np.array([[at], [at + 8], [8]], np.uint64))
    with pytest.raises(AssertionError, match="8 bytes were changed"):
        image.run(lambda api, stream: move(api, stream, table=table, n=1, max_nbytes=8))


def test_wrong_results_are_found_out(image, monkeypatch):
    monkeypatch.setattr(runs, "final_checksums", lambda kind, column: (column + np.uint64(1)).astype(np.uint32))
    with pytest.raises(AssertionError):
        CHOSEN["checksums"]()


def test_tests_that_need_a_gpu_can_be_collected_without_one():
    child = run_child({**os.environ}, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", "tests/on_gpu")
    assert child.returncode == 0, child.stdout[-3000:]
