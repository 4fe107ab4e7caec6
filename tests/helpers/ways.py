"""The ways of a chunk from its file to the output on the host, each forced by name, and seen to be taken.

A read chooses its way by sizes, times, threads, stores and what is in memory. Here a way is the changes that leave no
other choice, and what must be noted while it is taken. This table, and nothing else of the tests of ways, knows how
choices are made: who changes that changes the table, and leaves the property alone.
"""

import ctypes
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from helpers.loops import changed, require_loops, set_costs, without_loops
from xarray_gpuzarr.codec_pipeline import reading
from xarray_gpuzarr.decoders.host import chunk_codec, host_array, loop_table, native_program
from xarray_gpuzarr.decoders.host import decoder as host
from xarray_gpuzarr.decoders.host.by_python import BoxKeys, ChunkPlacer
from xarray_gpuzarr.decoders.host.loop_output import LoopOutput
from xarray_gpuzarr.decoders.host.loop_table import LoopTable
from xarray_gpuzarr.decoders.host.schedule import Schedule
from xarray_gpuzarr.decoders.host.tasks import HostRead, PlanTasks
from xarray_gpuzarr.fetch import files, index_cache
from xarray_gpuzarr.fetch.remote.answers import Answer
from xarray_gpuzarr.fetch.remote.store_clients import StoreClient
from xarray_gpuzarr.native import library
from xarray_gpuzarr.native.codec_functions import native_codec
from xarray_gpuzarr.native.structs import FilesStruct
from xarray_gpuzarr.process.fetch_options import FetchOptions, in_force
from xarray_gpuzarr.read import reading as read
from xarray_gpuzarr.stored.shard_index import MISSING

Patch = pytest.MonkeyPatch
Notes = Counter[str]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way, and how to force it.

    `force` gets the patch, and the bytes of a decoded chunk. A read has taken it if anything of `seen` was noted, or if
    that is empty. Where `reads` is 2, the second read finds what the first has learned.
    """

    force: tuple[Callable[[Patch, int], None], ...] = ()
    seen: tuple[str, ...] = ()
    store: Literal["local", "memory", "asked"] = "local"
    by: Literal["read", "pipeline"] = "read"
    reads: int = 1
    decodes_parts: bool = False
    """Whether damage behind what is wanted of a chunk may go unnoticed."""

    @property
    def asks_for_pieces(self) -> bool:
        """Whether an object that was cut may be one that ends too soon, instead of a damaged one."""
        return _ALONE in self.force or self.store == "asked"


# ---- what forces


def _set(target: Any, name: str, value: Any) -> Callable[[Patch, int], None]:
    return lambda patch, _: patch.setattr(target, name, value)


def _caller(patch: Patch, _: int) -> None:
    """Nothing is handed to another thread of Python."""
    set_costs(patch, serial_s=math.inf, loops_s=math.inf)


def _crew(patch: Patch, _: int) -> None:
    """Everything is a queue of tasks, for as many threads as there may be."""
    set_costs(patch, serial_s=0, loops_s=0, least_part_nbytes=1)


def _no_loops(patch: Patch, _: int) -> None:
    without_loops(patch)


def _options(**options: int) -> Callable[[Patch, int], None]:
    return lambda patch, _: patch.setattr(in_force, "options", FetchOptions(**options))


_ALONE = _PIECES = _options(max_gap_nbytes=0, max_request_nbytes=16)
_TOGETHER = _options(max_gap_nbytes=1 << 30)


def _versions(patch: Patch, _: int) -> None:
    """Let answers of any store bear a version, as those of servers do: objects are requested in pieces only then."""
    get = StoreClient.get

    async def get_with_version(client: StoreClient, *arguments: Any) -> Answer | None:
        answer = await get(client, *arguments)
        return None if answer is None else replace(answer, version="the only one", settled=True)

    patch.setattr(StoreClient, "get", get_with_version)
    patch.setattr(StoreClient, "identity", "a store whose answers bear versions")


def _leaving(left: Callable[[int], bool]) -> Callable[[Patch, int], None]:
    """Have the loops say that they left some rows of local files, as if these were not in memory."""

    def force(patch: Patch, _: int) -> None:
        read = LoopTable.read

        def leaving(table: LoopTable, wanted: range, shared: Schedule) -> list[int]:
            rows = read(table, wanted, shared)
            which = [row for row in wanted if table.nbytes[row] != MISSING and (left(row) or row in rows)]
            _notes["left"] += len(which)
            return which

        patch.setattr(LoopTable, "read", leaving)

    return force


_MEMORY = "ssize_t n = preadv2(file, &room, 1, offset, RWF_NOWAIT);"
_SMALL = {
    "LEAST_PARTED_NBYTES = 32 * 1024": "LEAST_PARTED_NBYTES = 1",
    "ZSTD_BLOCK_NBYTES = 128 * 1024": "ZSTD_BLOCK_NBYTES = 1",
    "BLOSC_LEAST_INFLATED = 32 * 1024": "BLOSC_LEAST_INFLATED = 64",
    "MOST_STEP = 32": "MOST_STEP = 2",
    "GRABS_A_THREAD = 8": "GRABS_A_THREAD = 1",
}
_SHORT_BLOCKS = {"BLOCK_ELEMENTS = 1024": "BLOCK_ELEMENTS = 3"}
_STREAMED = {"STREAMED_NBYTES = 16 << 20": "STREAMED_NBYTES = 1", "PIECE_NBYTES = 512 * 1024": "PIECE_NBYTES = 7"}
_RAW_PARTS = {"PART_NBYTES = 8 << 20": "PART_NBYTES = 5"}
_ASKED_IN_TURN = {"ASKED_NBYTES = 32 << 20": "ASKED_NBYTES = 100"}
_NOWHERE = {_MEMORY: "(void)room; ssize_t n = -1; errno = EAGAIN;"}
_HALF = {
    _MEMORY: f"""
    if (nbytes < 2 * BLOCK_NBYTES && offset) return errno = EAGAIN, -1;
    if (nbytes >= 2 * BLOCK_NBYTES) room.iov_len = nbytes / 2 / BLOCK_NBYTES * BLOCK_NBYTES;
    {_MEMORY}"""
}


def _loops(changes: dict[str, str]) -> Callable[[Patch, int], None]:
    def force(patch: Patch, _: int) -> None:
        found = changed(tuple(changes.items()))
        patch.setattr(library, "find", lambda: found)

    return force


def _not_cached(patch: Patch, _: int) -> None:
    patch.setattr(files, "read_cached", lambda *_arguments: 0)


_PART_TYPES = {
    1: (ctypes.c_size_t, *3 * (ctypes.c_void_p,)),
    2: (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p),
    3: (ctypes.c_int, *2 * (ctypes.c_void_p,), *3 * (ctypes.c_int,)),
}


@functools.cache
def _counting(number: int, address: int) -> Any:
    kind = ctypes.CFUNCTYPE(*_PART_TYPES[number])
    decode = kind(address)

    def counted(*arguments: Any) -> Any:
        _notes["part of a chunk"] += 1
        return decode(*arguments)

    return kind(counted)


def _parts(patch: Patch, _: int) -> None:
    """Decode no more of a chunk than is wanted, and count what does."""

    def counted(name: Any) -> Any:
        codec = native_codec(name)
        if codec is None or not codec.decode_part:
            return codec
        callback = _counting(codec.number, codec.decode_part)
        return replace(codec, decode_part=ctypes.cast(callback, ctypes.c_void_p).value)

    patch.setattr(native_program, "native_codec", counted)
    patch.setattr(native_program, "_LEAST_PARTED_NBYTES", 1)  # below which a chunk is decoded as a whole, to be kept


def _placed_only(patch: Patch, _: int) -> None:
    """Nothing is decoded to its place."""
    patch.setattr(ChunkPlacer, "contiguous_box", lambda *_: None)


def poisoned_by(byte: int, empty: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives results no memory that still has the values of the last read."""

    def poisoned(*arguments: Any) -> Any:
        out = empty(*arguments)
        out.reshape(-1).view("u1")[:] = byte
        return out

    return poisoned


def _on_the_edge(more: int) -> Callable[[Patch, int], None]:
    """Every limit of a size is that of the chunk, or a byte beside it."""

    def force(patch: Patch, chunk_nbytes: int) -> None:
        limit = max(1, chunk_nbytes + more)
        patch.setattr(loop_table, "READ_BUFFER_NBYTES", limit)
        sizes = dict.fromkeys(["short_chunk_nbytes", "least_part_nbytes", "loop_copy_nbytes"], limit)
        set_costs(patch, call_s=2 * chunk_nbytes / 0.7e9, **sizes)

    return force


_BUFFER_OF_ONE = _set(loop_table, "READ_BUFFER_NBYTES", 1)


def _a_chunk_a_call(patch: Patch, _: int) -> None:
    set_costs(patch, call_s=0)


WAYS: dict[str, Way] = {
    "as it comes": Way(),
    "loops, caller": Way(force=(_caller,), reads=2, seen=("rows read by the loops",)),
    "loops, caller, a chunk a call": Way(
        force=(_caller, _a_chunk_a_call, _BUFFER_OF_ONE), seen=("rows read by the loops",)
    ),
    "loops, caller, parts of chunks": Way(
        force=(_caller, _loops(_SMALL), _parts), reads=2, seen=("part of a chunk",), decodes_parts=True
    ),
    "loops, caller, blocks of three elements": Way(
        force=(_caller, _loops(_SHORT_BLOCKS)), seen=("rows read by the loops",)
    ),
    "loops, crew": Way(force=(_crew,), reads=2, seen=("rows read by the loops, crew",)),
    "loops, crew, chunks one by one": Way(force=(_crew, _ALONE), seen=("rows read by the loops, crew",)),
    "loops, crew, long requests": Way(force=(_crew, _TOGETHER), seen=("rows read by the loops, crew",)),
    "all left, caller": Way(force=(_caller, _leaving(lambda _: True)), seen=("left",)),
    "all left, crew": Way(force=(_crew, _leaving(lambda _: True)), seen=("left",)),
    "some left, caller": Way(force=(_caller, _leaving(lambda row: row % 3 == 1)), reads=2, seen=("left",)),
    "some left, crew": Way(force=(_crew, _ALONE, _leaving(lambda row: row % 2 == 1)), reads=2, seen=("left",)),
    "not in memory, caller": Way(force=(_caller, _loops(_NOWHERE)), reads=2, seen=("rows waited for",)),
    "not in memory, crew": Way(force=(_crew, _loops(_NOWHERE), _not_cached), seen=("rows waited for",)),
    "not in memory, parts of chunks": Way(
        force=(_caller, _loops(_SMALL | _NOWHERE | _ASKED_IN_TURN), _parts), reads=2, seen=("rows waited for",)
    ),
    "half in memory": Way(force=(_caller, _loops(_HALF)), reads=2, seen=("rows waited for",)),
    "not in memory, left": Way(force=(_crew, _leaving(lambda _: True), _not_cached), seen=("left",)),
    "no loops, caller": Way(force=(_no_loops, _caller), seen=("decoded row",)),
    "no loops, crew": Way(force=(_no_loops, _crew, _ALONE), seen=("decoded row, crew",)),
    "no loops, placed": Way(force=(_no_loops, _placed_only), seen=("placed",)),
    "loops, caller, parts of raw chunks": Way(force=(_caller, _loops(_RAW_PARTS)), seen=("rows read by the loops",)),
    "loops, crew, parts of raw chunks": Way(
        force=(_crew, _loops(_RAW_PARTS | _NOWHERE)), seen=("rows read by the loops, crew",)
    ),
    "streamed, caller": Way(force=(_caller, _loops(_STREAMED), _parts), seen=("part of a chunk",)),
    "streamed, crew, not in memory": Way(
        force=(_crew, _loops(_STREAMED | _NOWHERE), _parts, _not_cached), seen=("part of a chunk",)
    ),
    "sizes a byte below the chunk": Way(force=(_on_the_edge(-1),)),
    "sizes of the chunk": Way(force=(_on_the_edge(0),)),
    "sizes a byte above the chunk": Way(force=(_crew, _on_the_edge(1))),
    "from memory": Way(store="memory", seen=("rows placed by the loops", "decoded row")),
    "from memory, parts of raw chunks": Way(
        store="memory", force=(_loops(_RAW_PARTS),), seen=("rows placed by the loops",)
    ),
    "from memory, parts of chunks": Way(
        store="memory", force=(_crew, _loops(_SMALL), _parts), seen=("part of a chunk",), decodes_parts=True
    ),
    "from memory, no loops": Way(store="memory", force=(_no_loops, _crew), seen=("decoded row",)),
    "asked for": Way(store="asked", seen=("rows placed by the loops", "decoded row")),
    "asked for, chunks one by one": Way(store="asked", force=(_ALONE,), seen=("rows placed by the loops", "raw piece")),
    "asked for, raw chunks in pieces": Way(store="asked", force=(_crew, _PIECES, _versions), seen=("raw piece",)),
    "asked for, no loops": Way(store="asked", force=(_ALONE, _no_loops), seen=("decoded row", "raw piece")),
    "codec pipeline": Way(by="pipeline", seen=("by the pipeline",), reads=2),
    "codec pipeline, on a thread": Way(
        by="pipeline", force=(_set(reading, "SHORT_READ_S", 0), _crew), seen=("by the pipeline",)
    ),
}
"""By name."""


# ---- what is seen

_notes: Notes = Counter()


@contextmanager
def taking(name: str, chunk_nbytes: int, n_threads: int) -> Iterator[Notes]:
    """Force a way within a block; give what is noted meanwhile."""
    way = WAYS[name]
    _forget()
    _notes.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XARRAY_GPUZARR_NUM_THREADS", str(n_threads))
        patch.setattr("xarray_gpuzarr.fetch.source.SETTLED_S", -1e9)
        set_costs(patch, loop_thread_s=1e-15)
        patch.setattr(host.HostDecoder, "empty", poisoned_by(0xA5, host.HostDecoder.empty))
        _watch(patch)
        for force in way.force:
            force(patch, chunk_nbytes)
        try:
            yield _notes
        finally:
            _forget()


def is_taken(name: str, notes: Notes) -> bool:
    """Say whether a way was seen to be taken."""
    return not WAYS[name].seen or any(notes[note] for note in WAYS[name].seen)


def _forget() -> None:
    """Forget what reads keep for the next ones."""
    index_cache.cache.clear()
    host_array.host_array.cache_clear()
    native_program.native_program.cache_clear()
    chunk_codec.chunk_codec.cache_clear()


def _watch(patch: Patch) -> None:
    _note_loops(patch)
    _note_crew(patch)
    for kind, name, note in (
        (ChunkPlacer, "place", "decoded row"),
        (BoxKeys, "boxes", "placed"),
        (PlanTasks, "_piece_task", "raw piece"),
        (ChunkPlacer, "_decode_by_zarr", "chunk by zarr-python"),
        (read, "read_by_zarr", "all by zarr-python"),
        (reading.PipelineRead, "run", "by the pipeline"),
    ):
        patch.setattr(kind, name, _noting(getattr(kind, name), note))


def _note(note: str, n: int = 1) -> None:
    _notes[note] += n
    if _notes["crew"]:
        _notes[f"{note}, crew"] += n


def _noting(do: Callable[..., Any], note: str) -> Callable[..., Any]:
    @functools.wraps(do)
    def noting(*arguments: Any, **keywords: Any) -> Any:
        _note(note)
        return do(*arguments, **keywords)

    return noting


def _note_loops(patch: Patch) -> None:
    def rows_of(name: str, first: int, note: str) -> None:
        do = getattr(LoopOutput, name)

        def noting(output: LoopOutput, *arguments: int) -> int:
            n_left = do(output, *arguments)
            _note(note, arguments[first + 1] - arguments[first] - n_left)
            return n_left

        patch.setattr(LoopOutput, name, noting)

    rows_of("place_rows", 1, "rows placed by the loops")
    rows_of("read_rows", 2, "rows read by the loops")
    read = LoopTable.read

    def noting(table: LoopTable, wanted: range, shared: Schedule) -> Sequence[int]:
        left = read(table, wanted, shared)
        _notes["left by the loops"] += len(left)
        return left

    patch.setattr(LoopTable, "read", noting)
    read_once = LoopTable.read_once

    def noting_waits(table: LoopTable, files: FilesStruct, wanted: range, shared: Schedule) -> int:
        if files.waits:
            _notes["rows waited for"] += len(wanted)
        return read_once(table, files, wanted, shared)

    patch.setattr(LoopTable, "read_once", noting_waits)


def _note_crew(patch: Patch) -> None:
    run, here = host.run_tasks, host.call_loops

    def noting(tasks: Any, one: HostRead) -> None:
        _notes["crew" if one.schedule.n_threads > 1 else "one thread"] += 1
        run(tasks, one)

    patch.setattr(host, "run_tasks", noting)
    patch.setattr(host, "call_loops", _noting(here, "caller"))


def require() -> None:
    """Skip the test where there are no loops, or no compiler to change them."""
    require_loops()
    for changes in (_SMALL, _NOWHERE, _HALF):
        changed(tuple(changes.items()))
