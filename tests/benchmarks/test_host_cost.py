"""The benchmark of the host's own work: a device that does nothing, a store of headers, and time split by stages."""

import pytest

from benchmarks.host_cost.cases import Layout, NullReads
from benchmarks.timed.device import ModelledNvcomp
from xarray_gpuzarr.decoders.cuda.staging import pinned
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.fetch import snapshot
from xarray_gpuzarr.plan import read_plan as plan

SMALL = Layout(name="small", chunks_per_shard=(4, 5), chunk_shape=(30, 20))


@pytest.mark.parametrize("n_shards", [1, 3])
def test_every_frame_is_given_to_the_device(monkeypatch, n_shards):
    given = []
    decompress = ModelledNvcomp.decompress
    monkeypatch.setattr(
        ModelledNvcomp,
        "decompress",
        lambda *args, **sizes: (given.append(sizes["n_chunks"]), decompress(*args, **sizes)),
    )
    monkeypatch.setattr(Stager, "_decode", lambda *_: pytest.fail("the host decodes"))
    reads = NullReads(SMALL, n_shards)
    given.clear()

    reads.run(n_shards)

    assert sum(given) == 20 * n_shards


def test_stages_are_told_apart_and_listening_ends():
    before = (snapshot.decode_shard_index, plan.coalesce, pinned.find_streams, vars(Stager)["stage"])
    reads = NullReads(SMALL, 2)

    with reads.listened():
        stages = reads.seconds(2)

    assert set(stages) == {
        "batches and the rest",
        "coalesce",
        "headers",
        "index",
        "launches",
        "plan",
        "receipt",
        "requests",
        "staging",
        "tables",
    }
    assert (snapshot.decode_shard_index, plan.coalesce, pinned.find_streams, vars(Stager)["stage"]) == before
    assert set(reads.seconds(2)) == {"batches and the rest"}
