"""Checksums on the host: a table from algorithm to the library that is quickest at it, without the GIL."""

from __future__ import annotations

from collections.abc import Callable

import imagecodecs

from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.native import crc32c
from xarray_gpuzarr.stored.codecs import ChecksumAlgorithm, ChecksumSpec

_NBYTES = 4

_ALGORITHMS: dict[ChecksumAlgorithm, Callable[[memoryview, int], int]] = {
    "crc32": lambda payload, _: imagecodecs.deflate_crc32(payload),
    "crc32c": lambda payload, _: crc32c(payload),
    "adler32": lambda payload, _: imagecodecs.deflate_adler32(payload),
    "fletcher32": lambda payload, _: imagecodecs.h5checksum_fletcher32(payload),
    "jenkins_lookup3": imagecodecs.h5checksum_lookup3,
}


def strip_checksum(spec: ChecksumSpec, src: memoryview) -> memoryview:
    """Check a checksum and return the payload, a part of `src`.

    Parameters
    ----------
    spec : ChecksumSpec
    src : memoryview of uint8, host memory

    Raises
    ------
    FrameError
        Too short, or another checksum.
    """
    if len(src) < _NBYTES:
        raise FrameError(f"{len(src)} bytes, too short for a checksum")
    payload, stored = (src[_NBYTES:], src[:_NBYTES]) if spec.at_start else (src[:-_NBYTES], src[-_NBYTES:])
    expected = int.from_bytes(stored, "little")
    actual = _ALGORITHMS[spec.algorithm](payload, spec.seed)
    if expected != actual:
        raise FrameError(f"checksum {actual:#010x}, stored {expected:#010x}")
    return payload
