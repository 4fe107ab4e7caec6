"""torchdata's `StatefulDataLoader` goes on wherever it was stopped: with the batches that would have come."""

import gc
import json

import pytest
from helpers.every_pair import usually
from helpers.loading import epochs_of, firsts, import_or_skip, written

from xarray_gpuzarr import OptionError, batches

torch = import_or_skip("torch")
stateful_dataloader = import_or_skip("torchdata.stateful_dataloader")

from xarray_gpuzarr.torch import IterableBatches  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*multi-threaded, use of fork")
SAMPLINGS = {"batches": {"random": 13, "shuffle": True}, "windows": {"stride": {"time": 1}, "window": 1300}}
N_EPOCHS = 3


class Control(torch.utils.data.IterableDataset):
    """Numbers that workers share; keeps its own state, as torchdata wants it. Knows no epochs."""

    def __len__(self):
        return 5

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        return ControlIterator(range(5) if info is None else range(info.id, 5, info.num_workers))


class ControlIterator:
    def __init__(self, numbers):
        self.numbers, self.at = numbers, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return {"a": torch.full((1, 1, 1, 1), self.numbers[self.at - 1])}

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    yield written(tmp_path_factory.mktemp("store"))
    gc.collect()  # loaders end their workers


@pytest.fixture(params=["control", *SAMPLINGS])
def make(ds, request):
    """Return what makes a dataset, and its epochs as one process reads them."""
    if request.param == "control":
        return Control, [[[n] for n in range(5)]] * N_EPOCHS
    sampling = SAMPLINGS[request.param]
    return lambda: IterableBatches(batches(ds, {"time": 2}, 3, **sampling)), epochs_of(ds, N_EPOCHS, **sampling)


def stateful(dataset, n_workers, persistent=False):
    return stateful_dataloader.StatefulDataLoader(
        dataset, batch_size=None, num_workers=n_workers, persistent_workers=persistent
    )


def state_of(loader):
    return json.loads(json.dumps(loader.state_dict()))


def stops(loader, n_epochs):
    """Go through epochs; return them, and for every stopping place the state and how many batches of which epoch."""
    epochs, states = [], []
    for epoch in range(n_epochs):
        epochs.append([])
        for batch in loader:
            epochs[-1] += firsts([batch])
            states.append((state_of(loader), epoch, len(epochs[-1])))
        states.append((state_of(loader), epoch + 1, 0))
    return epochs, states


@pytest.mark.parametrize(
    ("n_workers", "persistent"), [(0, False), (1, False), (2, False), (3, False), (1, True), (2, True), (3, True)]
)
def test_every_stop_goes_on_with_what_would_have_come(make, n_workers, persistent):
    new, expected = make
    epochs, states = stops(stateful(new(), n_workers, persistent), N_EPOCHS)
    assert list(map(sorted, epochs)) == list(map(sorted, expected))

    step = usually(3, full=1)
    for state, epoch, n in states[n_workers % step : 2 * len(expected[0]) + 2 : step]:
        resumed = stateful(new(), n_workers, persistent)
        resumed.load_state_dict(state)

        found = [firsts(resumed) for _ in range(N_EPOCHS - epoch)]

        assert found == [epochs[epoch][n:], *epochs[epoch + 1 :]], (epoch, n)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_goes_back_to_its_own_state(make, persistent):
    new, _ = make
    loader = stateful(new(), 2, persistent)
    epochs, states = stops(loader, 2)
    state, epoch, n = states[2]

    loader.load_state_dict(state)

    assert [firsts(loader), firsts(loader)] == [epochs[epoch][n:], epochs[epoch + 1]]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_state_before_anything_was_read(make, n_workers):
    new, _ = make
    loader = stateful(new(), n_workers)
    state = state_of(loader)
    epochs = [firsts(loader) for _ in range(2)]

    resumed = stateful(new(), n_workers)
    resumed.load_state_dict(state)

    assert [firsts(resumed), firsts(resumed)] == epochs


def test_a_state_goes_on_twice_as_it_did_once(make):
    new, _ = make
    epochs, states = stops(stateful(new(), 3), 2)
    state, _, n = states[0]
    again = stateful(new(), 3)
    again.load_state_dict(state)
    iterator = iter(again)
    second = firsts(next(iterator) for _ in range(2))

    last = stateful(new(), 3)
    last.load_state_dict(state_of(again))

    assert epochs[0][:n] + second + firsts(last) == epochs[0]
    assert firsts(last) == epochs[1]


def test_an_epoch_may_be_chosen_after_a_stop(ds):
    sampling = SAMPLINGS["batches"]
    expected = epochs_of(ds, 9, **sampling)
    for persistent in (False, True):
        dataset = IterableBatches(batches(ds, {"time": 2}, 3, **sampling))
        _, states = stops(stateful(dataset, 2, persistent), 1)
        loader = stateful(dataset, 2, persistent)
        loader.load_state_dict(states[1][0])

        rest = firsts(loader)
        dataset.set_epoch(7)

        assert rest == expected[0][2:]
        assert [firsts(loader), firsts(loader)] == expected[7:9]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_state_of_other_batches_is_refused(ds, n_workers):
    state = state_of(stateful(IterableBatches(batches(ds, {"time": 2}, 3)), n_workers))
    other = stateful(IterableBatches(batches(ds, {"time": 2}, 3, shuffle=True)), n_workers)
    other.load_state_dict(state)

    with pytest.raises(OptionError, match="the state is of other batches"):
        list(other)
