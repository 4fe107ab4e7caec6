"""The codecs `scale_offset` and `cast_value` of zarr-python; modules that import this are skipped where it has none."""

import pytest

pytest.importorskip("zarr.codecs.scale_offset", reason="zarr-python has these codecs from 3.2 on")

from zarr.codecs import CastValue, ScaleOffset
from zarr.codecs.scale_offset import _decode as decode_scale_offset

__all__ = ["CastValue", "ScaleOffset", "decode_scale_offset"]
