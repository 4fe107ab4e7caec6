"""Addresses as all of `cuda` and `decoders.cuda` pass them on: plain integers."""

from typing import NewType

Address = NewType("Address", int)
"""An address in device memory, or of pinned host memory as the device sees it."""
