"""A few thousand mutated frames; ``make fuzz`` shows the same code a million of each kind."""

import re

import pytest
from helpers import fuzz
from helpers.kernels.on_host import require_compiler, run_child, sanitized_environment

from xarray_gpuzarr.frames.blosc import walk_blosc


@pytest.fixture(autouse=True)
def compiler():
    require_compiler()


@pytest.mark.parametrize("name", fuzz.FUZZERS)
def test_mutated_frames_are_refused_or_decoded_right(name):
    counts = fuzz.FUZZERS[name](5000, seed=1)

    assert counts["mutants"] == 5000
    assert all(count > 100 for count in counts.values())
    assert counts["ready"] < 4900


def test_sanitizers_find_nothing_in_mutated_frames():
    child = run_child(sanitized_environment(), "-m", "helpers.fuzz", "--frames", "2000", "--seed", "3")

    assert child.returncode == 0, child.stdout + child.stderr[-3000:]
    assert re.findall("^(\\w+): 2000 mutants", child.stdout, re.MULTILINE) == [*fuzz.FUZZERS]


def test_frames_before_they_are_mutated_are_all_decoded():
    data, start, nbytes = fuzz.laid(fuzz.BLOSC_FRAMES)

    decoded = fuzz.decoded_chunks(data, walk_blosc(data, start, nbytes, fuzz.NBYTES), fuzz.NBYTES)

    assert decoded == [fuzz.CONTENT] * len(fuzz.BLOSC_FRAMES)


def test_wrong_bytes_are_found_out(monkeypatch):
    monkeypatch.setattr(fuzz, "decoded_chunks", lambda _data, found, n: [bytes(n)] * len(found.ready))

    with pytest.raises(AssertionError):
        fuzz.fuzz_blosc(250, seed=1)
