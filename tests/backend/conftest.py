"""Formats of stores, and a device whose arrays refuse to become NumPy's."""

import pytest
from helpers.strict_duck import strict_decoder_for

from xarray_gpuzarr.backend import lazy_array, open_options


@pytest.fixture(params=[2, 3])
def zarr_format(request):
    return request.param


@pytest.fixture
def strict_device(monkeypatch):
    """Results are arrays that only `get` brings to the host."""
    monkeypatch.setattr(lazy_array, "decoder_for", strict_decoder_for)
    monkeypatch.setattr(open_options, "resolve_device", lambda _device: "cuda")
