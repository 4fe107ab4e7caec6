"""The addresses and tables of one batch: where each chunk lies before and after every step of decoding it.

A chunk passes up to four places: where it was staged (or was moved to for alignment), where it is decompressed, where
it is unshuffled, and where it is decoded, which is the result or scratch memory. A chunk that skips a step has the same
address before and after it. `allocate_scratch` cuts one allocation into the places that are needed; `fill_table` puts
the addresses of all steps into one table, which one copy brings to the device.
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.launch import SPARE_FRAME
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.batches.columns import NO_ROWS
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import aligned
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import BatchPlan, Staged, replace_rows
from xarray_gpuzarr.decoders.cuda.decoding.placing import Addresses, BatchTable, LaunchColumns, Placing
from xarray_gpuzarr.decoders.cuda.decoding.receipt import receipt_nbytes
from xarray_gpuzarr.process.records import Column, record


@record
class Scratch:
    """One allocation, cut into the scratch memory of a batch.

    Columns are addresses, one for each stream or chunk that the column of `BatchPlan` with the same name lists.
    """

    memory: DeviceMemory
    realigned_streams: Addresses
    """Where these streams are copied to, to be aligned."""
    realigned_chunks: Addresses
    """Where these chunks are copied to, to be aligned."""
    scratch_chunks: Addresses
    """Where these chunks are decoded, if it is not in the result."""
    shuffled_chunks: Addresses
    """Where these chunks are decompressed, before they are unshuffled."""
    elements: list[Addresses]
    """For each codec of elements, where its encoded chunks are, those of `BatchPlan.element_chunks`. If the first codec
    reads chunks where they were staged, its column takes no memory, and is not used."""
    temp: Address
    """Scratch memory of nvCOMP, which the formats use one after another."""


@record
class TableOffsets:
    """Offsets in bytes of the columns in the table of a batch."""

    moves: int
    """Three columns for `cuda.launch.move`."""
    moved_nbytes: Column
    """Not an offset: lengths of the moves in bytes, in ascending order."""
    groups: list[int]
    """For each group, four columns: addresses and lengths of the streams, addresses and lengths of their results."""
    shuffled_blocks: int
    """Five columns for `cuda.blosc.unshuffle`."""
    elements: list[tuple[int, int]]
    """For each codec of elements, the offset of two columns, addresses of encoded and of decoded chunks, and the offset
    of the words of its filter."""
    receipt: int
    """Zeros that become the `Receipt`."""
    shadows: int
    """Two columns: addresses and lengths of the decoded chunks whose CRC-32 is computed."""
    spare: int
    """A sound zstd frame, decoded in place of those that are refused."""
    placed: LaunchColumns
    missing: LaunchColumns


def allocate_scratch(workspace: Workspace, chain: Chain, plan: BatchPlan, staged: Staged, stream: Stream) -> Scratch:
    """Borrow the scratch memory of a batch for use on `stream`, and cut it up.

    Each part begins at a multiple of 16 bytes.
    """
    lengths = [
        plan.streams.source_nbytes[plan.realigned_streams],
        staged.nbytes[plan.realigned_chunks],
        np.full(len(plan.scratch_chunks), chain.chunk_nbytes),
        np.full(len(plan.shuffled_chunks), chain.inner_nbytes),
        *[np.full(len(plan.element_chunks), nbytes) for nbytes in chain.step_nbytes],
    ]
    rounded = -(-np.concatenate(lengths) // 16) * 16
    ends = rounded.cumsum()
    nbytes = int(rounded.sum())
    temp_nbytes = max([group.temp_nbytes for group in plan.groups], default=0)
    memory = workspace.scratch.borrow(nbytes + aligned(temp_nbytes), stream)
    addresses = (ends - rounded + memory.address).view(np.uint64)
    bounds = accumulate([len(column) for column in lengths])
    columns = [addresses[bound - len(column) : bound] for column, bound in zip(lengths, bounds, strict=True)]
    realigned_streams, realigned_chunks, scratch_chunks, shuffled_chunks, *elements = columns
    return Scratch(
        memory=memory,
        realigned_streams=realigned_streams,
        realigned_chunks=realigned_chunks,
        scratch_chunks=scratch_chunks,
        shuffled_chunks=shuffled_chunks,
        elements=elements,
        temp=Address(memory.address + nbytes),
    )


def fill_table(
    chain: Chain, placing: Placing, staged: Staged, plan: BatchPlan, scratch: Scratch, piece_numbers: Column
) -> tuple[BatchTable, TableOffsets]:
    """Return the table of a batch, with the columns of all steps, and their offsets.

    `piece_numbers`, as in `ReadPlan`, are those of the staged chunks, followed by those of missing chunks.
    """
    table = BatchTable()
    n_staged = len(staged.address)
    block_chunks = staged.shuffled_blocks.chunk
    # Where each chunk is at first: where it was staged, or moved to for alignment.
    start = replace_rows(staged.address, plan.realigned_chunks, scratch.realigned_chunks)
    # Where each chunk is once decoded: in the result, in scratch memory, or if no step is needed, where it is at first.
    decoded = np.where(plan.is_direct, plan.result_address, start)
    decoded = replace_rows(decoded, plan.scratch_chunks, scratch.scratch_chunks)
    # The places between, the last one first. Chunks without codecs of elements are decoded once they are unshuffled.
    unshuffled = decoded
    if len(plan.element_chunks):
        before_elements = start[plan.element_chunks] if chain.reads_staged else scratch.elements[0]
        unshuffled = replace_rows(decoded, plan.element_chunks, before_elements)
    # Chunks that are not shuffled are decompressed to where unshuffling would write. Shuffled chunks are unshuffled
    # from where they are at first, or if they are compressed, from the scratch memory that they are decompressed to.
    decompressed = replace_rows(unshuffled, block_chunks, start[block_chunks])
    decompressed = replace_rows(decompressed, plan.shuffled_chunks, scratch.shuffled_chunks)
    stream_targets = plan.streams.per_row(decompressed) + plan.streams.target.view(np.uint64)
    moves, moved_nbytes = _add_moves(table, staged, plan, scratch, stream_targets)
    shadow_chunks = staged.shadows.chunk
    # Unsharded chunks of which the store had no object, and chunks that the plan says are missing.
    missing = np.concatenate([piece_numbers[:n_staged][staged.address == 0], piece_numbers[n_staged:]])
    shuffled_blocks = _add_shuffled_blocks(table, staged, decompressed, unshuffled)
    elements = _add_elements(table, chain, plan, scratch, unshuffled, decoded)
    offsets = TableOffsets(
        moves=moves,
        moved_nbytes=moved_nbytes,
        groups=_add_groups(table, plan, scratch, stream_targets),
        shuffled_blocks=shuffled_blocks,
        elements=elements,
        receipt=table.add(np.zeros(receipt_nbytes(plan, staged.shadows) // 8, np.uint64)),
        shadows=table.add(decoded[shadow_chunks], np.full(len(shadow_chunks), chain.chunk_nbytes)),
        spare=table.add(SPARE_FRAME),
        placed=placing.add_columns(table, piece_numbers[plan.placed_chunks], decoded[plan.placed_chunks]),
        missing=placing.add_columns(table, missing),
    )
    return table, offsets


def _add_moves(
    table: BatchTable, staged: Staged, plan: BatchPlan, scratch: Scratch, stream_targets: Addresses
) -> tuple[int, Column]:
    """Add the columns of `move`; return their offset, and the lengths of the moves in ascending order."""
    if not (len(plan.realigned_streams) or len(plan.realigned_chunks) or len(plan.raw_streams)):
        return 0, NO_ROWS
    source_nbytes = plan.streams.source_nbytes
    sources = np.concatenate(
        [
            plan.stream_address[plan.realigned_streams],
            staged.address[plan.realigned_chunks],
            plan.stream_address[plan.raw_streams],
        ]
    )
    targets = np.concatenate([scratch.realigned_streams, scratch.realigned_chunks, stream_targets[plan.raw_streams]])
    nbytes = np.concatenate(
        [
            source_nbytes[plan.realigned_streams],
            staged.nbytes[plan.realigned_chunks],
            source_nbytes[plan.raw_streams],
        ]
    )
    order = np.argsort(nbytes, kind="stable")
    return table.add(sources[order], targets[order], nbytes[order]), nbytes[order]


def _add_groups(table: BatchTable, plan: BatchPlan, scratch: Scratch, stream_targets: Addresses) -> list[int]:
    """Add the columns of each group of streams; return the offset of each group."""
    sources = replace_rows(plan.stream_address, plan.realigned_streams, scratch.realigned_streams)
    columns = (sources, plan.streams.source_nbytes, stream_targets, plan.streams.target_nbytes)
    return [table.add(*[column[group.first : group.first + group.n] for column in columns]) for group in plan.groups]


def _add_shuffled_blocks(table: BatchTable, staged: Staged, decompressed: Addresses, unshuffled: Addresses) -> int:
    """Add the columns of `unshuffle`; return their offset."""
    blocks = staged.shuffled_blocks
    if not len(blocks):
        return 0
    start = blocks.start.view(np.uint64)
    sources = decompressed[blocks.chunk] + start
    targets = unshuffled[blocks.chunk] + start
    return table.add(sources, targets, blocks.nbytes, blocks.typesize, blocks.shuffle)


def _add_elements(
    table: BatchTable, chain: Chain, plan: BatchPlan, scratch: Scratch, unshuffled: Addresses, decoded: Addresses
) -> list[tuple[int, int]]:
    """Add the columns and words of each codec of elements; return their offsets.

    Each codec reads what the one before has written.
    """
    if not len(plan.element_chunks):
        return []
    places = [unshuffled[plan.element_chunks], *scratch.elements[1:], decoded[plan.element_chunks]]
    offsets = []
    for number, stage in enumerate(chain.elements):
        columns = table.add(places[number], places[number + 1])
        offsets.append((columns, table.add(stage.filter.words)))
    return offsets
