"""`SegmentQueue`: the plans of one read, cut into segments, and the segments that wait to be staged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from xarray_gpuzarr.cuda.api import DeviceApi
from xarray_gpuzarr.decoders.cuda.batches.columns import Rows
from xarray_gpuzarr.decoders.cuda.batches.row_ranges import Cutter, RowRange, plan_row_ranges
from xarray_gpuzarr.decoders.cuda.staging.pinned import Stager
from xarray_gpuzarr.plan.read_plan import ReadPlan


class Segment(NamedTuple):
    """Row ranges that are staged together."""

    row_ranges: list[RowRange]
    ends_batch: bool
    """Whether this is the last segment of its batch."""


class SegmentQueue:
    """Cuts plans into segments, and requests their bytes before they are staged.

    Parameters
    ----------
    api : DeviceApi
        Device, for ranges on a profiler's timeline.
    stager : Stager
        Stages the segments. It has the queue of requests, and the rules for cutting.
    cutter : Cutter
        Cuts row ranges to the lengths of segments and batches.
    """

    def __init__(self, api: DeviceApi, stager: Stager, cutter: Cutter) -> None:
        self._api = api
        self._stager = stager
        self._cutter = cutter
        self._uncut: deque[RowRange] = deque()
        """Row ranges whose rows belong to no segment yet."""
        self._open_segment: list[RowRange] = []
        """Row ranges of the segment that is not full yet."""
        self._unstaged: deque[Segment] = deque()
        """Full segments that wait to be staged. Their requests are under way as far as the store's lookahead allows."""
        self.missing: list[Rows] = []
        """Rows of missing chunks, as `ReadPlan.missing_piece_numbers`, whose fill values the next batch writes."""

    def cut(self, plans: Iterator[ReadPlan]) -> Iterator[Segment]:
        """Cut plans into segments; yield each segment once as many requests are under way as the store takes.

        A row range is cut only when its turn comes, so that those after a batch that had to be shortened are cut for
        shorter batches, too. At a ``yield``, `restart` may empty the queues and fill `_uncut` again.
        """
        stager, requests = self._stager, self._stager.requests
        while True:
            while self._draw_plans(plans):
                row_range, full, remaining = self._cutter.cut(self._uncut.popleft())
                if remaining is not None:
                    self._uncut.appendleft(remaining)
                if full is not None:
                    self._unstaged.append(Segment(self._open_segment, full == "batch"))
                    self._open_segment = []
                self._open_segment.append(row_range)
                if requests is not None:
                    requests.add(row_range.requests(stager.max_request_nbytes))
                while self._unstaged and (requests is None or requests.is_full):
                    yield self._unstaged.popleft()
            self._unstaged.append(Segment(self._open_segment, ends_batch=True))
            self._open_segment = []
            while self._unstaged:
                yield self._unstaged.popleft()
            # There are row ranges again if memory was short for the last batch.
            if not self._uncut:
                return

    def restart(self, row_ranges: Sequence[RowRange], cutter: Cutter) -> None:
        """Queue row ranges that were yielded before all others, to be cut again, all of them by another cutter."""
        self._cutter = cutter
        cut_row_ranges = list(row_ranges)
        for segment in self._unstaged:
            cut_row_ranges += segment.row_ranges
        cut_row_ranges += self._open_segment
        self._uncut.extendleft(reversed(cut_row_ranges))
        self._unstaged.clear()
        self._open_segment = []
        if self._stager.requests is not None:
            self._stager.requests.clear()

    def _draw_plans(self, plans: Iterator[ReadPlan]) -> bool:
        """Draw plans until there are row ranges to cut; return whether there are any."""
        while not self._uncut:
            with self._api.range("read::index"):  # drawing a plan reads shard indexes
                plan = next(plans, None)
            if plan is None:
                return False
            if len(plan.missing_piece_numbers):
                self.missing.append(plan.missing_piece_numbers)
            self._uncut.extend(plan_row_ranges(plan, self._stager.rule))
        return True
