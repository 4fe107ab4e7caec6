"""Settings of how stores are asked: the environment, `configure`, what is refused, and what they make of the rule."""

import pytest

from xarray_gpuzarr import FetchOptions, OptionError, configure
from xarray_gpuzarr.fetch.rules import coalesce_rule
from xarray_gpuzarr.plan.byte_range import CoalesceRule
from xarray_gpuzarr.process import device_options as decoding
from xarray_gpuzarr.process import fetch_options as options
from xarray_gpuzarr.process.configuration import check_options, options_in_force
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.fetch_options import fetch_options


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Put both records back when the test ends."""
    monkeypatch.setattr(options.in_force, "options", None)
    monkeypatch.setattr(decoding.in_force, "options", None)


def test_the_environment_sets_every_field(monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_MAX_GAP_NBYTES", "0")
    monkeypatch.setenv("XARRAY_GPUZARR_MAX_REQUEST_NBYTES", "1 MiB")
    monkeypatch.setenv("XARRAY_GPUZARR_MAX_REQUESTS", "5")
    monkeypatch.setenv("XARRAY_GPUZARR_INDEX_CACHE_NBYTES", "2MB")

    assert fetch_options() == FetchOptions(
        max_gap_nbytes=0, max_request_nbytes=1_048_576, max_requests=5, index_cache_nbytes=2_000_000
    )


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({"max_gap_nbytes": -1}, "at least 0"),
        ({"max_request_nbytes": 0}, "at least 1"),
        ({"max_request_nbytes": 1.5}, "at least 1"),
        ({"max_requests": 0}, "at least 1"),
        ({"max_requests": None}, "at least 1"),
        ({"max_requests": True}, "at least 1"),
        ({"index_cache_nbytes": -1}, "at least 0"),
        ({"index_cache_nbytes": None}, "at least 0"),
    ],
)
def test_an_unusable_value_is_refused_by_name_and_changes_nothing(chosen, found):
    (name,) = chosen
    configure(max_requests=7)

    with pytest.raises(OptionError, match=name) as caught:
        configure(**chosen)

    assert found in caught.value.found
    assert fetch_options().max_requests == 7


@pytest.mark.parametrize("text", ["", "-1", "many", "1.5", "64 MiB"])
def test_an_unusable_variable_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("XARRAY_GPUZARR_MAX_REQUESTS", text)

    with pytest.raises(OptionError, match="XARRAY_GPUZARR_MAX_REQUESTS"):
        fetch_options()


def test_configure_sets_both_kinds_and_says_what_is_in_force():
    in_force = configure(max_requests=9, n_slots=5)

    assert (in_force["max_requests"], in_force["n_slots"]) == (9, 5)
    assert fetch_options() == FetchOptions(max_requests=9)
    assert decoding.in_force.get() == ResourceOptions(n_slots=5, little="device")
    assert options_in_force() == in_force


def test_what_is_left_out_goes_back_to_the_default():
    configure(max_requests=9, n_slots=5)

    configure(max_gap_nbytes=1)

    assert fetch_options() == FetchOptions(max_gap_nbytes=1)
    assert decoding.in_force.get() == ResourceOptions(little="device")  # as the environment of the tests says


def test_plain_stands_for_several_and_others_come_first():
    found = configure(engine="plain", n_reads=2)

    assert [found[name] for name in ("n_batches", "n_reads", "little", "checks", "verify")] == [
        *(1, 2, "device", "strict", "all")
    ]
    with pytest.raises(OptionError, match="valid options: usual, plain"):
        configure(engine="fast")


def test_what_was_in_force_can_be_put_back():
    before = configure(max_requests=9, n_slots=5)
    configure()

    assert configure(**before) == before


def test_an_unknown_name_is_refused_with_the_known_ones_and_changes_nothing():
    configure(n_slots=5)

    for ask in (configure, lambda **chosen: check_options(chosen)):
        with pytest.raises(OptionError, match="max_request, nslots") as caught:
            ask(nslots=4, max_request=1, max_requests=3)
        assert {"max_requests", "n_slots"} <= set(caught.value.found.replace(",", "").split())
    assert decoding.in_force.get().n_slots == 5
    assert fetch_options().max_requests == 64


def test_an_unusable_resource_leaves_the_other_kind_alone():
    with pytest.raises(OptionError, match="n_slots"):
        configure(max_requests=3, n_slots=1)

    assert fetch_options().max_requests == 64


@pytest.mark.parametrize(
    ("chosen", "rule"),
    [
        ({}, (10, 100, 1000)),
        ({"max_gap_nbytes": 0}, (0, 100, 1000)),
        ({"max_request_nbytes": 7}, (10, 7, 7)),
        ({"max_gap_nbytes": 3, "max_request_nbytes": 5000}, (3, 5000, 5000)),
    ],
)
def test_limits_that_were_set_take_the_place_of_a_stores_own(chosen, rule):
    gap, longest, raw = rule

    configure(**chosen)

    assert coalesce_rule(max_gap_nbytes=10, max_nbytes=100, max_raw_nbytes=1000) == CoalesceRule(
        max_gap_nbytes=gap, max_nbytes=longest, max_raw_nbytes=raw
    )
