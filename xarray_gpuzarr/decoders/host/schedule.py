"""Schedules of reads on the host: how many threads take part, and how much each of them does at once.

A `Schedule` is decided before the read begins, from the estimated time that decoding takes and the `Costs` of handing
work to other threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from xarray_gpuzarr.decoders.host.host_array import HostArray
from xarray_gpuzarr.process.records import record


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of handing work to other threads, measured on two cores of an EPYC in November 2026."""

    serial_s: float = 1.2e-3
    """Seconds of decoding below which another thread is not worth waking. Crops of 8 raw chunks of 64 KiB took one
    thread 312 us and two threads 415 us; crops of 63 zstd chunks took 4.3 ms and 3.0 ms."""
    loops_s: float = 0.1
    """Seconds of decoding below which the calling thread calls the compiled loops, which start threads of their own.
    These take one chunk after another, and nothing is handed over. Longer reads use the threads of `process.crew`."""
    loop_thread_s: float = 150e-6
    """Seconds of decoding that are worth another thread of the compiled loops: starting one takes 20 us."""
    loop_copy_nbytes: int = 8 * 1024 * 1024
    """Bytes of the result, from a single raw chunk, that are worth another thread of the loops."""
    call_s: float = 20e-3
    """Seconds of decoding that a thread of the loops does in one call. Ctrl-C, and other reads that want the core, wait
    for the end of the call."""
    parts_a_thread: int = 4
    """Number of parts that a short read is cut into for each thread."""
    least_part_nbytes: int = 256 * 1024
    """Length of the shortest part in bytes. Handing it over costs a few percent of reading and decoding it."""
    short_chunk_nbytes: int = 256 * 1024
    """Length in bytes of the longest chunk that counts as short. Threads that read short chunks take turns
    (`process.turns`): they ask for the GIL so often that more threads than cores get less done."""


@record
class Schedule:
    """Division of one read among threads."""

    budget: int
    """Number of threads of this process that may decode at once."""
    n_threads: int
    """Number of threads that carry out tasks, including the calling thread."""
    n_loop_threads: int
    """Number of threads in each call of the compiled loops, including the calling thread."""
    rows_a_call: int | None
    """Number of chunks in each call of the compiled loops, for all its threads, if the calling thread passes plans to
    them; None if the read is carried out by tasks."""
    rows_a_part: int
    """Largest number of chunks that a thread decodes before it takes the next task."""
    part_nbytes: int
    """Length in bytes of the longest part. Parts of short reads are short, so that each thread gets some."""


_NO_LIMIT = 2**62


@lru_cache(maxsize=256)
def schedule(  # noqa: PLR0913  # the cache needs every value as an argument
    array: HostArray, n_chunks: int, out_nbytes: int, *, is_remote: bool, is_local: bool, budget: int, costs: Costs
) -> Schedule:
    """Return the schedule of a read. Schedules are cached: most reads of an array are alike.

    Parameters
    ----------
    array : HostArray
        The array to read.
    n_chunks : int
        Number of chunks that the read touches.
    out_nbytes : int
        Length of the result in bytes.
    is_remote, is_local : bool
        The attributes of the `ByteSource`.
    budget : int
        Number of threads of this process that may decode at once.
    costs : Costs
        Costs of handing work to other threads.
    """
    # Several chunks are decoded as a whole, which may be more bytes than the result has. For a single chunk, only the
    # result counts: one thread decodes it, whatever its length, but several may copy it.
    is_single = n_chunks == 1
    nbytes = out_nbytes if is_single else max(out_nbytes, n_chunks * array.chunk_nbytes)
    seconds = nbytes / array.rate
    is_long = seconds >= costs.serial_s
    n_threads = budget if is_long and not is_single else 1
    rows_a_thread = max(1, int(costs.call_s * array.rate / array.chunk_nbytes))
    part_nbytes = rows_a_part = _NO_LIMIT
    if n_threads > 1 and not is_remote:  # for remote stores, latency determines the length of requests
        part_nbytes = max(costs.least_part_nbytes, nbytes // n_threads // costs.parts_a_thread)
        # Encoded chunks may be very short, so the number of chunks is limited, too.
        least_rows = -(-costs.least_part_nbytes // array.chunk_nbytes)  # rounded up
        share = n_chunks // n_threads // costs.parts_a_thread
        rows_a_part = max(least_rows, min(share, rows_a_thread))
    # Several chunks that are only copied get no threads of the loops (see below), so threads of the crew help sooner.
    longest_alone_s = costs.serial_s if array.is_copied else costs.loops_s
    caller_suffices = seconds < longest_alone_s
    by_loops = is_local and array.program is not None and (is_single or caller_suffices)
    only_caller_calls_loops = by_loops or n_threads == 1  # otherwise, so does each thread of the crew
    n_loop_threads = 1
    if array.is_copied and is_single:
        n_loop_threads = max(1, min(nbytes // costs.loop_copy_nbytes, budget))
    elif only_caller_calls_loops and not array.is_copied:  # two threads copy a short read no faster than one
        n_loop_threads = max(1, min(int(seconds / costs.loop_thread_s), budget))
    return Schedule(
        budget=budget,
        n_threads=n_threads,
        n_loop_threads=n_loop_threads,
        rows_a_call=rows_a_thread * n_loop_threads if by_loops else None,
        rows_a_part=rows_a_part,
        part_nbytes=part_nbytes,
    )
