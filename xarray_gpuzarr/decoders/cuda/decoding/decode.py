"""Decode a staged batch into elements of the result, all enqueued on one stream: align, decompress, place, fill.

One allocation holds the scratch memory of the whole batch, and one upload brings all its tables (see `tables`). The
host's cost is therefore that of a few NumPy calls on columns, however many chunks there are.
"""

from __future__ import annotations

from xarray_gpuzarr.cuda import nvcomp
from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import DeviceMemory, Stream
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle
from xarray_gpuzarr.cuda.checksum import checksum
from xarray_gpuzarr.cuda.filters import FilterChunks
from xarray_gpuzarr.cuda.launch import check_zstd, move, rows_by_length
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.chain import Chain
from xarray_gpuzarr.decoders.cuda.decoding.batch_plan import BatchPlan, Staged, plan_batch
from xarray_gpuzarr.decoders.cuda.decoding.placing import Placing
from xarray_gpuzarr.decoders.cuda.decoding.receipt import Receipt, streams_nbytes
from xarray_gpuzarr.decoders.cuda.decoding.tables import Scratch, TableOffsets, allocate_scratch, fill_table
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.records import Column


class BatchDecoder:
    """Decodes the batches of one read."""

    def __init__(self, workspace: Workspace, placing: Placing, chain: Chain) -> None:
        self._workspace = workspace
        self._api = workspace.api
        self._placing = placing
        self._chain = chain

    def decode(
        self, staged: Staged, piece_numbers: Column, stream: Stream
    ) -> tuple[Receipt | None, list[DeviceMemory]]:
        """Enqueue everything that turns staged chunks into elements of the result, and the filling of missing chunks.

        Parameters
        ----------
        staged : Staged
            Chunks of the batch.
        piece_numbers : int64, shape (n_staged + n_missing, k)
            Those of the staged chunks and then of missing ones, as in `ReadPlan.piece_numbers`.
        stream : Stream
            Runs the batch. It waits for the workspace's `copy` stream, which uploads the table. If this stream uploaded
            it instead, the upload might have to wait for those of the next segments.

        Returns
        -------
        receipt : Receipt or None
            Can be read once `stream` has done what this call has enqueued. None if there is nothing to report.
        memories : list of DeviceMemory
            Memory that is in use until then, besides that of `staged`.
        """
        chain = self._chain
        api = self._api
        staged_numbers = piece_numbers[: len(staged.address)]
        has_element_codecs = bool(chain.elements)
        plan = plan_batch(staged, staged_numbers, self._placing, api.nvcomp, has_element_codecs=has_element_codecs)
        scratch = allocate_scratch(self._workspace, chain, plan, staged, stream)
        batch_table, offsets = fill_table(chain, self._placing, staged, plan, scratch, piece_numbers)
        memory = batch_table.upload(self._workspace)
        self._workspace.order(self._workspace.copy, [stream])
        table = memory.address
        receipt_address = Address(table + offsets.receipt)
        if len(offsets.moved_nbytes):
            self._move(table, offsets, stream)
        with api.range("read::decode"), counters.stage("decode"):
            self._decompress(plan, scratch, table, offsets, stream)
            self._decode_elements(staged, plan, table, offsets, stream)
        with api.range("read::place"), counters.stage("place"):
            self._placing.launch(table, offsets.placed, stream)
            self._placing.launch(table, offsets.missing, stream)
        receipt = Receipt.download(self._workspace, plan, staged.shadows, receipt_address, stream)
        return receipt, [memory, scratch.memory]

    def _move(self, table: Address, offsets: TableOffsets, stream: Stream) -> None:
        """Enqueue the copies within device memory, those of similar length in one launch."""
        nbytes = offsets.moved_nbytes
        moves = Address(table + offsets.moves)
        for rows in rows_by_length(nbytes):
            longest = int(nbytes[rows.stop - 1])
            move(self._api, stream, table=moves, n=len(nbytes), max_nbytes=longest, rows=rows)

    def _decompress(
        self, plan: BatchPlan, scratch: Scratch, table: Address, offsets: TableOffsets, stream: Stream
    ) -> None:
        """Enqueue the decompression of all streams, format by format, and the checksums that are stored with them."""
        api = self._api
        receipt = table + offsets.receipt
        for group, columns in zip(plan.groups, offsets.groups, strict=True):
            n = group.n
            fmt = group.nvcomp_format
            sources, source_nbytes, outputs, capacity = [Address(table + columns + 8 * n * i) for i in range(4)]
            # These four columns lie one after another. So `sources` is also the address of the table of all four, and
            # `outputs` that of the table of the last two.
            # The group's rows in the three columns of streams of the receipt: decoded length, sum, status.
            actual = Address(receipt + 8 * group.first)
            sums = Address(actual + 8 * plan.n_compressed)
            statuses = Address(receipt + 16 * plan.n_compressed + 4 * group.first)
            if fmt is None:
                blosclz(api, stream, table=sources, n=n, actual=actual, status=statuses)
                continue
            if fmt == "zstd":
                # zstd has no checksum on the device, so its column of sums says which frames were refused. The spare
                # frame is decoded in their place.
                check_zstd(api, stream, table=sources, n=n, spare=Address(table + offsets.spare), refused=sums)
            batch = nvcomp.Batch(
                sources=sources,
                source_nbytes=source_nbytes,
                capacity=capacity,
                actual=actual,
                outputs=outputs,
                statuses=statuses,
            )
            api.nvcomp.decompress(
                fmt, batch, n_chunks=n, temp=scratch.temp, temp_nbytes=group.temp_nbytes, stream=stream.handle
            )
            kind = group.stream_format.checksum
            if kind is not None:
                checksum(api, stream, kind, table=outputs, n=n, max_nbytes=group.max_nbytes, result=sums)

    def _decode_elements(
        self, staged: Staged, plan: BatchPlan, table: Address, offsets: TableOffsets, stream: Stream
    ) -> None:
        """Enqueue what follows decompression: unshuffling, codecs of elements, CRC-32s of shadowed chunks."""
        chain = self._chain
        api = self._api
        flags = Address(table + offsets.receipt + streams_nbytes(plan.n_compressed))
        if len(staged.shuffled_blocks):
            longest = int(staged.shuffled_blocks.nbytes.max())
            blocks = Address(table + offsets.shuffled_blocks)
            unshuffle(api, stream, table=blocks, n=len(staged.shuffled_blocks), max_nbytes=longest)
        # If the host has decoded all chunks of the batch, `offsets.elements` is empty, and nothing is launched.
        for stage, (columns, words) in zip(chain.elements, offsets.elements, strict=False):
            chunks = FilterChunks(
                table=Address(table + columns),
                n=len(plan.element_chunks),
                n_elements=stage.n_elements,
                flags=flags,
                words=Address(table + words),
            )
            stage.filter.launch(api, stream, chunks)
        n_shadows = len(staged.shadows)
        if n_shadows:
            decoded = Address(table + offsets.shadows)
            crcs = Address(flags + 8 * len(plan.element_chunks))
            nbytes = chain.chunk_nbytes
            checksum(api, stream, "crc32", table=decoded, n=n_shadows, max_nbytes=nbytes, result=crcs)
