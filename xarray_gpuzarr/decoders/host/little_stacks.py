"""Little reads of stacked crops: the chunks of all their shards are one table of the compiled loops.

Crops touch a few chunks each of many shards. To plan a shard, and to call the loops for it, takes Python 0.2 ms, as
long as these take for ten chunks of 64 kB. So what is wanted of all shards is looked up in one go, and the loops open
the files. As in `little`, all of a read is done or nothing, and whatever is wrong is left to planned reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from xarray_gpuzarr.decoders.host.job import Job, rows_a_call
from xarray_gpuzarr.decoders.host.little import LittleReads, common_of
from xarray_gpuzarr.decoders.host.local_files import Files, joined_paths
from xarray_gpuzarr.decoders.host.native_rows import Boxes, NativeRows, address
from xarray_gpuzarr.decoders.host.scratch import buffer
from xarray_gpuzarr.errors import GpuZarrError
from xarray_gpuzarr.fetch import LocalSource, ObjectChangedError, ObjectSource
from xarray_gpuzarr.fetch.snapshot import Snapshot
from xarray_gpuzarr.native import Loops
from xarray_gpuzarr.plan.read_plan import by_shard, entries
from xarray_gpuzarr.plan.selection import Column
from xarray_gpuzarr.plan.stack import StackTarget
from xarray_gpuzarr.process.records import record
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.shard_index import MISSING, ShardIndex

_MOST_INDEX_NBYTES = 16 * 1024 * 1024
"""Of indexes that are held at once."""
_MOST_ASKED = 16
"""Indexes that are not in the cache: nobody can stop who asks for them here."""


@record
class _Shard:
    """A shard, and what is wanted of it."""

    key: str
    index: ShardIndex | None
    """None if there is no such shard."""
    group: Column
    """Groups of boxes whose chunks it holds."""


class LittleStack:
    """Crops of local shards.

    Parameters
    ----------
    common : LittleReads
    snapshot : Snapshot
    spec : ArraySpec
    target : StackTarget
    cast : Cast
    """

    def __init__(
        self, common: LittleReads, snapshot: Snapshot, spec: ArraySpec, target: StackTarget, cast: Cast
    ) -> None:
        self.common = common
        self.objects: list[_Shard] = []
        """Found when they are read."""
        self.nbytes = target.n_chunks * common.chunk_nbytes
        """Of the chunks that it touches, decoded."""
        self._snapshot, self._spec, self._target, self._cast = snapshot, spec, target, cast

    @property
    def seconds(self) -> float:
        """About how long one thread decodes it."""
        return self.nbytes / self.common.rate

    def carry_out(self, _loops: Loops, out: npt.NDArray[Any], n_threads: int) -> int | None:
        """Read, decode and place it; see `LittleRead.carry_out`."""
        paths = self._find()
        if paths is None:
            return None
        job = Job(self._spec, self._target, self._cast, out=out, rule=self._snapshot.rule)
        n_read = self._read(job, paths, n_threads)
        if n_read is None or not self._is_unchanged():
            self.common.pause()
            return None
        return n_read

    def _find(self) -> tuple[bytes, Column] | None:
        """Find the shards; return their paths and where each begins, None if planning finds the shards better."""
        assert self._spec.index is not None
        n_asked, shards = 0, list(by_shard(self._spec, self._target.groups.chunk))
        if len(shards) * self._spec.index.nbytes > _MOST_INDEX_NBYTES:
            return None
        try:
            for key, group in shards:
                found = self._snapshot.start_index(key, len(group))()
                self.objects.append(_Shard(key=key, index=found.index, group=group))
                n_asked += not found.from_cache
                if n_asked > _MOST_ASKED:
                    return None
        except GpuZarrError:
            return None
        return joined_paths([self._snapshot.local_path(shard.key) for shard in self.objects])

    def _read(self, job: Job, paths: tuple[bytes, Column], n_threads: int) -> int | None:
        common, chunks, files = self.common, *self._table(job, *paths)
        n, step, n_read = len(chunks), rows_a_call(common.rate, common.chunk_nbytes), 0
        scratch = buffer("scratch", common.scratch_nbytes * n_threads)
        for at in range(0, n, step):
            rows = range(at, min(at + step, n))
            found = chunks.read(rows, files, lambda nbytes: buffer("staging", nbytes), address(scratch), n_threads)
            if found.left:
                return None
            n_read += found.n_read
        return n_read

    def _table(self, job: Job, paths: bytes, path_at: Column) -> tuple[NativeRows, Files]:
        """Return the chunks that are stored, file by file in the order of their bytes; the others are filled."""
        group = np.concatenate([shard.group for shard in self.objects])
        entry = entries(self._spec, self._target.groups.chunk.take(group, axis=0))
        n_groups = np.array([len(shard.group) for shard in self.objects])
        offset, nbytes = np.zeros(len(group), np.int64), np.full(len(group), MISSING)
        ends = n_groups.cumsum()
        for shard, first, end in zip(self.objects, ends - n_groups, ends, strict=True):
            if shard.index is not None:
                offset[first:end] = shard.index.offset.take(entry[first:end])
                nbytes[first:end] = shard.index.nbytes.take(entry[first:end])
        path_at = path_at.repeat(n_groups)
        for numbers in self._target.boxes(group[nbytes == MISSING][:, None]).tolist():
            job.fill(numbers)
        order = np.lexsort((offset, path_at))
        order = order[nbytes.take(order) != MISSING]
        row = group.take(order)[:, None]
        first_box = np.concatenate([[0], self._target.n_boxes(row).cumsum()])
        direct = job.alone.direct.take(row[:, 0])
        assert job.native is not None
        files = Files(
            paths=paths,
            path_at=path_at.take(order),
            first_row=0,
            offset=offset.take(order),
            room_nbytes=self.common.room_nbytes,
            max_gap_nbytes=job.rule.max_gap_nbytes,
        )
        boxes = Boxes(numbers=self._target.boxes(row), first=first_box, direct=direct.tolist())
        return NativeRows(job.native, boxes, nbytes.take(order)), files

    def _is_unchanged(self) -> bool:
        try:
            for shard in self.objects:
                self._snapshot.check(shard.key)
        except ObjectChangedError:
            return False
        return True


def little_stack(source: ObjectSource, spec: ArraySpec, target: StackTarget, cast: Cast) -> LittleStack | None:
    """Return crops as what the loops may read of shards; None if there are others.

    Parameters
    ----------
    source : ObjectSource
    spec : ArraySpec
    target : StackTarget
    cast : Cast
    """
    common = common_of(spec, target, cast)
    if common is None or spec.index is None or not isinstance(source, LocalSource) or common.is_paused():
        return None
    return LittleStack(common, Snapshot(source, spec), spec, target, cast)
