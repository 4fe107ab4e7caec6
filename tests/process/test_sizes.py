"""Sizes in bytes: how they are written, and that all who take one take the same and refuse the same."""

import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr import GpuZarrPlugin, OptionError, configure
from xarray_gpuzarr.process import device_options, fetch_options
from xarray_gpuzarr.process.settings import parse_nbytes

FACTORS = {
    "": 1,
    "B": 1,
    "kB": 1_000,
    "MB": 1_000_000,
    "GB": 1_000_000_000,
    "TB": 1_000_000_000_000,
    "KiB": 1_024,
    "MiB": 1_048_576,
    "GiB": 1_073_741_824,
    "TiB": 1_099_511_627_776,
}


def nbytes(text):
    return parse_nbytes(text, "unusable size", tried=text, do="mend it")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64 MiB", 67_108_864),
        ("2GB", 2_000_000_000),
        ("65536", 65_536),
        (" 1.5 gib ", 1_610_612_736),
        (".5kb", 500),
        ("0.1 KiB", 102),
        ("3.TB", 3_000_000_000_000),
    ],
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

    assert caught.value.found == "not a size such as 67108864, 64 MiB or 2GB"


@pytest.fixture
def as_before(monkeypatch):
    """Put both records back when the test ends."""
    for options in (fetch_options, device_options):
        monkeypatch.setattr(options.in_force, "options", None)


SETTINGS = [
    *("max_gap_nbytes", "max_request_nbytes", "index_cache_nbytes"),
    *("slot_nbytes", "batch_nbytes", "scratch_nbytes"),
]


@pytest.mark.parametrize("name", SETTINGS)
def test_configure_takes_sizes_with_units(as_before, name):
    assert configure(**{name: " 64.5 kib "})[name] == 66_048


def test_workers_are_given_sizes_with_units_and_bad_ones_are_refused_on_the_client():
    GpuZarrPlugin(slot_nbytes="1 MiB")

    with pytest.raises(OptionError, match="unusable option 'slot_nbytes'"):
        GpuZarrPlugin(slot_nbytes="1 M")


def test_a_size_that_is_too_small_is_refused_in_bytes(as_before):
    with pytest.raises(OptionError) as caught:
        configure(slot_nbytes="63 KiB")

    assert (caught.value.tried, caught.value.found) == ("slot_nbytes=64512", "not a whole number of at least 65536")


@pytest.mark.parametrize("value", ["64 M", "", "-1 kB", "many"])
@pytest.mark.parametrize("name", SETTINGS)
def test_configure_refuses_what_is_no_size_and_changes_nothing(as_before, name, value):
    before = configure(max_requests=7)

    with pytest.raises(OptionError, match=f"unusable option {name!r}") as caught:
        configure(**{name: value})

    assert caught.value.tried == f"{name}={value!r}"
    assert caught.value.found == "not a size such as 67108864, 64 MiB or 2GB"
    variable = f"XARRAY_GPUZARR_{name.upper()}"
    assert caught.value.do == f"give {name} another value, or leave it out and unset {variable} to get the default"
    assert fetch_options.fetch_options().max_requests == before["max_requests"] == 7
