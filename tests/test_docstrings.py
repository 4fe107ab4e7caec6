"""The examples in docstrings run."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["xarray_gpuzarr.read"])
def test_examples_in_docstrings_hold(module):
    results = doctest.testmod(importlib.import_module(module))

    assert results.attempted > 0
    assert results.failed == 0
