"""Every timed run behind a server starts from the stored bytes."""

import pytest

from benchmarks.remote.network import cases
from benchmarks.runner.results import Sample
from xarray_gpuzarr.process.counters import counters

_SCALE = 0.001


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("network")


@pytest.mark.parametrize("name", ["plane", "objects"])
def test_a_timed_run_reads_all_that_the_first_one_has_read(name, folder):
    (case,) = [case for case in cases(_SCALE, folder) if case.name.startswith(f"network/{name} ")]
    contestants = {contestant.name: contestant for contestant in case.contestants()}
    ready = contestants["gpuzarr, obstore"].prepare()
    others = [contestants[other].prepare() for other in contestants if other != "gpuzarr, obstore"]
    try:
        first, second = [_counted(ready.measure) for _ in range(2)]
    finally:
        for each in (ready, *others):
            each.close()

    assert first.n_cache_hits == second.n_cache_hits == 0
    assert first.read_nbytes == second.read_nbytes > 0


def _counted(measure):
    """Return what a timed run adds to the counters."""
    before = counters.snapshot()
    sample = measure()
    assert isinstance(sample, Sample)
    assert sample.cpu_s is not None
    return counters.snapshot() - before
