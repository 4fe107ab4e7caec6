"""Whichever way a chunk takes on the host, from its file to the output, the result is the same, bit for bit.

Arrays, selections, casts and damage are drawn anew in each session; all ways read each of them, and zarr-python and
NumPy say what is right. ``HYPOTHESIS_PROFILE=search`` draws 2000, ``XARRAY_GPUZARR_TEST_SEED`` the same again.
"""

import re
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers.data.ways_cases import (
    NAME,
    Case,
    Damage,
    Selected,
    Stored,
    cases,
    cast_of,
    damage,
    numpy_cast,
    write_case,
)
from helpers.effort import at_least
from helpers.every_pair import SEED
from helpers.stores.fakes import AskedStore
from helpers.ways import WAYS, Way, is_taken, require, taking
from hypothesis import assume, event, given, note, seed, settings
from hypothesis import strategies as st
from zarr.buffer import cpu
from zarr.storage import LocalStore, MemoryStore

from xarray_gpuzarr import GpuZarrError, zarr_pipeline
from xarray_gpuzarr.decoders.host import HostDecoder
from xarray_gpuzarr.plan.stack import Crops, stack_target
from xarray_gpuzarr.read import read, read_target, stored_array
from xarray_gpuzarr.read.trunk import read_points
from xarray_gpuzarr.stored.array_spec import Unplanned

pytestmark = pytest.mark.filterwarnings("ignore")

Outcome = tuple[str, ...] | bytes
taken: Counter[str] = Counter()
"""How many reads were seen to take each way."""


@pytest.fixture(scope="module", autouse=True)
def compiled():
    require()


def opened(path, way: Way) -> zarr.Array:
    if way.store == "local":
        store = LocalStore(path, read_only=True)
    else:
        objects = {
            str(file.relative_to(path)): cpu.Buffer.from_bytes(file.read_bytes())
            for file in path.rglob("*")
            if file.is_file()
        }
        store = (MemoryStore if way.store == "memory" else AskedStore)(objects)
    if way.by == "pipeline":
        with zarr_pipeline():
            return zarr.open_array(store, path=NAME, mode="r")
    return zarr.open_array(store, path=NAME, mode="r")


def by_the_pipeline(array, selected: Selected) -> np.ndarray:
    if selected.kind == "points":
        return np.asarray(array.vindex[tuple(c % n for c, n in zip(selected.key, array.shape, strict=True))])
    key = tuple(np.asarray(k) if isinstance(k, list) else k for k in selected.key)
    is_basic = all(isinstance(k, slice | int) for k in key)
    return np.asarray(array[key] if is_basic else array.oindex[key])


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
    array = write_case(path, case)
    values = np.asarray(array[...])
    cast = cast_of(case, values)
    damage(path, case)
    is_planned = not isinstance(stored_array(array, cast).spec, Unplanned)
    assume(is_planned or case.damage.kind == "none")
    shape = box_shape(case.selected, values.shape)
    found = {}
    for name in names:
        way = WAYS[name]
        if not can(way, case, is_planned):
            continue
        with taking(name, case.stored.chunk_nbytes, case.n_threads) as notes, np.errstate(all="ignore"):
            array = opened(path, way)
            if way.by == "pipeline":
                reads = [outcome(lambda: by_the_pipeline(array, case.selected)) for _ in range(way.reads)]
            else:
                reads = [outcome(lambda: by_a_read(array, case.selected, cast, shape)) for _ in range(way.reads)]
            found[name] = reads
            taken[name] += is_taken(name, notes)
    found["zarr-python"] = [by_zarr(path, case, cast)]
    return found


def by_zarr(path: Path, case: Case, cast) -> np.ndarray | None:
    """What zarr-python reads now; None if it cannot."""
    with np.errstate(all="ignore"):
        try:
            values = np.asarray(zarr.open_array(LocalStore(path), path=NAME, mode="r")[...])
        except Exception:
            if case.damage.kind == "none":
                raise
            return None
        return case.selected.of(numpy_cast(cast, values))


def check(found: dict[str, list], case: Case) -> None:
    (right,) = found.pop("zarr-python")
    results = {f"{name} {i}": one for name, reads in found.items() for i, one in enumerate(reads)}
    errors = {name: one for name, one in results.items() if isinstance(one, tuple)}
    values = {name: one for name, one in results.items() if not isinstance(one, tuple)}
    assert len(set(errors.values())) <= 1, errors
    if case.damage.kind == "none":
        assert errors == {}
    expected = right if right is not None else next(iter(values.values()), None)
    for name, one in values.items():
        assert (one.dtype, one.shape) == (expected.dtype, expected.shape), name
        if one.tobytes() != expected.tobytes():
            raise AssertionError(f"{name}:\n{one!r}\nis not\n{expected!r}")
    if errors and values:
        careless = [name for name in values if not WAYS[name.rpartition(" ")[0]].decodes_parts]
        assert careless == [], f"values, where others have {next(iter(errors.values()))}"


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
PLAIN = {
    "a box": _case(),
    "everything raw": _case(shape=(9, 40), chunks=(3, 40), shards=(9, 40), compressor="none", selected=ALL),
    "raw files": _case(shards=None, compressor="none", selected=ALL),
    "raw long files": _case((512, 40), (256, 40), None, "<i8", "none", (slice(1, 300), slice(None))),
    "a shard of raw chunks": _case((512, 40), (16, 40), (256, 40), "<i8", "none", (slice(1, 300), slice(3, None))),
    "crops": replace(_case(), selected=Selected(kind="stack", key=CROPS, out="none")),
    "lz4": _case(compressor="lz4", shape=(20, 40), chunks=(10, 40), shards=(20, 40)),
}
"""Some of which each way takes."""


@pytest.mark.parametrize("name", WAYS)
def test_each_way_is_taken(tmp_path, name):
    before = taken[name]
    for number, case in enumerate(PLAIN.values()):
        check(all_ways(tmp_path / str(number), case, [name]), case)

    assert taken[name] > before


@seed(SEED)
@settings(at_least(100, full=600), derandomize=False, print_blob=False)
@given(cases())
def test_all_ways_agree(case):
    note(f"XARRAY_GPUZARR_TEST_SEED={SEED}")
    path = Path(tempfile.mkdtemp())
    try:
        try:
            found = all_ways(path, case)
        except (KeyError, ValueError, TypeError, OverflowError) as err:
            raise
        check(found, case)
    finally:
        shutil.rmtree(path)
