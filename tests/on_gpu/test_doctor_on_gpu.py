"""`gpuzarr doctor` on a real GPU: all is well, and it says what the GPU is."""

import json

import pytest

from xarray_gpuzarr.cli import main

pytestmark = pytest.mark.gpu


def test_all_is_well(tmp_path, native):
    out = tmp_path / "doctor.json"

    assert main(["doctor", "--device", "cuda", "--json", str(out)]) == 0

    document = json.loads(out.read_text())
    assert document["machine"]["gpu"]["name"]
    assert all(answer["passed"] for answer in document["answers"])
