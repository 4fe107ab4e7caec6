"""The options of reads on a GPU: sizes in words, the environment, and what is refused."""

import os
import string
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.device_options import ResourceOptions
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


@pytest.mark.parametrize(
    ("text", "nbytes"),
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
def test_a_size_may_carry_a_unit(text, nbytes):
    assert parse_nbytes(text) == nbytes


@given(
    number=st.integers(0, 10**15),
    unit=st.sampled_from(list(FACTORS)),
    flips=st.lists(st.booleans(), min_size=3, max_size=3),
    space=st.sampled_from(["", " ", "\t", "  "]),
)
def test_units_mean_the_same_in_any_case(number, unit, flips, space):
    cased = "".join(c.swapcase() if flip else c for c, flip in zip(unit, flips, strict=False))

    assert parse_nbytes(f"{number}{space}{cased}{space}") == number * FACTORS[unit]


@given(
    whole=st.integers(0, 10**9),
    digits=st.text(string.digits, min_size=1, max_size=12),
    unit=st.sampled_from(["kB", "GiB"]),
)
def test_fractions_of_a_unit_are_rounded_down_to_bytes(whole, digits, unit):
    exact = (whole + Fraction(int(digits), 10 ** len(digits))) * FACTORS[unit]

    assert parse_nbytes(f"{whole}.{digits} {unit}") <= exact < parse_nbytes(f"{whole}.{digits} {unit}") + 1


@pytest.mark.parametrize(
    "text",
    ["", " ", "MiB", "-1", "+1", "1e6", "1 PB", "64 M", "1,5 GB", "1 2", "1..2", ".", "٣ MB", "1_000", "1 KİB", "nan"],
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        parse_nbytes(text)


def test_defaults_hold_where_the_environment_says_nothing():
    assert ResourceOptions.from_environment({"HOME": "/"}) == ResourceOptions(
        slot_nbytes=41_943_040,
        n_slots=3,
        batch_nbytes=134_217_728,
        batch_chunks=None,
        scratch_nbytes=None,
        memory="auto",
    )


def test_the_environment_sets_every_field():
    environ = {
        "XARRAY_GPUZARR_SLOT_NBYTES": "1 MiB",
        "XARRAY_GPUZARR_N_SLOTS": "5",
        "XARRAY_GPUZARR_BATCH_NBYTES": "2GB",
        "XARRAY_GPUZARR_BATCH_CHUNKS": "7",
        "XARRAY_GPUZARR_SCRATCH_NBYTES": "8000000000",
        "XARRAY_GPUZARR_MEMORY": "pool",
    }

    assert ResourceOptions.from_environment(environ) == ResourceOptions(
        slot_nbytes=1_048_576,
        n_slots=5,
        batch_nbytes=2_000_000_000,
        batch_chunks=7,
        scratch_nbytes=8_000_000_000,
        memory="pool",
    )


def test_the_process_environment_is_read_at_each_call(monkeypatch):
    monkeypatch.setitem(os.environ, "XARRAY_GPUZARR_N_SLOTS", "9")

    assert ResourceOptions.from_environment().n_slots == 9


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"slot_nbytes": 65_535}, "at least 65536"),
        ({"slot_nbytes": 1e6}, "at least 65536"),
        ({"slot_nbytes": "64 MiB"}, "at least 65536"),
        ({"slot_nbytes": None}, "at least 65536"),
        ({"n_slots": 1}, "at least 2"),
        ({"batch_nbytes": True}, "at least 1"),
        ({"batch_nbytes": 0}, "at least 1"),
        ({"scratch_nbytes": 0}, "at least 1"),
        ({"memory": "managed"}, "valid options: auto, pool, async, current"),
        ({"memory": None}, "valid options: auto, pool, async, current"),
    ],
)
def test_an_unusable_value_is_refused_by_name(options, found):
    ((name, value),) = options.items()

    with pytest.raises(OptionError) as caught:
        ResourceOptions(**options)

    assert caught.value.tried == f"{name}={value!r}"
    assert caught.value.found.endswith(found)
    assert f"XARRAY_GPUZARR_{name.upper()}" in caught.value.do


@pytest.mark.parametrize(
    ("variable", "text", "found"),
    [
        ("SLOT_NBYTES", "64 M", "not a size such as 67108864, 64 MiB or 2GB"),
        ("BATCH_NBYTES", "", "not a size such as 67108864, 64 MiB or 2GB"),
        ("N_SLOTS", "3.0", "not a whole number"),
        ("N_SLOTS", "4 kB", "not a whole number"),
    ],
)
def test_an_unreadable_variable_is_refused_by_name(variable, text, found):
    with pytest.raises(OptionError) as caught:
        ResourceOptions.from_environment({f"XARRAY_GPUZARR_{variable}": text})

    assert caught.value.tried == f"XARRAY_GPUZARR_{variable}={text!r}"
    assert caught.value.found == found


def test_least_values_are_allowed():
    ResourceOptions(slot_nbytes=65_536, n_slots=2, batch_nbytes=1, scratch_nbytes=1, memory="current")
