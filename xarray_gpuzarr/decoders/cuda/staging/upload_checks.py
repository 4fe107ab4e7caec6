"""Check which chunks of an upload the device may decode, while they are in host memory."""

from __future__ import annotations

import numpy as np

from xarray_gpuzarr.decoders.cuda.batches.columns import Rows, join
from xarray_gpuzarr.decoders.cuda.batches.streams import ShuffledBlocks, Streams, find_streams, whole_chunk_blocks
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import Flags
from xarray_gpuzarr.decoders.cuda.staging.upload import Upload
from xarray_gpuzarr.decoders.host.chunk_codec import strip_checksum
from xarray_gpuzarr.frames.headers import FrameError


def check_checksums(
    chain: Chain, upload: Upload, present: Flags, start: Rows, nbytes: Rows
) -> tuple[Flags, Rows, Rows]:
    """Check the checksums that are stored with the chunks of an upload.

    Parameters
    ----------
    chain : Chain
        Codecs that the device undoes, with the checksums.
    upload : Upload
        Bytes on their way to the device.
    present : bool array of shape (n,)
        Whether each chunk exists.
    start, nbytes : int arrays of shape (n,)
        Position in the upload, and length, of each chunk.

    Returns
    -------
    tuple of three arrays of shape (n,)
        Whether each chunk has the right checksums, and its position and length without them.
    """
    ready, start, nbytes = present.copy(), start.copy(), nbytes.copy()
    for row in ready.nonzero()[0].tolist():
        payload = upload.view(int(start[row]), int(nbytes[row]))
        skipped_nbytes = 0
        try:
            for checksum in chain.checksums:
                before_nbytes = len(payload)
                payload = strip_checksum(checksum, payload)
                if checksum.at_start:
                    skipped_nbytes += before_nbytes - len(payload)
        except FrameError:
            ready[row] = False
        else:
            start[row] += skipped_nbytes
            nbytes[row] = len(payload)
    return ready, start, nbytes


def check_headers(
    chain: Chain, upload: Upload, ready: Flags, start: Rows, nbytes: Rows
) -> tuple[Flags, Streams, ShuffledBlocks]:
    """Read the headers of the chunks of an upload; find out which chunks the device may decode.

    Parameters
    ----------
    chain, upload, start, nbytes
        As for `check_checksums`; `start` and `nbytes` are those of chunks without checksums.
    ready : bool array of shape (n,)
        Whether each chunk exists and has the right checksums.

    Returns
    -------
    Flags
        Whether the device may decode each chunk.
    Streams, ShuffledBlocks
        Streams and shuffled blocks of those chunks.
    """
    inner_nbytes = chain.inner_nbytes
    arrays = list(upload.arrays())
    if chain.compressor is None:
        ready = ready & (nbytes == inner_nbytes)
        streams = Streams.empty()
        shuffled_blocks = ShuffledBlocks.empty()
    elif len(arrays) == 1 and ready.all():  # the usual case: all chunks are in the slot
        ready, streams, shuffled_blocks = find_streams(chain.compressor, arrays[0][0], start, nbytes, inner_nbytes)
    else:
        # Chunks are in several arrays, or some are missing or damaged.
        is_sound = np.zeros(len(start), np.bool_)
        stream_parts: list[Streams] = []
        block_parts: list[ShuffledBlocks] = []
        for data, first in arrays:
            rows = np.flatnonzero(ready & (start >= first) & (start < first + len(data)))
            is_sound[rows], streams, shuffled_blocks = find_streams(
                chain.compressor, data, start[rows] - first, nbytes[rows], inner_nbytes
            )
            stream_parts.append(streams.renumbered(rows))
            block_parts.append(shuffled_blocks.renumbered(rows))
        keep_numbers = [0] * len(arrays)  # the parts have been renumbered already
        ready = is_sound
        streams = join(stream_parts, keep_numbers)
        shuffled_blocks = join(block_parts, keep_numbers)
    if chain.shuffle is not None:
        shuffled_blocks = whole_chunk_blocks(ready.nonzero()[0], inner_nbytes, chain.shuffle)
    return ready, streams, shuffled_blocks
