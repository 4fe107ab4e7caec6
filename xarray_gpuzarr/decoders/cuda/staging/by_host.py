"""Chunks of a read on the device that the host decodes: unusual ones, damaged ones, and those that are compared."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence

from xarray_gpuzarr.decoders.cuda.batches.pieces import Piece, row_of
from xarray_gpuzarr.decoders.cuda.batches.streams import Rows
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.decoders.faults import chunk_fault
from xarray_gpuzarr.decoders.host.codecs import ChunkCodec
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.stored.array_spec import ArraySpec


def decode_by_host(
    spec: ArraySpec, pieces: Sequence[Piece], rows: Rows, encoded: Sequence[memoryview]
) -> list[memoryview]:
    """Decode chunks that are unusual or damaged; the host codec's word is final.

    Parameters
    ----------
    spec : ArraySpec
    pieces : sequence of Piece
    rows : int64 of shape (n,)
        Numbers of chunks, counted through all pieces.
    encoded : sequence of n memoryviews

    Raises
    ------
    CorruptChunkError
    """
    codec = ChunkCodec(spec.codecs, spec.chunk_nbytes)
    decoded = [memoryview(bytearray(spec.chunk_nbytes)) for _ in encoded]
    _each(pieces, rows, lambda number: codec.into(encoded[number], decoded[number]))
    return decoded


def shadows_by_host(spec: ArraySpec, pieces: Sequence[Piece], rows: Rows, encoded: Sequence[memoryview]) -> Shadows:
    """Decode chunks that the device decodes as well; parameters and errors as for `decode_by_host`."""
    codec = ChunkCodec(spec.codecs, spec.chunk_nbytes)
    shadows = Shadows.of(len(rows), chunk=rows)

    def decode(number: int) -> None:
        decoded = memoryview(buffer("shadow", spec.chunk_nbytes))
        codec.into(encoded[number], decoded)
        shadows.crc[number] = zlib.crc32(decoded)

    _each(pieces, rows, decode)
    return shadows


def _each(pieces: Sequence[Piece], rows: Rows, decode: Callable[[int], None]) -> None:
    """Decode chunks by their places in `rows`, on free threads."""
    todo = deque(range(len(rows)))

    def drain(go_on: Callable[[], bool]) -> None:
        while go_on():
            try:
                number = todo.popleft()
            except IndexError:
                return
            try:
                decode(number)
            except FrameError as err:
                todo.clear()
                raise chunk_fault(*row_of(pieces, int(rows[number])), err) from err

    crew.run(drain, len(rows))
