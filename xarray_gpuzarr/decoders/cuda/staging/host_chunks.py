"""Decode chunks on the host while their segment is staged: those that the device is not given, and shadows."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence

from xarray_gpuzarr.decoders.cuda.batches.columns import Rows
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import RowRange, row_of
from xarray_gpuzarr.decoders.cuda.decoding.shadows import Shadows
from xarray_gpuzarr.decoders.host.chunk_codec import chunk_codec
from xarray_gpuzarr.frames.headers import FrameError
from xarray_gpuzarr.plan.faults import chunk_fault
from xarray_gpuzarr.process.crew import crew
from xarray_gpuzarr.process.host_memory import buffer
from xarray_gpuzarr.stored.array_spec import ArraySpec


def decode_chunks(
    spec: ArraySpec, row_ranges: Sequence[RowRange], numbers: Rows, encoded: Sequence[memoryview]
) -> list[memoryview]:
    """Return the decoded bytes of chunks; idle threads help.

    Parameters
    ----------
    spec : ArraySpec
        Array that is read.
    row_ranges : sequence of RowRange
        Row ranges that the chunks belong to.
    numbers : int array of shape (n,)
        Numbers of the chunks, counted through all row ranges.
    encoded : sequence of memoryview
        Encoded bytes of each of the chunks.

    Raises
    ------
    CorruptChunkError
        If a chunk cannot be decoded.
    """
    codec = chunk_codec(spec.codecs, spec.chunk_nbytes)
    decoded = [memoryview(bytearray(spec.chunk_nbytes)) for _ in encoded]
    _decode_all(row_ranges, numbers, lambda position: codec.decode_into(encoded[position], decoded[position]))
    return decoded


def decode_shadows(
    spec: ArraySpec, row_ranges: Sequence[RowRange], numbers: Rows, encoded: Sequence[memoryview]
) -> Shadows:
    """Decode chunks that the device decodes as well; return the checksums of the results. See `decode_chunks`."""
    codec = chunk_codec(spec.codecs, spec.chunk_nbytes)
    shadows = Shadows.from_columns(len(numbers), chunk=numbers)

    def decode(position: int) -> None:
        decoded = memoryview(buffer("shadow", spec.chunk_nbytes))
        codec.decode_into(encoded[position], decoded)
        shadows.crc[position] = zlib.crc32(decoded)

    _decode_all(row_ranges, numbers, decode)
    return shadows


def _decode_all(row_ranges: Sequence[RowRange], numbers: Rows, decode: Callable[[int], None]) -> None:
    """Call `decode` with every position in `numbers`; idle threads help.

    `numbers` are numbers of chunks, counted through all row ranges. If `decode` raises a `FrameError`, this raises a
    `CorruptChunkError` that names the chunk.
    """
    remaining = deque(range(len(numbers)))

    def decode_remaining(go_on: Callable[[], bool]) -> None:
        while go_on():
            try:
                position = remaining.popleft()
            except IndexError:
                return
            try:
                decode(position)
            except FrameError as err:
                remaining.clear()
                raise chunk_fault(*row_of(row_ranges, int(numbers[position])), err) from err

    crew.run(decode_remaining, len(numbers))
