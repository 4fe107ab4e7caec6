"""Ranks of a process group that was set up after the batches were made: each reads its own, in workers too."""

import json
from pathlib import Path

import pytest
from helpers.every_pair import usually
from helpers.loading import epochs_of, firsts, import_or_skip, written

from xarray_gpuzarr import batches

torch = import_or_skip("torch")

from xarray_gpuzarr.torch import IterableBatches  # noqa: E402

DRAWN = {"shuffle": True}
PASSES = [(0, None), (2, "fork"), (2, usually("forkserver", full="spawn")), (0, None), (1, "fork")]
"""Number of workers, and how they are started."""


def loader(dataset, n_workers, method=None):
    return torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=n_workers, multiprocessing_context=method)


def read_as_rank(rank, dataset, folder):
    """Note down what a rank reads, epoch after epoch, and how many batches it was told of."""
    group = f"file://{folder}/group"
    torch.distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=2)
    found = [(len(dataset), firsts(loader(dataset, n_workers, method))) for n_workers, method in PASSES]
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("method", usually(["fork"], full=["fork", "spawn"]))
def test_every_rank_reads_its_own(tmp_path, method, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    ds = written(tmp_path)
    dataset = IterableBatches(batches(ds, {"time": 2}, 3, **DRAWN))
    of_all = epochs_of(ds, len(PASSES) + 1, **DRAWN)
    before = firsts(loader(dataset, 2, "fork"))

    torch.multiprocessing.start_processes(
        read_as_rank, (dataset, str(tmp_path)), nprocs=2, join=True, start_method=method
    )

    assert before == of_all[0]
    for rank in range(2):
        expected = epochs_of(ds, len(PASSES) + 1, **DRAWN, rank=rank, world_size=2)[1:]
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [[2, epoch] for epoch in expected]
    assert firsts(loader(dataset, 0)) == of_all[1]
