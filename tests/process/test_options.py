"""Settings of how stores are asked, and of GPUs: the environment, `configure`, what is refused, what limits make.

Sizes in bytes: all who take one take the same and refuse the same.
"""

import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr import FetchOptions, GpuZarrPlugin, OptionError, configure
from xarray_gpuzarr.cuda.configuration import check_options, options_in_force
from xarray_gpuzarr.plan.byte_range import CoalesceRule, coalesce_rule
from xarray_gpuzarr.process import device_options as decoding
from xarray_gpuzarr.process import fetch_options as options
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.process.fetch_options import fetch_options
from xarray_gpuzarr.process.settings import parse_nbytes

NO_SIZE = "not a size such as 67108864, 64 MiB or 2GB"
SETTINGS = [
    *("max_gap_nbytes", "max_request_nbytes", "index_cache_nbytes", "cache_nbytes"),
    *("slot_nbytes", "batch_nbytes", "scratch_nbytes"),
]


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Put both records back when the test ends."""
    monkeypatch.setattr(options.in_force, "options", None)
    monkeypatch.setattr(decoding.in_force, "options", None)


OF_THE_ENVIRONMENT = {
    FetchOptions: {
        "max_gap_nbytes": ("0", 0),
        "max_request_nbytes": ("1 MiB", 1_048_576),
        "max_requests": ("5", 5),
        "index_cache_nbytes": ("2MB", 2_000_000),
        "cache_nbytes": ("3 GiB", 3 * 1024**3),
        "ahead_nbytes": ("3 MiB", 3_145_728),
    },
    ResourceOptions: {
        "slot_nbytes": ("1 MiB", 1_048_576),
        "n_slots": ("5", 5),
        "batch_nbytes": ("2GB", 2_000_000_000),
        "batch_chunks": ("7", 7),
        "scratch_nbytes": ("8000000000", 8_000_000_000),
        "n_batches": ("3", 3),
        "n_reads": ("1", 1),
        "memory": ("pool", "pool"),
        "little": ("device", "device"),
        "checks": ("strict", "strict"),
        "verify": ("all", "all"),
    },
}


@pytest.mark.parametrize(("kind", "record"), [(FetchOptions, options), (ResourceOptions, decoding)])
def test_the_environment_sets_every_field(monkeypatch, kind, record):
    for name, (text, _) in OF_THE_ENVIRONMENT[kind].items():
        monkeypatch.setenv(f"XARRAY_GPUZARR_{name.upper()}", text)

    assert record.in_force.get() == kind(**{name: value for name, (_, value) in OF_THE_ENVIRONMENT[kind].items()})


def test_plain_is_the_most_cautious_value_of_each():
    found = ResourceOptions.from_environment({"XARRAY_GPUZARR_ENGINE": "plain", "XARRAY_GPUZARR_VERIFY": "off"})

    assert found == ResourceOptions(n_batches=1, n_reads=1, little="device", checks="strict", verify="off")


UNUSABLE = {
    "at least 0": [
        *(("max_gap_nbytes", -1), ("index_cache_nbytes", -1), ("index_cache_nbytes", None)),
        *(("cache_nbytes", -1), ("cache_nbytes", 1.5)),
    ],
    "at least 1": [
        *(("max_requests", value) for value in (0, None, True)),
        *(("max_request_nbytes", 0), ("max_request_nbytes", 1.5), ("batch_nbytes", True), ("batch_nbytes", 0)),
        *(("scratch_nbytes", 0), ("n_batches", 0), ("n_reads", 0)),
    ],
    "at least 65536": [("slot_nbytes", value) for value in (65_535, 1e6, None)],
    "at least 2": [("n_slots", 1)],
    "valid options: auto, pool, async, current": [("memory", "managed"), ("memory", None)],
    "valid options: auto, device": [("little", "host")],
    "valid options: warn, strict, off": [("checks", True)],
    "valid options: first, all, off": [("verify", 0.5), ("verify", True)],
    NO_SIZE: [(name, text) for name in SETTINGS for text in ("64 M", "", "-1 kB", "many")],
}


@pytest.mark.parametrize(
    ("name", "value", "found"), [(*given, found) for found, several in UNUSABLE.items() for given in several]
)
def test_an_unusable_value_is_refused_by_name_and_changes_nothing(name, value, found):
    before = configure(max_requests=7, n_slots=5)

    with pytest.raises(OptionError) as caught:
        configure(**{"max_gap_nbytes": 3, "n_batches": 2, name: value})

    assert caught.value.tried == f"{name}={value!r}"
    assert caught.value.found.endswith(found)
    assert f"XARRAY_GPUZARR_{name.upper()}" in caught.value.do
    assert options_in_force() == before


@pytest.mark.parametrize(
    ("options", "variable", "text", "found"),
    [
        *((FetchOptions, "MAX_REQUESTS", text, "whole number") for text in ("", "-1", "many", "1.5", "64 MiB")),
        (ResourceOptions, "SLOT_NBYTES", "64 M", NO_SIZE),
        (ResourceOptions, "BATCH_NBYTES", "", NO_SIZE),
        (ResourceOptions, "N_SLOTS", "3.0", "not a whole number"),
        (ResourceOptions, "N_SLOTS", "4 kB", "not a whole number"),
        pytest.param(ResourceOptions, "N_SLOTS", "9" * 5000, "not a whole number", id="thousands of digits"),
    ],
)
def test_an_unusable_variable_is_refused_by_name(options, variable, text, found):
    with pytest.raises(OptionError) as caught:
        options.from_environment({f"XARRAY_GPUZARR_{variable}": text})

    assert f"XARRAY_GPUZARR_{variable}" in str(caught.value)
    assert found in caught.value.found


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


@pytest.mark.parametrize(("name", "variable"), [("num_threads", "NUM_THREADS"), ("native", "NATIVE")])
def test_a_setting_of_the_environment_alone_is_named_as_one(name, variable):
    with pytest.raises(OptionError, match="unknown option") as error:
        configure(**{name: 2})

    do = f"set XARRAY_GPUZARR_{variable} in the environment before Python starts; configure cannot change {name}"
    assert str(error.value).splitlines()[-1].removeprefix("  do:    ") == do


def test_an_unknown_name_is_refused_with_the_known_ones_and_changes_nothing():
    configure(n_slots=5)

    for ask in (configure, lambda **chosen: check_options(chosen)):
        with pytest.raises(OptionError, match="max_request, nslots") as caught:
            ask(nslots=4, max_request=1, max_requests=3)
        assert {"max_requests", "n_slots"} <= set(caught.value.found.replace(",", "").split())
    assert decoding.in_force.get().n_slots == 5
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

    of_store = CoalesceRule(max_gap_nbytes=10, max_nbytes=100, max_raw_nbytes=1000)
    assert coalesce_rule(fetch_options(), of_store) == CoalesceRule(
        max_gap_nbytes=gap, max_nbytes=longest, max_raw_nbytes=raw
    )


# ---- sizes

FACTORS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
FACTORS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def nbytes(text):
    return parse_nbytes(text, "unusable size", tried=text, do="mend it")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64 MiB", 67_108_864), (" 1.5 gib ", 1_610_612_736), (".5kb", 500), ("0.1 KiB", 102), ("3.TB", 3 * 10**12)],
)
def test_a_size_may_carry_a_unit(text, expected):
    assert nbytes(text) == expected


@given(
    number=st.integers(0, 10**15),
    unit=st.sampled_from(list(FACTORS)),
    flips=st.lists(st.booleans(), min_size=3, max_size=3),
    space=st.sampled_from(["", " ", "\t", "  "]),
)
def test_units_mean_the_same_in_any_case(number, unit, flips, space):
    cased = "".join(c.swapcase() if flip else c for c, flip in zip(unit, flips, strict=False))

    assert nbytes(f"{number}{space}{cased}{space}") == number * FACTORS[unit]


@given(
    whole=st.integers(0, 10**9),
    digits=st.text(string.digits, min_size=1, max_size=12),
    unit=st.sampled_from(["kB", "GiB"]),
)
def test_fractions_of_a_unit_are_rounded_down_to_bytes(whole, digits, unit):
    exact = (whole + Fraction(int(digits), 10 ** len(digits))) * FACTORS[unit]

    assert nbytes(f"{whole}.{digits} {unit}") <= exact < nbytes(f"{whole}.{digits} {unit}") + 1


@pytest.mark.parametrize(
    "text",
    [
        *("9" * 5000, "", " ", "MiB", "-1", "+1", "1e6", "1 PB", "64 M"),
        *("1,5 GB", "1 2", "1..2", ".", "٣ MB", "1_000", "1 KİB", "nan"),
    ],
    ids=repr,
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(OptionError) as caught:
        nbytes(text)

    assert caught.value.found == NO_SIZE


def test_workers_are_given_sizes_with_units_and_bad_ones_are_refused_on_the_client():
    GpuZarrPlugin(slot_nbytes="1 MiB")

    with pytest.raises(OptionError, match="unusable option 'slot_nbytes'"):
        GpuZarrPlugin(slot_nbytes="1 M")


def test_a_size_that_is_too_small_is_refused_in_bytes():
    with pytest.raises(OptionError) as caught:
        configure(slot_nbytes="63 KiB")

    assert (caught.value.tried, caught.value.found) == ("slot_nbytes=64512", "not a whole number of at least 65536")
