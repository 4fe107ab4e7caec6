"""Whether compiled loops are in use, and what is said of it: the setting, the command, explanations."""

import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.loops import rows_taken

from xarray_gpuzarr import OptionError, read_array
from xarray_gpuzarr.cli import main
from xarray_gpuzarr.machine.diagnosis.machine import machine_section
from xarray_gpuzarr.native import library
from xarray_gpuzarr.native.library import why_absent

ENV = "XARRAY_GPUZARR_NATIVE"


@pytest.fixture(autouse=True)
def asked_each_time(monkeypatch):
    """A process asks the environment once; tests ask it each time."""
    monkeypatch.setattr(library, "find", library.find.__wrapped__)
    monkeypatch.delenv(ENV, raising=False)


@pytest.fixture
def store(tmp_path):
    path = str(tmp_path / "s.zarr")
    xr.Dataset({"t": ("x", np.arange(64.0))}).chunk(x=8).to_zarr(path, zarr_format=3, consolidated=False)
    return path


def test_0_turns_them_off(monkeypatch, memory):
    data = counting((40, 30))
    monkeypatch.setenv(ENV, "0")

    with rows_taken() as taken:
        assert_same_bits(read_array(write(memory, data, chunks=(4, 7)), device="host"), data)

    assert not taken.given


@pytest.mark.parametrize("setting", ["", "2", "yes", "no", " 1"])
@pytest.mark.parametrize("n_chunks", [1, 4])
def test_an_unusable_setting_fails_a_read_clearly(monkeypatch, setting, n_chunks):
    data = np.arange(8 * n_chunks)
    array = zarr.create_array(zarr.storage.MemoryStore(), data=data, chunks=(8,))
    monkeypatch.setenv(ENV, setting)

    with pytest.raises(OptionError, match=f"tried: {ENV}={setting!r}"):
        read_array(array, device="host")


def by_explain(store):
    return xr.open_dataset(store, engine="gpuzarr", device="host", consolidated=False).gpuzarr.explain().note


def by_info(store):
    with redirect_stdout(StringIO()) as out:
        assert main(["info", store, "--device", "host"]) == 0
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize("ask", [lambda _: dict(machine_section(None).rows)["loops"], by_explain, by_info])
def test_it_is_said_why_they_are_not_in_use(store, monkeypatch, ask):
    monkeypatch.setenv(ENV, "0")

    assert "not in use: XARRAY_GPUZARR_NATIVE=0; unset it to use them" in ask(store)


@pytest.mark.parametrize("setting", ["0", "1"])
def test_info_as_json_says_it(store, setting, monkeypatch, capsys):
    monkeypatch.setenv(ENV, setting)

    assert main(["info", store, "--json", "--device", "host"]) == 0

    assert json.loads(capsys.readouterr().out)["why_no_loops"] == why_absent()


def test_the_doctor_refuses_an_unusable_setting(monkeypatch, capsys):
    monkeypatch.setenv(ENV, "yes")

    assert main(["doctor", "--device", "host"]) == 2

    assert "neither 0 nor 1" in capsys.readouterr().err
