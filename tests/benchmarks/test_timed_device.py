"""The modelled device of the benchmarks: exact times by a clock that goes when somebody waits, and reads by it."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.still_clock import StillClock

from benchmarks.page import measurements
from benchmarks.page.runs import load
from benchmarks.runner.results import CaseRows, Row, Sample
from benchmarks.timed.__main__ import covered, main
from benchmarks.timed.device import ModelledDevice
from benchmarks.timed.rates import FORMATS, FormatRates, Rates
from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.nvcomp import Batch
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager

FREE_CALLS = dict.fromkeys(("allocate_s", "free_s", "copy_call_s", "launch_s", "decompress_s", "record_s"), 0)
RATES = Rates(
    formats={
        "zstd": FormatRates(n_at_once=4, frame_rate=1000.0, least_s=1.0),
        "lz4": FormatRates(n_at_once=8, frame_rate=500.0),
        "gzip": FormatRates(n_at_once=4, frame_rate=250.0),
    },
    copy_latency_s=0.5,
    copy_rate=100.0,
    kernel_latency_s=0.25,
    kernel_rate=1000.0,
    check_s=2.0,
    **FREE_CALLS,
)


@pytest.fixture
def clock():
    return StillClock()


@pytest.fixture
def device(clock):
    return ModelledDevice(RATES, clock)


# ---- the device


def upload_table(device, stream, *columns):
    """Bring columns of words to the device; return where they lie."""
    table = np.concatenate([np.asarray(column, np.uint64) for column in columns])
    memory = device.allocate(table.nbytes, stream)
    device.upload(memory.address, table.view(np.uint8), stream)
    return memory.address


def decompress(device, stream, nbytes, fmt="zstd"):
    """Enqueue streams of decoded lengths; return where the receipt begins."""
    n = len(nbytes)
    at = upload_table(device, stream, nbytes, np.zeros(2 * n))
    batch = Batch(sources=at, source_nbytes=at, capacity=at, actual=at + 8 * n, outputs=at, statuses=at + 16 * n)
    device.nvcomp.decompress(fmt, batch, n_chunks=n, temp=0, temp_nbytes=0, stream=stream.handle)
    return at + 8 * n


def test_copies_take_latency_and_bytes_over_rate(device, clock):
    up, down = device.stream(), device.stream()
    device.upload(0, np.zeros(100, np.uint8), up)
    device.download(np.zeros(200, np.uint8), 0, down)

    device.synchronize(up)
    assert clock.time == 0.5 + 1
    device.synchronize(down)
    assert clock.time == 0.5 + 2  # another engine


def test_chunks_take_as_long_as_their_length_says(device, clock):
    stream = device.stream()
    table_s = 0.5 + 3 * 8 * 5 / 100
    decompress(device, stream, [2000] * 5)

    device.synchronize(stream)

    assert clock.time == pytest.approx(table_s + 2 + 2)  # four slots


def test_each_format_has_its_rate_and_slots_of_its_own(device, clock):
    streams = {fmt: device.stream() for fmt in ("lz4", "zstd", "gzip, looking ahead")}
    for fmt, stream in streams.items():
        decompress(device, stream, [2000] * 8, fmt)
    tables_s = 3 * (0.5 + 3 * 8 * 8 / 100)

    device.synchronize(streams["lz4"])
    assert clock.time == pytest.approx(tables_s / 3 + 4)  # one wave
    device.synchronize(streams["zstd"])
    assert clock.time == pytest.approx(tables_s * 2 / 3 + 2 + 2)
    device.synchronize(streams["gzip, looking ahead"])
    assert clock.time == pytest.approx(tables_s + 8 + 8)


def decoding_took(clock, nbytes, *, in_turn, slots, n_calls=1):
    """Return how long calls take that share out chunks of a length, each call on a stream of its own."""
    rates = Rates(copy_latency_s=0, copy_rate=math.inf, in_turn=in_turn, **FREE_CALLS).with_slots(slots)
    device = ModelledDevice(rates, clock)
    streams = [device.stream() for _ in range(n_calls)]
    for n, stream in enumerate(streams):
        decompress(device, stream, nbytes[n::n_calls])
    start_s = clock.time
    for stream in streams:
        device.synchronize(stream)
    return clock.time - start_s


ONE_CALL_AND_EIGHT = {
    # in turn, slots, chunks of 1.024 MB: waves of one call, and of eight on a stream each
    (False, 528, 400): (1, 1),
    (False, 264, 400): (2, 2),
    (False, 528, 3200): (7, 7),
    (True, 528, 400): (1, 8),
    (True, 264, 400): (2, 8),
    (True, 528, 3200): (7, 8),
    (True, 264, 3200): (13, 16),
    (True, 1056, 3200): (4, 8),
}


@pytest.mark.parametrize(("in_turn", "slots", "n"), ONE_CALL_AND_EIGHT)
def test_calls_overlap_or_wait_for_each_other(clock, in_turn, slots, n):
    one, eight = ONE_CALL_AND_EIGHT[in_turn, slots, n]
    rates = {"in_turn": in_turn, "slots": slots}

    assert decoding_took(clock, [1_024_000] * n, **rates) == pytest.approx(one * 0.030)
    assert decoding_took(clock, [1_024_000] * n, n_calls=8, **rates) == pytest.approx(eight * 0.030)


def test_every_stream_is_said_to_have_the_length_it_should(device):
    stream = device.stream()
    nbytes = [3000, 3000, 1000]
    receipt = decompress(device, stream, nbytes)
    into = np.full(20 * 3, 255, np.uint8)

    device.download(into, receipt, stream)

    assert into[:24].view(np.uint64).tolist() == nbytes
    assert not into[24:].any()


def test_frames_are_followed_for_a_while(device, clock):
    stream = device.stream()
    device.launch(Kernel(file="zstd_blocks.cu", name="zstd_blocks"), 1, 32, (0, 2, 0, 0), stream)
    device.synchronize(stream)

    assert clock.time == 0.25 + 2.0


def test_placing_takes_the_bytes_that_it_reads_and_writes(device, clock):
    stream, defines = device.stream(), (("STORED", "i2"), ("RESULT", "f4"))
    device.launch(Kernel(file="scatter.cu", name="scatter", defines=defines), 3, 256, (0, 0, 0, 1), stream)
    device.synchronize(stream)

    assert clock.time == pytest.approx(0.25 + 3 * 8192 * (2 + 4) / 1000)


def test_an_event_is_what_its_stream_was_given_before_it_was_recorded(device, clock):
    copies, work, event = device.stream(), device.stream(), device.event()
    device.upload(0, np.zeros(100, np.uint8), copies)
    device.record(event, copies)
    device.upload(0, np.zeros(700, np.uint8), copies)
    device.wait(work, event)
    device.launch(Kernel(file="zstd_blocks.cu", name="zstd_blocks"), 1, 32, (0, 1, 0, 0), work)

    device.synchronize_event(event)
    assert clock.time == 1.5
    device.synchronize(work)
    assert clock.time == 1.5 + 2.25


def test_an_event_that_was_never_recorded_holds_nobody(device, clock):
    device.wait(device.stream(), device.event())
    device.synchronize_event(device.event())

    assert clock.time == 0


def test_calls_keep_their_thread_busy(clock):
    device = ModelledDevice(Rates(allocate_s=1, copy_call_s=2, record_s=4, free_s=8), clock)
    stream = device.stream()

    memory = device.allocate(16, stream)
    device.upload(memory.address, np.zeros(16, np.uint8), stream)
    device.record(device.event(), stream)
    memory.free()

    assert clock.time == 1 + 2 + 4 + 8
    assert clock.slept == []


# ---- rates


@pytest.mark.parametrize(("nbytes", "seconds"), [(10, 1.0), (1000, 1.0), (1500, 1.5), (3000, 3.0)])
def test_a_frame_takes_its_length_over_the_rate_but_not_less_than_the_least(nbytes, seconds):
    assert RATES.formats["zstd"].call_s(1, nbytes) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("fmt", "n_frames", "nbytes", "seconds"),
    [
        ("zstd", 400, 1_024_000, 0.030),  # published: 25 to 45 ms
        ("lz4", 1024, 2**16, 2**26 / (7 * 2**30)),  # published: 7 GiB/s
        ("lz4", 4224, 2**20, 4224 * 2**20 / 31e9),  # reported: 31 GB/s
    ],
)
def test_published_batches_take_as_long_as_published(fmt, n_frames, nbytes, seconds):
    assert Rates().slots[fmt] == FORMATS[fmt].n_at_once
    assert FORMATS[fmt].call_s(n_frames, nbytes) == pytest.approx(seconds, rel=0.01)


# ---- bounds and shares


def test_a_call_takes_waves():
    assert FORMATS["zstd"].call_s(3200, 1_024_000) == pytest.approx(7 * 0.03)  # 3200 / 528 = 6.06
    assert FORMATS["zstd"].call_s(0, 1_024_000) == 0


def test_spans_that_overlap_are_covered_once():
    assert covered([(1, 3), (2, 5), (7, 8), (2, 3)]) == (5 - 1) + (8 - 7)
    assert covered([]) == 0


def test_the_bound_is_the_slowest_resource_that_was_measured():
    def row(name, side, *walls):
        return Row(case="", name=name, side=side, samples=tuple(Sample(wall_s=wall) for wall in walls))

    rows = [
        row("1 thread", "ours", 9),
        row("decoder", "bare", 2),
        row("fetch", "bare", 1, 3, 8),
        row("kernels", "bare"),
    ]

    assert CaseRows(name="", rows=rows).bare.name == "fetch"
    assert CaseRows(name="", rows=rows[:1]).bare is None


# ---- without rates


def test_without_rates_nothing_takes_any_time_and_all_went_well():
    device = ModelledDevice()
    stream = device.stream()
    receipt = decompress(device, stream, [3000, 1000])
    into = np.full(16, 255, np.uint8)

    device.launch(Kernel(file="checksum.cu", name="checksum"), 1, 256, (0, 1, 1, 0), stream)
    device.download(into, receipt, stream)
    device.synchronize(stream)

    assert into.view(np.uint64).tolist() == [3000, 1000]
    assert stream.last is None
    assert device.n_decoded == 0


# ---- the command


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a call of the command on short arrays that returns what it has written."""
    monkeypatch.setattr(Stager, "_decode", lambda *_: pytest.fail("the host decodes"))

    def run(*arguments):
        out = tmp_path / "timed.json"
        assert main(["--smoke", "--threads", "1", "2", "--out", str(out), *arguments]) == 0
        return json.loads(out.read_text())

    return run


def test_command_reads_every_array_and_the_page_has_it(command, tmp_path, capsys):
    document = command()

    assert document["finished"]
    assert document["modelled"]
    arrays = {
        **dict.fromkeys(("published", "64 kB chunks", "4 MB chunks"), 528),
        "raw": 0,
        "small shards": 528,
        **dict.fromkeys(("published, lz4", "64 kB chunks, lz4"), 4224),
        "published, gzip": 528,
    }
    assert [case["name"] for case in document["cases"]] == [
        f"timed/{name}, calls overlap, {slots} slots" for name, slots in arrays.items()
    ]
    for case in document["cases"]:
        assert [row["reader"] for row in case["rows"] if row["side"] == "ours"] == ["no dask", "1 thread", "2 threads"]
    timed = load(tmp_path / "timed.json")
    text = measurements.page({"host": replace(timed, cases=[]), "timed": timed})
    assert "no number below comes from a GPU" in text
    line = r"\| small shards, calls overlap, 528 slots \| 2 threads \| .+ GB/s \| \d+% \|"
    assert re.search(line, text)
    assert re.search(line, capsys.readouterr().out)


def test_bounds_are_those_of_what_was_asked_for(command):
    cases = command("--case", "published", "raw", "--calls", "overlap", "in-turn", "--slots", "1", "4")["cases"]
    bounds = {(c["name"], r["reader"]): r["median_s"] for c in cases for r in c["rows"] if r["side"] == "bare"}

    for calls in ("overlap", "in turn"):
        # 16 chunks of 30 ms: all on one slot, or on four.
        assert bounds[f"timed/published, calls {calls}, 1 slots", "decoder"] == pytest.approx(16 * 0.030)
        assert bounds[f"timed/published, calls {calls}, 4 slots", "decoder"] == pytest.approx(4 * 0.030)
        raw = f"timed/raw, calls {calls}, 4 slots"
        assert bounds[raw, "decoder"] == 0
        assert bounds[raw, "copy engine"] > 16 * 1_024_000 / 50e9
        assert bounds[raw, "fetch"] > 16 * 1_024_000 / 5.7e9 / 16
    for case in cases:
        slowest = max(r["median_s"] for r in case["rows"] if r["side"] == "bare")
        assert all(r["median_s"] >= slowest for r in case["rows"] if r["side"] == "ours")


def test_command_knows_its_arrays(capsys):
    assert main(["--case", "nonsense"]) == 2
    assert "published" in capsys.readouterr().err
