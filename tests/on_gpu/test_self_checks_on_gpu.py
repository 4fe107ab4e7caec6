"""Known answers of a real GPU, and `gpuzarr doctor`: all is well, and it says what the GPU is."""

import json

import pytest

from xarray_gpuzarr.cli import main
from xarray_gpuzarr.decoders.choice import decoder_for
from xarray_gpuzarr.decoders.cuda.checks import check_all

pytestmark = pytest.mark.gpu


def test_every_check_passes(native):
    answers = list(check_all(native.native_device()))
    assert {answer.name: answer.found for answer in answers if not answer.passed} == {}


def test_the_device_says_what_it_is(native):
    identity = native.native_device().identity
    assert identity.name.startswith(("NVIDIA", "Tesla", "GeForce", "Quadro"))
    assert float(identity.compute_capability) >= 7.5
    assert " at " in identity.uuid
    assert all(identity.versions.values())


def test_the_device_can_be_used():
    assert decoder_for("cuda").why_unusable() is None


def test_all_is_well(tmp_path, native):
    out = tmp_path / "doctor.json"

    assert main(["doctor", "--device", "cuda", "--json", str(out)]) == 0

    document = json.loads(out.read_text())
    assert document["machine"]["gpu"]["name"]
    assert all(answer["passed"] for answer in document["answers"])
