"""Chunks of a read on the device that the host decodes: unusual ones, damaged ones, and those that are compared."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.cuda.batches.pieces import Piece, row_of
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.decoders.faults import chunk_fault
from xarray_gpuzarr.decoders.host.codecs import ChunkCodec
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.stored.array_spec import ArraySpec

Column = npt.NDArray[np.int64]


class ByHost:
    """Decodes single chunks of an array on free threads; the host codec's word is final.

    Parameters
    ----------
    spec : ArraySpec
    """

    def __init__(self, spec: ArraySpec) -> None:
        self._codecs = spec.codecs
        self._chunk_nbytes = spec.chunk_nbytes
        self.n_decoded = 0
        """Chunks that were decoded because the device cannot be trusted with them, or could not."""

    @cached_property
    def _codec(self) -> ChunkCodec:
        """Made when a chunk needs it; most reads have none."""
        return ChunkCodec(self._codecs, self._chunk_nbytes)

    def decode(self, pieces: Sequence[Piece], rows: Column, encoded: Sequence[memoryview]) -> Sequence[memoryview]:
        """Decode chunks that are unusual or damaged.

        Parameters
        ----------
        pieces : sequence of Piece
        rows : int64 of shape (n,)
            Numbers of chunks, counted through all pieces.
        encoded : sequence of n memoryviews

        Raises
        ------
        CorruptChunkError
        """
        decoded = [memoryview(bytearray(self._chunk_nbytes)) for _ in encoded]
        self._each(pieces, rows, lambda number: self._decode(encoded[number], decoded[number]))
        self.n_decoded += len(decoded)
        return decoded

    def shadows(self, pieces: Sequence[Piece], rows: Column, encoded: Sequence[memoryview]) -> Shadows:
        """Decode chunks that the device decodes as well; parameters and errors as for `decode`."""
        crc = np.zeros(len(rows), np.uint32)

        def decode(number: int) -> None:
            decoded = memoryview(buffer("shadow", self._chunk_nbytes))
            self._decode(encoded[number], decoded)
            crc[number] = zlib.crc32(decoded)

        self._each(pieces, rows, decode)
        return Shadows(rows=rows, crc=crc)

    def _each(self, pieces: Sequence[Piece], rows: Column, decode: Callable[[int], None]) -> None:
        """Decode chunks by their places in `rows`."""
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

    def _decode(self, encoded: memoryview, decoded: memoryview) -> None:
        self._codec.into(encoded, decoded)
