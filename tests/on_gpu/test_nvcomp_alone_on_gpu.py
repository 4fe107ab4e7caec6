"""What the engine assumes of nvCOMP, asked of a GPU; damaged chunks each in a process of their own."""

from contextlib import closing

import pytest
from on_gpu import damage
from test_nvcomp_alone import (  # noqa: F401  # collected here
    test_a_damaged_chunk_is_an_error_or_what_the_host_decodes,
    test_gzip_is_asked_of_the_algorithm_that_reads_use,
    test_streams_at_any_address_that_nvcomp_takes,
    test_unusual_zstd_frames_are_decoded,
    test_zstd_takes_no_more_scratch_memory_than_is_planned,
)

from benchmarks.gpu.resident import Workspace
from xarray_gpuzarr.machine.diagnosis.rates import seconds_of

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu(device):
    return device


@pytest.fixture
def ask():
    return damage.ended_or_said


def test_memory_of_the_pool_is_there_at_once(gpu):
    with closing(Workspace(gpu)) as space:
        assert seconds_of(lambda: gpu.allocate(400 << 20, space.stream).free()) < 1e-3
