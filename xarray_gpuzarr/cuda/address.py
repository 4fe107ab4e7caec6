"""Type of the device addresses that `cuda` and `decoders.cuda` pass on."""

from typing import NewType

Address = NewType("Address", int)
"""Address in device memory, or of pinned host memory as the device sees it."""
