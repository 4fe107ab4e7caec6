"""Frames of every compressor and what they decode to: the inputs of self-checks, carried by the package.

``known.json`` holds the frames, written by the usual writers; what they decode to is a formula. The tests'
`helpers.data.known_frames` writes the file, and other libraries decode it there.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np

Content = Literal["waves", "noise", "zeros"]

_PERIOD = 211
"""Words after which waves begin anew: long ones compress well, and reach back over many blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFrame:
    """One encoded chunk."""

    writer: str
    """Writer of the bytes, and its settings."""
    content: Content
    nbytes: int
    """Decoded bytes."""
    frame: bytes

    @property
    def decoded(self) -> bytes:
        """Decoded bytes."""
        return content(self.content, self.nbytes)


@cache
def content(kind: Content, nbytes: int) -> bytes:
    """Return bytes by a formula: ``waves`` are rising int32 that begin anew now and then, ``noise`` has no pattern."""
    if kind == "zeros":
        return bytes(nbytes)
    if kind == "noise":
        with np.errstate(over="ignore"):
            mixed = np.arange(1, nbytes + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            return bytes(((mixed * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(56)).astype(np.uint8))
    word = np.arange(-(-nbytes // 4))
    turn, within = np.divmod(word, _PERIOD)
    return bytes(((within // 3) ** 2 // 7 + turn * (within == 0)).astype("<i4"))[:nbytes]


@cache
def known_frames() -> Mapping[str, Sequence[KnownFrame]]:
    """Return the frames of each compressor: ``zstd``, ``lz4``, ``gzip``, ``zlib`` and, for Blosc, ``blosc lz4`` etc."""
    document = json.loads((resources.files(__package__) / "known.json").read_text())
    return {
        name: tuple(KnownFrame(**{**fields, "frame": base64.b64decode(fields["frame"])}) for fields in frames)
        for name, frames in document.items()
    }
