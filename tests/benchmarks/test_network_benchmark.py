"""Every timed run behind a server starts from the stored bytes."""

from contextlib import closing

from benchmarks.remote.network import cases
from benchmarks.runner.results import Sample
from xarray_gpuzarr.process.counters import counters


def counted(measure):
    """Return what a timed run adds to the counters."""
    before = counters.snapshot()
    sample = measure()
    assert isinstance(sample, Sample)
    assert sample.cpu_s is not None
    return counters.snapshot() - before


def test_a_timed_run_reads_all_that_the_first_one_has_read(tmp_path):
    (case,) = [case for case in cases(0.001, tmp_path) if case.name.startswith("network/plane ")]
    (contestant,) = [each for each in case.contestants() if each.name == "gpuzarr, obstore"]
    with closing(contestant.prepare()) as ready:
        first, second = (counted(ready.measure) for _ in range(2))

    assert first.n_cache_hits == second.n_cache_hits == 0
    assert first.read_nbytes == second.read_nbytes > 0
