"""Blosc blocks, streams and frames through the kernels, and what NumPy and C-Blosc make of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numcodecs
import numpy as np

from helpers.kernels import memory as memories
from helpers.kernels.memory import columns
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle

COPY, SHUFFLE, BITSHUFFLE = 0, 1, 2
OK, DAMAGED = 0, 12


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
    memory = memories.make()
    targets = [memory.reserve(len(b.content), b.offsets[1]) for b in blocks]
    sources = [memory.place(b.content, b.offsets[0]) for b in blocks]
    rest = [(len(b.content), b.typesize, b.filter) for b in blocks]
    table = memory.place(columns([(s, t, *r) for s, t, r in zip(sources, targets, rest, strict=True)], 5))
    most = max_nbytes or max((len(b.content) for b in blocks), default=0)
    memory.run(lambda api, stream: unshuffle(api, stream, table=table, n=len(blocks), max_nbytes=most))
    return [memory.content(t, len(b.content)).tobytes() for t, b in zip(targets, blocks, strict=True)]


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
    memory, n = memories.make(), len(rows)
    targets = [memory.reserve(r.nbytes, r.offsets[1]) for r in rows]
    places = [
        (memory.place(r.stream, r.offsets[0]), len(r.stream), t, r.nbytes) for r, t in zip(rows, targets, strict=True)
    ]
    table, actual, status = memory.place(columns(places, 4)), memory.reserve(8 * n), memory.reserve(4 * n)
    memory.run(lambda api, stream: blosclz(api, stream, table=table, n=n, actual=actual, status=status))
    found = memory.content(status, 4 * n).view(np.int32), memory.content(actual, 8 * n).view(np.uint64)
    contents = [memory.content(t, r.nbytes).tobytes() for r, t in zip(rows, targets, strict=True)]
    told = zip(*(column.tolist() for column in found), contents, strict=True)
    return [Decoded(status=s, actual=a, content=c) for s, a, c in told]


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
