"""How many of the next chunks go to the host, given what both sides have taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.decoders.cost.taken import FEW_NBYTES, Taken

NBYTES = 1 << 20
WAVE = 528


def taken(host_s=1.5e-3, wave_s=30e-3, staging_s=0.0, nbytes=NBYTES):
    """Return what is known of a thread that takes `host_s` for a chunk, and a device that takes `wave_s` for a wave."""
    known = Taken(nbytes)
    for _ in range(2):
        known.by_device(wave_s, WAVE, WAVE)
    known.by_host(host_s, 16, 16)
    if staging_s:
        known.by_staging(staging_s, 1)
    return known


def test_the_device_has_all_until_it_has_shown_twice_what_it_takes():
    new = Taken(NBYTES)
    new.by_host(1e-9, 1, 1)
    assert new.for_host(5000, 16) == 0
    new.by_device(30e-3, WAVE, WAVE)
    assert new.for_host(5000, 16) == 0
    new.by_device(30e-3, WAVE, WAVE)
    assert new.for_host(5000, 16) == 5000


def test_then_each_thread_of_the_host_is_given_a_few():
    for nbytes, each in ((NBYTES, 1), (FEW_NBYTES // 4, 4)):
        new = Taken(nbytes)
        for _ in range(2):
            new.by_device(30e-3, WAVE, WAVE)
        assert new.for_host(5000, 16) == 16 * each
        assert new.for_host(5000, 16, n_reads=2) == 8 * each
        assert new.for_host(5, 16) == 5
        assert not new.is_known


@pytest.mark.parametrize(
    ("n", "n_host"),
    [
        (16, 16),  # 1.5 ms against 30
        (100, 100),  # seven rounds, 10.5 ms
        (400, 0),  # 37.5 ms: the device is done before, and would take as long with fewer
        (768, 304),  # a wave, and 19 rounds beside
    ],
)
def test_chunks_are_shared_out_in_waves_of_the_device(n, n_host):
    assert taken().for_host(n, 16) == n_host


def test_a_device_that_is_much_quicker_has_all():
    assert taken(wave_s=1e-3).for_host(5000, 16) == 0
    assert taken().for_host(5000, 1) == 0


def test_what_staging_takes_of_the_host_is_time_it_has_not_for_chunks():
    assert taken().for_host(9600, 16) > taken(staging_s=1e-5).for_host(9600, 16) > 0


def test_what_the_device_has_still_to_do_leaves_more_to_the_host():
    assert taken().for_host(400, 16, backlog=4 * WAVE) == 400


def test_a_host_that_was_busy_is_asked_again():
    busy = taken(host_s=1.0)
    assert [busy.for_host(5000, 16) for _ in range(32)] == [0] * 31 + [16]


def test_calls_that_were_decoded_beside_others_count_as_well():
    pairs = taken(wave_s=1.0)
    for _ in range(300):
        pairs.by_device(60e-3, WAVE, WAVE)
        pairs.by_device(0.0, WAVE, WAVE)
        pairs.by_device(-1.0, WAVE, WAVE)
    assert pairs.device_seconds("", WAVE, NBYTES) == pytest.approx(20e-3, rel=0.1)


def test_a_device_that_was_busy_once_is_believed_the_second_time():
    first = Taken(NBYTES)
    first.by_device(10.0, WAVE, WAVE)  # kernels were built
    first.by_device(30e-3, WAVE, WAVE)
    first.by_host(1.5e-3, 1, 1)
    assert first.for_host(400, 16) == 0


@given(
    host_s=st.floats(1e-6, 1),
    wave_s=st.floats(1e-6, 1),
    n=st.integers(1, 20_000),
    n_threads=st.integers(1, 128),
    n_reads=st.integers(1, 8),
)
def test_no_share_is_expected_to_take_longer_than_the_device_alone(host_s, wave_s, n, n_threads, n_reads):
    known = taken(host_s, wave_s)
    n_host = known.for_host(n, n_threads, n_reads)

    assert 0 <= n_host <= n
    alone = -(-n * n_reads // WAVE) * wave_s
    host = -(-n_host // max(1, n_threads // n_reads)) * host_s
    device = -(-(n - n_host) * n_reads // WAVE) * wave_s
    assert max(host, device) <= alone * (1 + 1e-9)
