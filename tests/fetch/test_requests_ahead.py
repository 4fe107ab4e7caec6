"""Requests that are made ahead of reads: which count in the budget of the process, and what waiting counts as."""

from types import SimpleNamespace

import pytest

from xarray_gpuzarr import StoreReadError
from xarray_gpuzarr.fetch.ahead import ObjectRequest, RequestAhead, RequestsAhead, budget
from xarray_gpuzarr.fetch.source import Edge
from xarray_gpuzarr.process.counters import counters

CHUNK_NBYTES = 1000
UNSHARDED = SimpleNamespace(index=None, max_encoded_nbytes=2 * CHUNK_NBYTES, expected_nbytes=CHUNK_NBYTES)


class FailingSource:
    """Sends requests until one is for the key ``"refused"``, which raises `error`."""

    error = StoreReadError("cannot read", tried="a request", found="a forked process", do="use another")

    def for_one_read(self, **_):
        return self

    def start_whole(self, key, _most_nbytes):
        if key == "refused":
            raise self.error
        return lambda: Edge(data=memoryview(b""), object_nbytes=0)

    def give_up(self):
        pass


@pytest.mark.parametrize("error", [FailingSource.error, KeyboardInterrupt()])
def test_requests_that_could_not_be_started_do_not_count(monkeypatch, error):
    monkeypatch.setattr(FailingSource, "error", error)
    ahead = RequestsAhead(FailingSource(), UNSHARDED)
    nbytes_before = budget.nbytes

    with pytest.raises(type(error)):
        ahead.start([ObjectRequest(key, is_whole=True) for key in ("sent", "refused", "not tried")])

    assert budget.nbytes == nbytes_before + CHUNK_NBYTES
    ahead.end()
    assert budget.nbytes == nbytes_before


@pytest.mark.parametrize(("is_whole", "stage"), [(True, "fetch"), (False, "index")])
def test_the_wait_for_an_answer_counts_for_the_stage_of_what_comes(is_whole, stage):
    stages = []
    request = RequestAhead(
        ObjectRequest("key", is_whole), lambda: stages.append(counters.local.account.stage), CHUNK_NBYTES
    )

    request.wait()

    assert stages == [stage]
    assert counters.local.account.stage is None
