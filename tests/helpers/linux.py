"""The mark of tests that look into /proc, or watch calls that only Linux has."""

import sys

import pytest

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, or at calls of Linux")
