"""How a read on the host is shared out among threads: decided before it begins, by how long decoding takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from xarray_gpuzarr.decoders.host.host_array import HostArray
from xarray_gpuzarr.process.records import record


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of handing over work, measured (November 2026, EPYC, two cores)."""

    serial_s: float = 1.2e-3
    """Seconds of decoding below which another thread is not worth waking: crops of 8 raw chunks of 64 KiB took
    one thread 312 us and two 415, of 63 chunks of zstd 4.3 and 3.0 ms."""
    loops_s: float = 0.1
    """Seconds of decoding below which the caller's thread reads, with threads of the compiled loops:
    these hand over nothing, and share what they do by the chunk. Longer reads use threads that come and go."""
    loop_thread_s: float = 150e-6
    """Decoding that is worth a thread of the compiled loops, which never waits for Python: to start one takes 20 us."""
    loop_copy_nbytes: int = 8 * 1024 * 1024
    """Bytes of a single raw chunk that are worth a thread of the loops."""
    call_s: float = 20e-3
    """Decoding that a thread of the loops does in one call: Ctrl-C, and others who want the core, wait for its end."""
    parts_a_thread: int = 4
    least_part_nbytes: int = 256 * 1024
    """Handing over a part costs a few hundredths of reading and decoding this much."""
    short_chunk_nbytes: int = 256 * 1024
    """Threads that decode chunks up to this ask for Python's lock so often that more of them than cores get less done:
    they take turns."""


@record
class Schedule:
    """Who does what of a read."""

    budget: int
    """Threads of this process that may decode at once."""
    n_threads: int
    """Threads that carry out tasks, the calling one among them."""
    n_loop_threads: int
    """Threads of the compiled loops in each of their calls, the calling one among them."""
    rows_a_call: int | None
    """Chunks that the compiled loops get at once if the calling thread hands them whole plans; None for tasks."""
    rows_a_part: int
    """Chunks that a thread decodes before it asks for more."""
    part_nbytes: int
    """Longest part, so that each thread gets some of a small read."""


_ANY = 2**62
"""No limit."""


@lru_cache(maxsize=256)
def schedule(  # noqa: PLR0913  # what is kept has to know all of it
    array: HostArray, n_chunks: int, out_nbytes: int, *, is_remote: bool, is_local: bool, budget: int, costs: Costs
) -> Schedule:
    """Share out a read that touches so many chunks, and has a result of so many bytes.

    `is_remote` and `is_local` are as of a `ByteSource`; `budget` threads of this process may decode at once. It is kept
    for later reads: most of an array are alike.
    """
    # One chunk is decoded by one thread; of several, little may be wanted and much to be decoded.
    nbytes = max(out_nbytes, n_chunks * array.chunk_nbytes if n_chunks > 1 else 0)
    seconds = nbytes / array.rate
    is_long, is_single = seconds >= costs.serial_s, n_chunks == 1
    n_threads = budget if is_long and not is_single else 1
    rows_a_call = max(1, int(costs.call_s * array.rate / array.chunk_nbytes))
    part_nbytes = rows_a_part = _ANY
    if n_threads > 1 and not is_remote:  # else latency tells how long requests should be
        part_nbytes = max(costs.least_part_nbytes, nbytes // n_threads // costs.parts_a_thread)
        share = n_chunks // n_threads // costs.parts_a_thread  # encoded, chunks may be as good as nothing
        rows_a_part = max(-(-costs.least_part_nbytes // array.chunk_nbytes), min(share, rows_a_call))
    # What is only copied, two threads do no sooner than one, unless it is long.
    is_short = not is_long if array.is_copied else seconds < costs.loops_s
    by_loops = is_local and array.program is not None and (is_single or is_short)
    n_loop_threads = 1
    if is_single and array.is_copied:
        n_loop_threads = max(1, min(nbytes // costs.loop_copy_nbytes, budget))
    elif not array.is_copied and (by_loops or n_threads == 1):
        n_loop_threads = max(1, min(int(seconds / costs.loop_thread_s), budget))
    return Schedule(
        budget=budget,
        n_threads=n_threads,
        n_loop_threads=n_loop_threads,
        rows_a_call=rows_a_call if by_loops else None,
        rows_a_part=rows_a_part,
        part_nbytes=part_nbytes,
    )
