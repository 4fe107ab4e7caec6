"""The cost model on made-up machines: its times, its splits, and that no layout is slower than on the better side."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from xarray_gpuzarr.decoders.cost.model import (
    Calibration,
    CodecTimes,
    DeviceTimes,
    HostRates,
    best_split,
    is_little,
    threads_each,
)

CHUNKS = tuple(4**k * 1024 for k in range(8))  # 1 KiB to 16 MiB
NUMBERS = tuple(2**k for k in range(13))

TABLE = DeviceTimes(chunk_nbytes=(100, 400), n_chunks=(1, 10, 100), seconds=((1, 1, 4), (3, 3, 16)))
RATES = HostRates(chunk_nbytes=(100, 400), thread_rates=(50, 200), most=600)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A GPU and a host by the physics that the tables stand for."""

    launch: float = 5e-5
    stream_rate: float = 40e6
    """Decoded bytes a second of one stream on the device."""
    device_rate: float = 20e9
    """Of all of them."""
    thread_rate: float = 600e6
    most: float = 30e9
    upload_rate: float = 12e9

    def device(self, n, nbytes):
        return self.launch + max(nbytes / self.stream_rate, n * nbytes / self.device_rate)

    def host(self, n, nbytes, n_threads):
        if n == 0:
            return 0.0
        decoding = max(-(-n // n_threads) * nbytes / self.thread_rate, n * nbytes / self.most)
        return decoding + self.launch + n * nbytes / self.upload_rate

    def shared(self, n_host, n, nbytes, n_threads):
        device = self.device(n - n_host, nbytes) if n_host < n else 0.0
        return max(self.host(n_host, nbytes, n_threads), device)

    def calibrated(self, chunks=CHUNKS, numbers=NUMBERS):
        device = DeviceTimes(
            chunk_nbytes=chunks,
            n_chunks=numbers,
            seconds=tuple(tuple(self.device(n, nbytes) for n in numbers) for nbytes in chunks),
        )
        host = HostRates(chunk_nbytes=chunks, thread_rates=(self.thread_rate,) * len(chunks), most=self.most)
        return Calibration(
            gpu="made up",
            date="2026-11-21",
            upload_seconds=self.launch,
            upload_rate=self.upload_rate,
            codecs={"zstd": CodecTimes(device=device, host=host)},
        )


machines = st.builds(
    Machine,
    launch=st.floats(1e-6, 1e-3),
    stream_rate=st.floats(1e6, 1e9),
    device_rate=st.floats(1e9, 2e11),
    thread_rate=st.floats(5e7, 3e9),
    most=st.floats(1e9, 1e11),
    upload_rate=st.floats(1e9, 6e10),
)
layouts = {"n": st.integers(1, 20_000), "nbytes": st.integers(1024, 2**26), "n_threads": st.integers(1, 128)}


@pytest.mark.parametrize(
    ("n", "nbytes", "seconds"),
    [
        (0, 100, 0),
        (1, 100, 1),
        (100, 400, 16),
        (1, 200, 3**0.5),  # halfway between 100 and 400, by logarithms
        (20, 100, 1),  # level, as before 10, until it meets the line through the last: in proportion
        (50, 100, 2),
        (1000, 100, 40),  # in proportion beyond the last
        (100, 800, 32),
        (1000, 800, 320),
        (1, 10, 1),  # as the first before it
    ],
)
def test_times_of_the_device_are_interpolated(n, nbytes, seconds):
    assert TABLE.seconds_for(n, nbytes) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("n", "nbytes", "n_threads", "seconds"),
    [
        (1, 100, 1, 100 / 50),
        (4, 100, 1, 4 * 100 / 50),
        (4, 100, 3, 2 * 100 / 50),  # two rounds
        (4, 400, 1, 4 * 400 / 200),
        (1, 200, 1, 200 / 100),  # halfway, by logarithms
        (100, 100, 100, 100 * 100 / 600),  # no quicker than all threads can be
        (1, 1600, 1, 1600 / 200),
        (0, 100, 4, 0),
    ],
)
def test_times_of_the_host_are_rounds_of_its_threads(n, nbytes, n_threads, seconds):
    assert RATES.seconds_for(n, nbytes, n_threads) == pytest.approx(seconds)


def test_few_large_chunks_are_the_hosts_and_others_are_shared():
    calibration = Machine().calibrated()
    large, small = 4 * 2**20, 64 * 2**10

    assert best_split(calibration, "zstd", 12, large, 16).n_host == 12
    assert best_split(calibration, "zstd", 48, large, 16).n_host == 48
    assert 0 < best_split(calibration, "zstd", 4000, large, 16).n_host < 2000
    assert best_split(calibration, "zstd", 400, small, 2).n_host == 0
    assert best_split(calibration, "zstd", 24, large, 1).n_host == 0  # one thread is no match


def test_reads_that_are_under_way_at_a_time_share_the_threads():
    calibration = Machine().calibrated()
    alone, beside, crowded = (
        best_split(calibration, "zstd", 4000, 2**20, 16, n_reads=n_reads).n_host for n_reads in (1, 2, 32)
    )

    assert crowded == 0
    assert 0 < alone <= beside  # reads stage side by side, and else share all there is
    assert [threads_each(16, n) for n in (0, 1, 3, 16, 17)] == [16, 16, 5, 1, 1]


def test_what_is_gained_by_sharing_must_be_worth_it():
    """A thread brings two chunks in the time of the device."""
    device = DeviceTimes(chunk_nbytes=(2**20,), n_chunks=(1, 200), seconds=((2e-4, 4e-2),))
    host = HostRates(chunk_nbytes=(2**20,), thread_rates=(2**20 * 50,), most=1e12)
    times = {"zstd": CodecTimes(device=device, host=host)}
    calibration = Calibration(gpu="g", date="d", upload_seconds=1e-9, upload_rate=1e15, codecs=times)

    assert best_split(calibration, "zstd", 200, 2**20, 1).n_host == 0
    assert best_split(calibration, "zstd", 200, 2**20, 200).n_host > 100


def test_little_is_not_shared():
    calibration = Machine(stream_rate=1e6).calibrated()

    assert (is_little(8, 2**16), is_little(9, 2**16), is_little(1, 2**20), is_little(2, 2**19)) == (1, 0, 1, 0)
    assert best_split(calibration, "zstd", 8, 2**16, 16).n_host == 8
    assert best_split(Machine(thread_rate=1e5).calibrated(), "zstd", 8, 2**16, 16).n_host == 0


@given(machine=machines, **layouts)
def test_no_layout_is_slower_than_on_the_better_side(machine, n, nbytes, n_threads):
    assume(machine.device_rate / machine.stream_rate < NUMBERS[-1])  # measured until the device was full
    split = best_split(machine.calibrated(), "zstd", n, nbytes, n_threads)
    n_threads = 1 if is_little(n, nbytes) else n_threads

    chosen = machine.shared(split.n_host, n, nbytes, n_threads)
    better = min(machine.host(n, nbytes, n_threads), machine.device(n, nbytes))
    # The table has every fourth length of a chunk: between them it may be off by some percent.
    assert chosen <= 1.15 * better


@given(machine=machines, n=st.integers(1, 300), nbytes=layouts["nbytes"], n_threads=layouts["n_threads"])
@example(machine=Machine(), n=24, nbytes=2**22, n_threads=16)
def test_the_best_split_is_the_best_of_all_that_are_worth_it(machine, n, nbytes, n_threads):
    assume(not is_little(n, nbytes))
    calibration = machine.calibrated()
    split = best_split(calibration, "zstd", n, nbytes, n_threads)

    every = [
        max(
            calibration.host_seconds("zstd", k, nbytes, n_threads),
            calibration.device_seconds("zstd", n - k, nbytes),
        )
        for k in range(n + 1)
    ]
    assert split.seconds == every[split.n_host]
    assert split.seconds == min(every) or (split.n_host in (0, n) and split.seconds <= min(every) / 0.9 + 5.1e-4)


@given(machine=machines, **layouts)
def test_more_chunks_and_longer_ones_never_take_less(machine, n, nbytes, n_threads):
    calibration = machine.calibrated()
    for more in ((n + 1, nbytes), (n, nbytes + 1)):
        slack = 1 + 1e-12
        assert calibration.device_seconds("zstd", *more) * slack >= calibration.device_seconds("zstd", n, nbytes)
        host, before = (calibration.host_seconds("zstd", *layout, n_threads) for layout in (more, (n, nbytes)))
        assert host * slack >= before


def test_at_measured_points_what_is_said_is_exact():
    machine = Machine()
    calibration = machine.calibrated()
    for n in NUMBERS:
        for nbytes in CHUNKS:
            split = best_split(calibration, "zstd", n, nbytes, 8)
            n_threads = 1 if is_little(n, nbytes) else 8
            if split.n_host in (0, n):
                assert split.seconds == pytest.approx(machine.shared(split.n_host, n, nbytes, n_threads))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chunk_nbytes": (400, 100)}, "chunk_nbytes: not numbers of at least 1 that rise"),
        ({"n_chunks": (0, 10, 100)}, "n_chunks: not numbers of at least 1 that rise"),
        ({"n_chunks": ()}, "n_chunks: not numbers"),
        ({"seconds": ((1, 1, 4),)}, "seconds: not one row for each"),
        ({"seconds": ((1, 1), (3, 3))}, "seconds: not one row for each"),
        ({"seconds": ((1, 1, 4), (3, 0, 16))}, "seconds: not all positive"),
        ({"seconds": ((1, 1, np.nan), (3, 3, 16))}, "seconds: not all positive"),
        ({"seconds": ((1, 1, 4), (3, 2, 16))}, "seconds: times fall"),
        ({"seconds": ((1, 1, 4), (3, 3, 3.5))}, "seconds: times fall"),
    ],
)
def test_impossible_tables_are_refused(change, said):
    valid = {"chunk_nbytes": (100, 400), "n_chunks": (1, 10, 100), "seconds": ((1, 1, 4), (3, 3, 16))}
    with pytest.raises(ValueError, match=said):
        DeviceTimes(**(valid | change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"chunk_nbytes": (100, 100)}, "chunk_nbytes: not numbers"),
        ({"thread_rates": (1.0,)}, "thread_rates: not one for each"),
        ({"thread_rates": (1.0, -1.0)}, "thread_rates: not all positive"),
        ({"most": float("inf")}, "most: not all positive"),
    ],
)
def test_impossible_rates_are_refused(change, said):
    valid = {"chunk_nbytes": (100, 400), "thread_rates": (50.0, 200.0), "most": 600.0}
    with pytest.raises(ValueError, match=said):
        HostRates(**(valid | change))
