"""`CachedTasks`: the tasks of a read that uses the cache of decoded chunks."""

from __future__ import annotations

from collections.abc import Iterator

from xarray_gpuzarr.decoders.host.cached_read import CachedRead, PlanChunks
from xarray_gpuzarr.decoders.host.tasks import HostRead, PlanTasks, Task
from xarray_gpuzarr.plan.read_plan import ReadPlan


class CachedTasks:
    """The tasks of a read that uses cached chunks, and keeps some of those that it decodes."""

    def __init__(self, read: HostRead, cached: CachedRead) -> None:
        self._read, self._cached = read, cached
        self._to_keep: list[tuple[PlanTasks, PlanChunks]] = []
        """Tasks of plans with chunks that are to be kept, and these chunks."""

    def tasks(self, plans: Iterator[ReadPlan]) -> Iterator[Task]:
        """Yield the tasks of all plans."""
        for plan in plans:
            chunks = self._cached.look_up(plan)
            if chunks is None:
                yield from PlanTasks(self._read, plan).tasks()
            elif self._read.source.is_local and self._read.loop_output is not None:
                # The compiled loops take rows that are decoded already and rows of files in the same call.
                yield from self._plan_tasks(plan, chunks)
            else:  # a task either starts requests or not, so cached chunks, which need none, get a plan of their own
                cached, others = chunks.split(plan)
                yield from self._plan_tasks(*cached)
                yield from self._plan_tasks(*others)

    def put(self) -> None:
        """Put the decoded chunks that are to be kept into the cache. All tasks must have ended."""
        for tasks, chunks in self._to_keep:
            self._cached.put(chunks, tasks.decoded_rows())

    def _plan_tasks(self, plan: ReadPlan, chunks: PlanChunks) -> Iterator[Task]:
        """Yield the tasks of one plan: a single one, without requests, if all its stored chunks are cached."""
        if not plan.n_chunks:  # `PlanChunks.split` may leave one of its plans empty
            return
        tasks = PlanTasks(self._read, plan, chunks=chunks)
        if chunks.to_keep:
            self._to_keep.append((tasks, chunks))
        if chunks.cached and len(chunks.cached) == plan.n_stored:
            yield Task(tasks.place_cached, starts_requests=False)
        else:
            yield from tasks.tasks()
