"""Who decodes a read, where the device could: by the calibration in force, else by what reads have taken so far.

Either side alone, or both: `host_share` then has the chunks that threads of the host decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from math import prod

from xarray_gpuzarr.decoders.cost.calibration import Identify, calibration_in_force
from xarray_gpuzarr.decoders.cost.model import Split, Times, best_split, is_little, threads_each
from xarray_gpuzarr.decoders.cost.taken import Taken
from xarray_gpuzarr.decoders.cuda.chain import chain_of
from xarray_gpuzarr.decoders.cuda.routes import ONE_COPY
from xarray_gpuzarr.decoders.protocol import Route
from xarray_gpuzarr.plan.read_plan import ReadPlan, Target
from xarray_gpuzarr.process.device_options import resource_options
from xarray_gpuzarr.process.threads import thread_budget
from xarray_gpuzarr.stored.array_spec import ArraySpec
from xarray_gpuzarr.stored.codecs import BloscSpec

TakenOf = Callable[[str | None, int], Taken]
"""Returns what reads of chunks with such a compressor have taken, given how many chunks a read has."""


class ReadsUnderWay:
    """Counts the reads that are under way: they share the threads of the host, and the device."""

    def __init__(self) -> None:
        self._under_way: dict[object, None] = {}

    @property
    def n(self) -> int:
        """Reads that are under way."""
        return len(self._under_way)

    @property
    def n_threads(self) -> int:
        """Threads of the host that each of them may have."""
        return threads_each(thread_budget(), self.n)

    def counted[Result](self, read: Callable[[], Result]) -> Result:
        """Return what `read` does; it counts meanwhile."""
        mine = object()
        try:
            self._under_way[mine] = None
            return read()
        finally:
            self._under_way.pop(mine, None)


def codec_name(spec: ArraySpec) -> str | None:
    """Return the name that calibrations know the codecs of an array by; None for chains that are never calibrated."""
    stages = chain_of(spec)
    if isinstance(stages, str) or stages.compressor is None or stages.shuffle is not None or stages.elements:
        return None
    return f"blosc {stages.compressor.cname}" if isinstance(stages.compressor, BloscSpec) else str(stages.compressor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forecast:
    """What is expected of reads of an array, by a calibration or by what reads have taken."""

    times: Times
    source: str
    """Where they come from."""
    codec: str
    """What a calibration calls the array's codecs."""
    chunk_nbytes: int
    n_threads: int

    def split(self, n_chunks: int, n_reads: int = 1) -> Split:
        """Return how a read of so many chunks is best shared out, while so many are under way."""
        return best_split(self.times, self.codec, n_chunks, self.chunk_nbytes, self.n_threads, n_reads=max(1, n_reads))

    def explain(self, n_chunks: int, split: Split) -> str:
        """Say how long a read takes as it is shared out, and on either side alone."""
        times, codec, chunk_nbytes = self.times, self.codec, self.chunk_nbytes
        n_threads = 1 if is_little(n_chunks, chunk_nbytes) else self.n_threads
        on_host = _ms(times.host_seconds(codec, n_chunks, chunk_nbytes, n_threads))
        on_device = _ms(times.device_seconds(codec, n_chunks, chunk_nbytes))
        chunks = f"{n_chunks} chunk{'s'[: n_chunks > 1]} of {chunk_nbytes} bytes"
        by = f"{n_threads} host thread{'s'[: n_threads > 1]}"
        if split.n_host == n_chunks:
            return f"{chunks}: {on_host} by {by}, {on_device} on the device, {self.source}"
        return (
            f"host and device: {split.n_host} of {chunks} by {by}, {_ms(split.seconds)} in all; {on_device} on the "
            f"device alone, {on_host} by the host alone, {self.source}"
        )


def shared_out(
    spec: ArraySpec,
    target: Target,
    plans: Iterator[ReadPlan],
    reading: ReadsUnderWay,
    identify: Identify,
    taken_of: TakenOf,
) -> tuple[int, Taken | None, Iterator[ReadPlan]]:
    """Return how many chunks of a read the host decodes by what is known before it begins, and all its plans.

    That is the calibration in force, else what reads have taken, which is returned to be told what this one takes.

    Raises
    ------
    OptionError
        The calibration in force cannot be used.

    Notes
    -----
    The first plan is drawn, which mostly reads a shard's index, before reads are counted: those of other threads that
    began at the same time have begun by then.
    """
    forecast = _calibrated(spec, identify)
    taken = taken_of(codec_name(spec), target.n_chunks) if forecast is None and _may_learn(spec) else None
    if forecast is None and taken is None:
        return 0, None, plans
    first = list(islice(plans, 1))
    if forecast is not None:
        n_host = forecast.split(target.n_chunks, reading.n).n_host
    else:
        n_host = 0 if taken is None else taken.for_host(target.n_chunks, thread_budget(), reading.n)
    return n_host, taken, chain(first, plans)


def shared_route(spec: ArraySpec, identify: Identify, taken_of: TakenOf | None) -> Route:
    """Say who decodes a read of one shard (of one chunk, where there are none) of an array that the device can decode.

    Raises
    ------
    OptionError
        The calibration in force cannot be used.
    """
    forecast, n_chunks = _calibrated(spec, identify), prod(spec.grid.chunks_per_shard)
    if forecast is None and taken_of is not None and _may_learn(spec):
        taken = taken_of(codec_name(spec), n_chunks)
        forecast = _forecast(taken, "as reads have taken so far", "", spec) if taken.is_known else None
    split = None if forecast is None else forecast.split(n_chunks)
    if forecast is None or split is None or not split.n_host:
        return Route(where="cuda", why="")
    why = forecast.explain(n_chunks, split)
    return Route(where=f"host, {ONE_COPY}" if split.n_host == n_chunks else "cuda", why=why)


def _may_learn(spec: ArraySpec) -> bool:
    """Say whether reads of an array may show who should decode how much."""
    return resource_options().calibration != "off" and codec_name(spec) is not None


def _calibrated(spec: ArraySpec, identify: Identify) -> _Forecast | None:
    """Return what is expected of an array; None where no calibration is in force, or it does not know the codecs."""
    calibration = calibration_in_force(identify)
    codec = None if calibration is None else codec_name(spec)
    if calibration is None or codec is None or codec not in calibration.codecs:
        return None
    return _forecast(calibration, f"as calibrated on {calibration.gpu}", codec, spec)


def _forecast(times: Times, source: str, codec: str, spec: ArraySpec) -> _Forecast:
    nbytes = spec.chunk_nbytes
    return _Forecast(times=times, source=source, codec=codec, chunk_nbytes=nbytes, n_threads=thread_budget())


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
