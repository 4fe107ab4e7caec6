"""The options of reads on a GPU: the environment, and what is refused."""

import pytest

from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.device_options import ResourceOptions


def test_the_environment_sets_every_field():
    environ = {
        "XARRAY_GPUZARR_SLOT_NBYTES": "1 MiB",
        "XARRAY_GPUZARR_N_SLOTS": "5",
        "XARRAY_GPUZARR_BATCH_NBYTES": "2GB",
        "XARRAY_GPUZARR_BATCH_CHUNKS": "7",
        "XARRAY_GPUZARR_SCRATCH_NBYTES": "8000000000",
        "XARRAY_GPUZARR_N_BATCHES": "3",
        "XARRAY_GPUZARR_N_READS": "1",
        "XARRAY_GPUZARR_MEMORY": "pool",
        "XARRAY_GPUZARR_LITTLE": "device",
        "XARRAY_GPUZARR_CHECKS": "strict",
        "XARRAY_GPUZARR_VERIFY": "0.5",
    }

    assert ResourceOptions.from_environment(environ) == ResourceOptions(
        slot_nbytes=1_048_576,
        n_slots=5,
        batch_nbytes=2_000_000_000,
        batch_chunks=7,
        scratch_nbytes=8_000_000_000,
        n_batches=3,
        n_reads=1,
        memory="pool",
        little="device",
        checks="strict",
        verify=0.5,
    )


def test_plain_is_the_most_cautious_value_of_each():
    found = ResourceOptions.from_environment({"XARRAY_GPUZARR_ENGINE": "plain", "XARRAY_GPUZARR_VERIFY": "off"})

    assert found == ResourceOptions(n_batches=1, n_reads=1, little="device", checks="strict", verify="off")


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
        ({"n_batches": 0}, "at least 1"),
        ({"n_reads": 0}, "at least 1"),
        ({"little": "host"}, "valid options: auto, device"),
        ({"checks": True}, "valid options: warn, strict, off"),
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
