"""Blosc blocks, streams and frames through the kernels, and what NumPy and C-Blosc make of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
import zstandard

from helpers.data import blosc_frames as by_hand
from helpers.kernels import memory as memories
from helpers.kernels.memory import Bytes, columns
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle
from xarray_gpuzarr.frames.blosc import BLOSCLZ, BloscStreams, walk_blosc

COPY, SHUFFLE, BITSHUFFLE = 0, 1, 2
OK, DAMAGED = 0, 12


# ---- unshuffling


@dataclass(frozen=True, kw_only=True)
class Block:
    content: bytes
    typesize: int
    filter: int
    offsets: tuple[int, int] = (0, 0)
    """Where source and target begin, modulo 16."""

    def unshuffled(self) -> bytes:
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
    stream: bytes
    nbytes: int
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


def found_in(frame: bytes) -> BloscStreams:
    """Return where the streams and blocks of a frame are."""
    nbytes = int.from_bytes(frame[4:8], "little")
    found = walk_blosc(np.frombuffer(frame, np.uint8), np.array([0]), np.array([len(frame)]), nbytes)
    assert found.ready.all()
    return found


def coded_streams(frame: bytes) -> list[Coded]:
    """Return the streams of a frame, those that are stored as they are among them."""
    columns_of = ("source", "source_nbytes", "target_nbytes")
    return [
        Coded(stream=frame[at : at + length], nbytes=nbytes, offsets=(at & 15, 0))
        for at, length, nbytes in by_hand.rows(found_in(frame), *columns_of)
    ]


def decoded_chunks(data: Bytes, found: BloscStreams, chunk_nbytes: int) -> list[bytes | None]:
    """Return what the kernels, and the host for nvCOMP, make of each frame; None if a stream does not decode."""
    chunks = np.zeros((len(found.ready), chunk_nbytes), np.uint8)
    sound = found.ready.copy()
    streams = [data[s : s + n].tobytes() for s, n in by_hand.rows(found, "source", "source_nbytes")]
    of_kernel = np.flatnonzero(found.codec == BLOSCLZ).tolist()
    coded = [Coded(stream=streams[at], nbytes=int(found.target_nbytes[at]), offsets=(at % 16, 0)) for at in of_kernel]
    by_kernel = dict(zip(of_kernel, run_blosclz(coded), strict=True))
    for at, (chunk, target, nbytes, codec) in enumerate(
        by_hand.rows(found, "chunk", "target", "target_nbytes", "codec")
    ):
        if at in by_kernel:
            result = by_kernel[at].content if by_kernel[at].status == OK else None
        else:
            result = attempt(by_hand.DECODE[codec], streams[at], nbytes)
        if result is None or len(result) != nbytes:
            sound[chunk] = False
        else:
            chunks[chunk, target : target + nbytes] = np.frombuffer(result, np.uint8)
    blocks = list(by_hand.rows(found, *by_hand.BLOCK_COLUMNS))
    contents = [chunks[chunk, first : first + nbytes].tobytes() for chunk, first, nbytes, _, _ in blocks]
    wanted = [Block(content=c, typesize=b[3], filter=b[4]) for c, b in zip(contents, blocks, strict=True)]
    for (chunk, first, nbytes, _, _), content in zip(blocks, run_unshuffle(wanted), strict=True):
        chunks[chunk, first : first + nbytes] = np.frombuffer(content, np.uint8)
    return [chunk.tobytes() if is_sound else None for chunk, is_sound in zip(chunks, sound.tolist(), strict=True)]


def attempt(decode: Callable[..., bytes], *arguments: Any) -> bytes | None:
    """Return the bytes, or None if there are none."""
    try:
        return bytes(decode(*arguments))
    except (ValueError, RuntimeError, MemoryError, zstandard.ZstdError, zlib.error):
        return None


def decompressed(frame: bytes) -> bytes | None:
    found = found_in(frame)
    return decoded_chunks(np.frombuffer(frame, np.uint8), found, int.from_bytes(frame[4:8], "little"))[0]
