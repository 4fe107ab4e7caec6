"""Blosc blocks, streams and frames through the kernels, and what NumPy and C-Blosc make of them."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numcodecs
import numpy as np
import numpy.typing as npt

from helpers.kernels.on_host import HostLaunches
from helpers.kernels.runs import aligned
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle

Bytes = npt.NDArray[np.uint8]

GUARD = 0 if os.environ.get("XARRAY_GPUZARR_SANITIZE") == "1" else 64
"""Bytes around a target that no kernel may touch; a sanitizer watches them better than we can."""
COPY, SHUFFLE, BITSHUFFLE = 0, 1, 2
OK, DAMAGED = 0, 12


def placed(content: bytes, offset: int = 0) -> Bytes:
    """Return `content` at an address that is `offset` modulo 256, with nothing allocated around it."""
    home = aligned(len(content), offset)
    home[:] = np.frombuffer(content, np.uint8)
    return home


class Target:
    """Memory for a result, at an address that is `offset` modulo 64."""

    def __init__(self, nbytes: int, offset: int = 0) -> None:
        self._memory = aligned(nbytes + 2 * GUARD, offset)
        self._memory[:] = 0xA5
        self.nbytes, self.address = nbytes, int(self._memory.ctypes.data) + GUARD

    def content(self) -> bytes:
        """Return the result, once it is seen that the guards are untouched."""
        behind = GUARD + self.nbytes
        assert (self._memory[:GUARD] == 0xA5).all()
        assert (self._memory[behind:] == 0xA5).all()
        return self._memory[GUARD:behind].tobytes()


# ---- unshuffling


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block to be unshuffled."""

    content: bytes
    typesize: int
    filter: int
    offsets: tuple[int, int] = (0, 0)
    """Where source and target begin, modulo 16."""

    def unshuffled(self) -> bytes:
        """Return what NumPy makes of it."""
        n = len(self.content) // self.typesize
        if self.filter == COPY:
            return self.content
        whole = np.frombuffer(self.content, np.uint8)[: n * self.typesize]
        if self.filter == SHUFFLE:
            elements = whole.reshape(self.typesize, n).T
        else:
            bits = np.unpackbits(whole, bitorder="little").reshape(self.typesize, 8, n)
            elements = np.packbits(bits.transpose(2, 0, 1), axis=-1, bitorder="little")
        return elements.tobytes() + self.content[n * self.typesize :]


def run_unshuffle(blocks: Sequence[Block], max_nbytes: int | None = None) -> list[bytes]:
    """Return what one launch makes of blocks; `max_nbytes` below their length lets threads do more than one tile."""
    sources = [placed(b.content, b.offsets[0]) for b in blocks]
    targets = [Target(len(b.content), b.offsets[1]) for b in blocks]
    rows = [
        (s.ctypes.data, t.address, t.nbytes, b.typesize, b.filter)
        for s, t, b in zip(sources, targets, blocks, strict=True)
    ]
    table = np.array(rows, np.uint64).reshape(-1, 5).T.copy()
    longest = max((t.nbytes for t in targets), default=0)
    unshuffle(HostLaunches(), None, table=table.ctypes.data, n=len(blocks), max_nbytes=max_nbytes or longest)
    return [t.content() for t in targets]


def as_c_blosc_has_it(content: bytes, typesize: int, wanted: int) -> int:
    """Return the filter that a block has in a frame with the filter `wanted`."""
    return COPY if wanted == BITSHUFFLE and len(content) // typesize % 8 else wanted


# ---- streams of blosclz


@dataclass(frozen=True, kw_only=True)
class Coded:
    """A stream to be decompressed."""

    stream: bytes
    nbytes: int
    """Length that the result should have."""
    offsets: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """What the kernel says of a stream."""

    status: int
    actual: int
    content: bytes
    """The target, however much of it was written."""


def run_blosclz(rows: Sequence[Coded]) -> list[Decoded]:
    """Return what one launch makes of streams."""
    sources = [placed(r.stream, r.offsets[0]) for r in rows]
    targets = [Target(r.nbytes, r.offsets[1]) for r in rows]
    columns = [(s.ctypes.data, len(s), t.address, t.nbytes) for s, t in zip(sources, targets, strict=True)]
    table = np.array(columns, np.uint64).reshape(-1, 4).T.copy()
    actual, status = np.full(len(rows), 7, np.uint64), np.full(len(rows), 7, np.int32)
    results = {"actual": actual.ctypes.data, "status": status.ctypes.data}
    blosclz(HostLaunches(), None, table=table.ctypes.data, n=len(rows), **results)
    contents = [t.content() for t in targets]
    found = zip(status.tolist(), actual.tolist(), contents, strict=True)
    return [Decoded(status=s, actual=a, content=c) for s, a, c in found]


def c_blosc(row: Coded) -> bytes | None:
    """Return what C-Blosc makes of a stream as the only one of a frame; None if it is damaged."""
    assert row.stream
    assert len(row.stream) != row.nbytes, "it would be copied"
    header = struct.pack("<4B5I", 2, 1, 0x10, 1, row.nbytes, row.nbytes, 24 + len(row.stream), 20, len(row.stream))
    try:
        return bytes(numcodecs.Blosc().decode(header + row.stream))
    except RuntimeError:
        return None


# ---- frames


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What the header of a frame and those of its streams say."""

    typesize: int
    filter: int
    nbytes: int
    blocksize: int
    streams: list[tuple[int, Coded]]
    """Where each goes in the decompressed frame; the last may be stored as it is."""


def walk(frame: bytes) -> Frame:
    """Return what there is in a frame of blosclz."""
    flags, typesize, nbytes, blocksize = struct.unpack_from("<2B2I", frame, 2)
    assert flags & 0xE2 == 0, "neither another codec nor a plain copy"
    streams = []
    for i, start in enumerate(range(0, nbytes, blocksize)):
        length = min(blocksize, nbytes - start)
        is_split = not flags & 0x10 and typesize <= 16 and blocksize // typesize >= 128 and length == blocksize
        n_splits = typesize if is_split else 1
        (at,) = struct.unpack_from("<I", frame, 16 + 4 * i)
        for split in range(n_splits):
            (csize,) = struct.unpack_from("<I", frame, at)
            coded = Coded(stream=frame[at + 4 : at + 4 + csize], nbytes=length // n_splits, offsets=(at + 4 & 15, 0))
            streams.append((start + split * (length // n_splits), coded))
            at += 4 + csize
    chosen = SHUFFLE if flags & 1 else BITSHUFFLE if flags & 4 else COPY
    return Frame(typesize=typesize, filter=chosen, nbytes=nbytes, blocksize=blocksize, streams=streams)


def decompressed(frame: bytes) -> bytes:
    """Return what the kernels make of a frame."""
    header = walk(frame)
    scratch = bytearray(header.nbytes)
    coded = [(at, c) for at, c in header.streams if len(c.stream) != c.nbytes]
    assert coded
    for (at, c), found in zip(coded, run_blosclz([c for _, c in coded]), strict=True):
        assert found.status == OK
        scratch[at : at + c.nbytes] = found.content
    for at, c in header.streams:
        if len(c.stream) == c.nbytes:
            scratch[at : at + c.nbytes] = c.stream
    blocks = []
    for start in range(0, header.nbytes, header.blocksize):
        content = bytes(scratch[start : start + header.blocksize])
        chosen = as_c_blosc_has_it(content, header.typesize, header.filter)
        blocks.append(Block(content=content, typesize=header.typesize, filter=chosen, offsets=(start & 15, start & 15)))
    return b"".join(run_unshuffle(blocks))
