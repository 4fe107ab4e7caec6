"""Frames of every compressor and the bytes that they decode to, with which self-checks compare.

``known.json``, a file of the package, holds the frames, which the usual libraries have written. The decoded bytes
follow from a formula, `content`. The module `helpers.data.known_frames` of the tests writes the file, and the tests
compare what other libraries decode the frames to.
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
"""Formula of decoded bytes; see `content`."""

_PERIOD = 211
"""Number of words after which ``waves`` begin again. Long chunks of them compress well, with references across
many blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFrame:
    """One encoded chunk."""

    writer: str
    """Library that wrote the frame, and its settings."""
    content: Content
    """Formula of the decoded bytes."""
    nbytes: int
    """Number of decoded bytes."""
    frame: bytes
    """Encoded bytes."""

    @property
    def decoded(self) -> bytes:
        """Decoded bytes."""
        return content(self.content, self.nbytes)


@cache
def content(kind: Content, nbytes: int) -> bytes:
    """Return `nbytes` bytes by a formula.

    ``zeros`` are zeros, ``noise`` has no pattern, and ``waves`` are little-endian int32 that rise as squares and begin
    again after `_PERIOD` words. The first word of each wave is its number, so that waves differ.
    """
    if kind == "zeros":
        return bytes(nbytes)
    if kind == "noise":
        with np.errstate(over="ignore"):
            mixed = np.arange(1, nbytes + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            return bytes(((mixed * np.uint64(0xBF58476D1CE4E5B9)) >> np.uint64(56)).astype(np.uint8))
    word = np.arange(-(-nbytes // 4))
    wave, step = np.divmod(word, _PERIOD)
    return bytes(((step // 3) ** 2 // 7 + wave * (step == 0)).astype("<i4"))[:nbytes]


@cache
def known_frames() -> Mapping[str, Sequence[KnownFrame]]:
    """Return the frames of each compressor: ``zstd``, ``lz4``, ``gzip``, ``zlib``, and ``blosc lz4`` etc. for Blosc."""
    document = json.loads((resources.files(__package__) / "known.json").read_text())
    frames_by_name = {}
    for name, entries in document.items():
        frames = []
        for entry in entries:
            encoded = base64.b64decode(entry["frame"])
            frames.append(
                KnownFrame(writer=entry["writer"], content=entry["content"], nbytes=entry["nbytes"], frame=encoded)
            )
        frames_by_name[name] = tuple(frames)
    return frames_by_name
