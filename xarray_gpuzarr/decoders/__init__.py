"""Decoders: `host` and `cuda`, two siblings behind one protocol, and `choice`, the one place that chooses."""

from xarray_gpuzarr.decoders.choice import (
    by_usable,
    decoder_for,
    is_device,
    is_usable,
    missing_for_cuda,
    perhaps_device,
    resolve_device,
    resolve_storage,
    usable_device,
)
from xarray_gpuzarr.decoders.protocol import Decoder, Device, Route, StreamOf

__all__ = [
    "Decoder",
    "Device",
    "Route",
    "StreamOf",
    "by_usable",
    "decoder_for",
    "is_device",
    "is_usable",
    "missing_for_cuda",
    "perhaps_device",
    "resolve_device",
    "resolve_storage",
    "usable_device",
]
