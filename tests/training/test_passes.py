"""Processes that hear nothing of each other come to the same epoch for a pass, whenever they begin."""

import copy
import multiprocessing
import os
import pickle
from itertools import groupby
from pathlib import Path

import pytest
from helpers.every_pair import usually
from helpers.linux import needs_linux
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.training.passes import Pass, Passes

HERE = os.getpid()


def child():
    """Return the number of a child process, as if one were started."""
    return multiprocessing.Process()._identity[-1]


def started(n_workers, seed=0, gap=0):
    """Return the same pass as each of its workers knows it; other threads start processes before the last of them."""
    children = [child() for _ in range(n_workers - 1)]
    assert len([child() for _ in range(gap)]) == gap
    children.append(child())
    return [Pass(HERE, 0, n_workers, seed, child - worker) for worker, child in enumerate(children)]


def test_workers_that_stay_are_of_one_pass_each_time():
    passes, workers = Passes(0, 0), started(3)

    found = [[passes.begin(worker._replace(number=number)) for worker in workers] for number in range(3)]

    passes.move(7)
    moved = [passes.begin(worker._replace(number=3)) for worker in workers]

    assert found == [[(0, 0)] * 3, [(1, 0)] * 3, [(2, 0)] * 3]
    assert moved == [(7, 0)] * 3


def test_a_pass_that_goes_on_elsewhere_takes_the_next_one_along():
    passes = Passes(0, 0)
    first, late, *others = started(4)

    assert passes.begin(first) == (0, 0)
    assert passes.begin(first, 7) == (7, 0)
    assert passes.begin(late) == (7, 0)
    assert passes.begin(late, 7) == (7, 0)
    assert [passes.begin(worker) for worker in (*others, *started(1))] == [(7, 0), (7, 0), (8, 0)]


def test_only_the_process_itself_begins_in_the_middle_of_an_epoch():
    passes = Passes(0, 0)
    passes.move(2, 5)
    refused, late = started(2)

    assert passes.begin(refused) == (2, 5)
    assert passes.begin(Pass(HERE, 0)) == (2, 5)
    assert passes.begin(late) == (2, 5)
    assert passes.begin(started(2)[0]) == (3, 0)


def test_processes_that_share_batches_have_epochs_of_their_own():
    passes = Passes(0, 0)
    passes.begin(Pass(HERE, 0))

    of_ranks = [[passes.begin(Pass(rank, number)) for number in range(3)] for rank in (HERE + 1, HERE + 2)]

    assert of_ranks == [[(1, 0), (2, 0), (3, 0)]] * 2
    assert passes.begin(Pass(HERE, 1)) == (1, 0)


@pytest.mark.parametrize("again", [copy.copy, lambda passes: pickle.loads(pickle.dumps(passes))])
def test_a_copy_goes_on_by_itself(again):
    passes = Passes(0, 0)
    passes.begin(started(2)[0])
    other = again(passes)

    assert other.n_workers() == 2
    assert other.begin(Pass(HERE, 0)) == passes.begin(Pass(HERE, 0)) == (1, 0)
    assert passes.begin(Pass(HERE, 1)) == (2, 0)
    assert other.n_workers() == 0


def open_files():
    """List the files without a name that this process holds open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if str(link.readlink()).endswith("(deleted)")]


@needs_linux
def test_the_file_is_closed_with_the_last_that_knows_it():
    n_before = len(open_files())
    passes = Passes(0, 0)
    assert len(open_files()) == n_before + 1

    del passes

    assert len(open_files()) == n_before


@given(st.data())
def test_passes_are_new_epochs_in_the_order_in_which_they_begin(data):
    passes, n_own = Passes(0, 0), 0
    waiting, counts, found = [], [0], {}
    for what in data.draw(st.lists(st.sampled_from(["start", "begin", "begin", "here", "move"]), max_size=25)):
        if what == "start":
            n_workers = data.draw(st.integers(1, 4))
            gap = data.draw(st.integers(0, n_workers - 1))
            of_pass = started(n_workers, data.draw(st.integers(0, 1)), gap=gap)
            waiting += [(worker, of_pass[0], len(counts) - 1) for worker in of_pass]
        elif what == "begin" and waiting:
            worker, which, segment = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            if which not in found:
                found[which] = counts[segment]
                counts[segment] += 1
            assert passes.begin(worker) == (found[which], 0)
        elif what == "here":
            assert passes.begin(Pass(HERE, n_own)) == (counts[-1], 0)
            counts[-1] += 1
            n_own += 1
        elif what == "move":
            counts.append(100 * len(counts))
            passes.move(counts[-1])
    assert len(set(found.values())) == len(found)


def begin_all(passes, workers, go, told):
    go.wait()
    told.put([(worker.seed, passes.begin(worker)) for worker in workers])


@pytest.mark.parametrize(
    ("method", "n_processes"),
    usually([("fork", 4), ("forkserver", 2)], full=[("fork", 4), ("spawn", 2), ("forkserver", 2)]),
)
def test_processes_that_begin_at_once_agree(method, n_processes):
    context = multiprocessing.get_context(method)
    passes, go, told = Passes(0, 0), context.Event(), context.SimpleQueue()
    of_passes = [started(n_processes, seed) for seed in range(20)]
    turns = [[workers[n] for workers in of_passes[n:] + of_passes[:n]] for n in range(n_processes)]
    processes = [context.Process(target=begin_all, args=(passes, workers, go, told)) for workers in turns]
    for process in processes:
        process.start()
    go.set()

    found = sorted(answer for _ in processes for answer in told.get())

    epochs = [{at for _, at in of_pass} for _, of_pass in groupby(found, key=lambda answer: answer[0])]
    assert sorted(epochs, key=min) == [{(epoch, 0)} for epoch in range(20)]
    for process in processes:
        process.join()
