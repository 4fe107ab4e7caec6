"""Whichever way a chunk takes on the host, from its file to the output, the result is the same, bit for bit.

Arrays, selections, casts and damage are drawn anew in each session; all ways read each of them, and zarr-python and
NumPy say what is right. A failure names its seed, ``XARRAY_GPUZARR_TEST_SEED``, and the case, which goes into a table.
"""

import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest
import zarr
from helpers.data.corpus import write
from helpers.data.ways_cases import (
    NAME,
    Case,
    Damage,
    Selected,
    Stored,
    cast_of,
    damage,
    draw_case,
    numpy_cast,
    write_case,
)
from helpers.every_pair import SEED, usually
from helpers.stores.fakes import AskedStore, put
from helpers.ways import WAYS, Way, is_taken, require, taking
from hypothesis import assume, given, note
from hypothesis import strategies as st
from zarr.buffer import cpu
from zarr.codecs import BytesCodec
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import CorruptChunkError, GpuZarrError, read_array, zarr_pipeline
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.plan.crops import Crops
from xarray_gpuzarr.plan.stack import stack_target
from xarray_gpuzarr.process.fetch_options import FetchOptions, in_force
from xarray_gpuzarr.read import read, read_target, stored_array
from xarray_gpuzarr.read.reading import read_points
from xarray_gpuzarr.stored.array_spec import Unplanned

pytestmark = pytest.mark.filterwarnings("ignore")


class NotWrittenError(Exception):
    """A case that zarr-python cannot write, or that is no case."""


Outcome = tuple[str, ...] | bytes
taken: Counter[str] = Counter()
"""How many reads were seen to take each way."""


@pytest.fixture(scope="module", autouse=True)
def compiled():
    require()


class Opened:
    """One array, opened from each kind of store when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self._path, self._opened = path, {}

    def __call__(self, way: Way) -> zarr.Array:
        key = way.store, way.by
        if key not in self._opened:
            with zarr_pipeline() if way.by == "pipeline" else nullcontext():
                self._opened[key] = zarr.open_array(self._store(way.store), path=NAME, mode="r")
        return self._opened[key]

    def _store(self, kind: str):
        if kind == "local":
            return LocalStore(self._path, read_only=True)
        files = [file for file in self._path.rglob("*") if file.is_file()]
        objects = {str(file.relative_to(self._path)): cpu.Buffer.from_bytes(file.read_bytes()) for file in files}
        return (MemoryStore if kind == "memory" else AskedStore)(objects)


def by_the_pipeline(array, selected: Selected) -> np.ndarray:
    if selected.kind == "points":
        return np.asarray(array.vindex[tuple(c % n for c, n in zip(selected.key, array.shape, strict=True))])
    key = tuple(as_zarr_takes_it(k, n) for k, n in zip(selected.key, array.shape, strict=True))
    return np.asarray(array[key] if all(isinstance(k, slice | int) for k in key) else array.oindex[key])


def as_zarr_takes_it(key, length: int):
    if isinstance(key, slice) or np.asarray(key).dtype.kind == "b":
        return key
    numbers = np.arange(length)[np.asarray(key, np.int64)]
    return numbers if numbers.ndim else int(numbers)


def by_a_read(array, selected: Selected, cast, shape) -> np.ndarray:
    stored = stored_array(array, cast)
    out, whole = selected.memory(shape, np.dtype(stored.cast.dtype))
    if selected.kind == "points":
        return read_points(stored, selected.key, HostDecoder())
    if selected.kind == "box":
        found = read(stored, selected.key, HostDecoder(), out)
    else:
        target = stack_target(*selected.key, stored.spec.grid)
        found = read_target(stored, stored.spec, target, HostDecoder(), out)
    result = np.array(found)
    if out is not None:
        out.view(f"V{out.itemsize}")[...] = whole.view(f"V{out.itemsize}").reshape(-1)[0]
        assert (whole.view(np.uint8) == 0xA5).all(), "bytes beside the output were written"
    return result


def outcome(read_it) -> Outcome | np.ndarray:
    """Return the values, or the class of the error and the objects that it names."""
    try:
        return read_it()
    except GpuZarrError as err:
        return type(err).__name__, *sorted(set(re.findall(rf"\b{NAME}/(c(?:/\d+)+|\d+(?:\.\d+)*)\b", str(err))))


def box_shape(selected: Selected, shape) -> tuple[int, ...]:
    """The shape of a result before axes are taken from it."""
    if selected.kind == "stack":
        return selected.of(np.empty(shape, "u1")).shape
    if selected.kind == "points":
        return ()
    return tuple(np.atleast_1d(np.arange(n)[k]).size for n, k in zip(shape, selected.key, strict=True))


def can(way: Way, case: Case, is_planned: bool) -> bool:
    """Whether a way has such reads."""
    if way.by == "read":
        return is_planned or case.selected.kind != "stack"
    keys = case.selected.key if case.selected.kind == "box" else ()
    backwards = any(isinstance(k, slice) and (k.step or 1) < 0 for k in keys)
    return not case.cast and case.selected.kind != "stack" and not backwards


def all_ways(path: Path, case: Case, names=tuple(WAYS)) -> dict[str, list[Outcome | np.ndarray]]:
    """Read a case all ways; return what each gave, and count who was seen to take it."""
    try:
        write_case(path, case)
        array = zarr.open_array(LocalStore(path), path=NAME, mode="r")  # who wrote it may know another byte order
        values = np.asarray(array[...])
    except (KeyError, ValueError, TypeError, OverflowError) as err:
        raise NotWrittenError from err
    cast = cast_of(case, values)
    damage(path, case)
    is_planned = not isinstance(stored_array(array, cast).spec, Unplanned)
    if not is_planned and case.damage.kind != "none":
        raise NotWrittenError
    shape = box_shape(case.selected, values.shape)
    found, opened = {}, Opened(path)
    for name in names:
        way = WAYS[name]
        if not can(way, case, is_planned):
            continue
        with taking(name, case.stored.chunk_nbytes, case.n_threads) as notes, np.errstate(all="ignore"):
            read_it = partial(by_the_pipeline if way.by == "pipeline" else by_a_read, opened(way))
            if way.by == "read":
                read_it = partial(read_it, cast=cast, shape=shape)
            found[name] = [outcome(partial(read_it, case.selected)) for _ in range(way.reads)]
            taken[name] += is_taken(name, notes)
    if case.damage.kind != "none":
        found["undamaged"] = [case.selected.of(numpy_cast(cast, values))]
        values = None if any_error(found) else by_zarr(path)
    if values is not None:
        found["zarr-python"] = [case.selected.of(numpy_cast(cast, values))]
    return found


def any_error(found: dict[str, list]) -> bool:
    return any(isinstance(one, tuple) for reads in found.values() for one in reads)


def by_zarr(path: Path) -> np.ndarray | None:
    """What zarr-python reads of a damaged array; None if it cannot."""
    try:
        return np.asarray(zarr.open_array(LocalStore(path), path=NAME, mode="r")[...])
    except Exception:  # noqa: BLE001  # of any codec
        return None


def check(found: dict[str, list], case: Case) -> None:
    """Fail unless all ways gave the same values, which zarr-python gives, or the same error."""
    groups: dict = {}
    for name, reads in found.items():
        for one in reads:
            what = one if isinstance(one, tuple) else (one.dtype, one.shape, one.tobytes())
            groups.setdefault(what, []).append(name)
    if case.damage.kind != "none":
        _leave_out_what_may_differ(groups, case.damage.kind)
    assert len(groups) == 1, "\n\n".join(f"{what}: {names}" for what, names in groups.items())
    assert case.damage.kind != "none" or not any_error(found)


def _leave_out_what_may_differ(groups: dict, damage_kind: str) -> None:
    """Take out ways that meet damage in another way, or none."""
    (undamaged,) = (what for what, names in groups.items() if "undamaged" in names)
    groups[undamaged].remove("undamaged")
    errors = [what for what in groups if isinstance(what[0], str)]
    for what, names in [*groups.items()]:
        others = [error for error in errors if error[1:] == what[1:] and error[0] != "StoreReadError"]
        may_end_too_soon = others or damage_kind == "directory"  # which others take for a missing chunk
        ends_too_soon = (
            what[0] == "StoreReadError" and may_end_too_soon and all(WAYS[name].asks_for_pieces for name in names)
        )
        # Only a store that says how long a shard is shows that it was cut where nothing is wanted.
        is_cut = damage_kind == "cut" and all(error[0] == "ShardIndexError" for error in errors)
        unseen = (WAYS[name].decodes_parts or (is_cut and WAYS[name].store == "asked") for name in names)
        is_unnoticed = what == undamaged and errors and all(unseen)
        if ends_too_soon or is_unnoticed or not names:
            del groups[what]


def _case(shape=(9, 40), chunks=(3, 8), shards=(6, 24), dtype="<i4", compressor="zstd", selected=None, **more) -> Case:
    stored = Stored(
        shape=shape,
        chunks=chunks,
        shards=shards,
        index_location="end",
        zarr_format=3,
        dtype=dtype,
        compressor=compressor,
        element_filter="none",
        shuffle=0,
        order=(0, 1),
        missing=(0, 0),
        fill=0,
        seed=1,
    )
    key = selected or (slice(1, 9), slice(0, 20))
    return Case(
        stored=replace(stored, **more),
        selected=Selected(kind="box" if isinstance(key, tuple) else "stack", key=key, out="C"),
        cast={},
        damage=Damage(kind="none", inner=False, which=0, where=0),
        n_threads=2,
    )


CROPS = ([Crops(start=np.array([0, 5, 2]), count=4), Crops(start=np.array([3, 20, 11]), count=15)], 3)
ALL = (slice(None), slice(None))
POINTS = np.array([0, 5, 3, 3]), np.array([23, 0, 7, 8])
PLAIN = {
    "a box": _case(),
    "everything raw": _case(shape=(9, 40), chunks=(3, 40), shards=(9, 40), compressor="none", selected=ALL),
    "raw files": _case(shards=None, compressor="none", selected=ALL),
    "raw long files": _case((512, 40), (256, 40), None, "<i8", "none", (slice(1, 300), slice(None))),
    "a shard of raw chunks": _case((512, 40), (16, 40), (256, 40), "<i8", "none", (slice(1, 300), slice(3, None))),
    "crops": replace(_case(), selected=Selected(kind="stack", key=CROPS, out="none")),
    "points": replace(_case(), selected=Selected(kind="points", key=POINTS, out="none")),
    "lz4": _case(compressor="lz4", shape=(20, 40), chunks=(10, 40), shards=(20, 40)),
}
"""Some of which each way takes."""


@pytest.mark.parametrize("name", WAYS)
def test_each_way_is_taken(tmp_path, name):
    before = taken[name]
    for number, case in enumerate(PLAIN.values()):
        check(all_ways(tmp_path / str(number), case, [name]), case)

    assert taken[name] > before


_MANY = 1000
N_DRAWS = usually(70, full=_MANY)


def test_all_ways_agree(tmp_path):
    """Of many draws, at least one takes each way."""
    before, n_done = Counter(taken), 0
    for number in range(N_DRAWS):
        case = draw_case(Random(f"{SEED} {number}"))
        try:
            check(all_ways(tmp_path / str(number), case), case)
        except NotWrittenError:
            continue
        except Exception as err:
            err.add_note(f"XARRAY_GPUZARR_TEST_SEED={SEED}, draw {number}: {case}")
            raise
        n_done += 1
    assert n_done > N_DRAWS / 2
    assert N_DRAWS < _MANY or [name for name in WAYS if taken[name] == before[name]] == []


@given(st.randoms())
def test_all_ways_agree_on_what_hypothesis_draws(tmp_path_factory, rng):
    """So that a difference is shrunk to a small one."""
    case = draw_case(rng)
    note(str(case))
    try:
        check(all_ways(tmp_path_factory.mktemp("ways"), case), case)
    except NotWrittenError:
        assume(False)


# ---- what the draws have found


@pytest.mark.parametrize(("endian", "factor"), [("big", 1), ("little", 1), ("little", 0)])
def test_raw_chunks_in_requests_that_end_within_an_element(monkeypatch, endian, factor):
    data = np.arange(6, dtype="i4") * factor  # of nothing but zeros, the chunk is missing
    array = write(AskedStore(), data, chunks=(6,), compressors=None, serializer=BytesCodec(endian=endian))
    monkeypatch.setattr(in_force, "options", FetchOptions(max_request_nbytes=6))

    np.testing.assert_array_equal(read_array(array, device="host"), data)


def test_a_raw_object_that_is_cut_is_a_damaged_chunk_in_several_requests_too(monkeypatch):
    """As it is in one, of up to 8 MiB."""
    array = write(AskedStore(), np.arange(6, dtype="i4"), chunks=(6,), compressors=None)
    put(array.store, "c/0", b"too short")
    monkeypatch.setattr(in_force, "options", FetchOptions(max_request_nbytes=16))

    with pytest.raises(CorruptChunkError):
        read_array(array, device="host")
