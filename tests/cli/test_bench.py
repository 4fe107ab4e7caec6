"""``gpuzarr bench``: what it reads, that it compares values, and what it says of readers that fail."""

import json
import math
import re

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.stores.range_server import RangeServer
from hypothesis import example, given
from hypothesis import strategies as st

from xarray_gpuzarr.cli import bench, main
from xarray_gpuzarr.cli.byte_ranges import sends_whole_objects

ENCODING = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "chunks": (2, 8), "shards": (4, 8)}
READERS = ["zarr, no dask", "gpuzarr, no dask", "zarr, chunks={}", "zarr, chunks=shards", "gpuzarr, chunks={}"]

pytestmark = pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated:RuntimeWarning")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A local store with one large and one small packed, sharded variable in a group, and times."""
    path = tmp_path_factory.mktemp("bench") / "s.zarr"
    field = np.arange(10 * 20.0).reshape(10, 20)
    field[3, 5] = np.nan
    times = np.datetime64("2026-01-01", "ns") + np.arange(1000)
    dataset = xr.Dataset({"t": (("y", "x"), field), "small": (("v", "u"), field[:4, :8]), "when": ("z", times)})
    dataset.to_zarr(path, group="g", consolidated=False, encoding={"t": ENCODING, "small": ENCODING})
    return str(path)


@pytest.fixture
def run(path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    return lambda *options: main(["bench", path, "--group", "/g/", "--rounds", "1", *options])


def rows(printed):
    """Return the cells of the table's rows, by reader."""
    found = (
        re.fullmatch(r"((?:gpu)?zarr, (?:no dask|chunks=(?:\{\}|shards))) +(.*)", line) for line in printed.splitlines()
    )
    return {row[1]: row[2].split() for row in found if row}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda values: values + (values == 14), "ValueError: other values than zarr, no dask: <f8 (10, 20)"),
        (lambda values: values.astype("f4"), "ValueError: other values than zarr, no dask: <f4 (10, 20)"),
        (lambda values: values[:, ::-1].T, "ValueError: other values than zarr, no dask: <f8 (20, 10)"),
        (lambda values: values[10**6], "IndexError: index 1000000 is out of bounds"),
    ],
)
def test_a_reader_that_fails_or_disagrees_is_reported_and_has_no_times(run, capsys, monkeypatch, change, said):
    stock_reads = bench.reads_of

    def changed(*where):
        reads = stock_reads(*where)
        return reads | {"gpuzarr, no dask": lambda: change(reads["gpuzarr, no dask"]())}

    monkeypatch.setattr(bench, "reads_of", changed)

    assert run() == 1

    printed = capsys.readouterr().out
    assert f"gpuzarr, no dask: {said}" in printed
    assert list(rows(printed)) == [name for name in READERS if name != "gpuzarr, no dask"]


def test_every_round_reads_anew(run, monkeypatch):
    n_reads, stock_reads = [], bench.reads_of
    dropped = {"zarr, no dask": lambda: n_reads.append(1) or np.zeros(1)}
    monkeypatch.setattr(bench, "reads_of", lambda *where: stock_reads(*where) and dropped)
    assert run("--rounds", "3") == 0
    assert len(n_reads) == 4


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ([], "g/t: 10\u00d720 int16, 400 B uncompressed"),
        (["--variable", "small"], "g/small: 4\u00d78 int16, 64 B uncompressed"),
        (["--nbytes", "200"], "g/t: 4\u00d720 of 10\u00d720 int16, 160 B uncompressed"),
    ],
)
def test_whole_shards_of_the_largest_variable_are_read_unless_another_is_named(run, capsys, options, read):
    assert run(*options) == 0
    assert capsys.readouterr().out.splitlines()[0] == read


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--variable", "when"], "found: variables that this engine reads: small, t"),
        (["--variable", "nonesuch"], "tried: variable 'nonesuch'"),
        (["--nbytes", "many"], "found: not a size such as 67108864, 64 MiB or 2GB"),
        (["--nbytes", "0"], "--nbytes must be at least 1"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--group", "nonesuch"], "NoGroupError: cannot open"),
    ],
)
def test_unusable_options_are_refused(run, capsys, options, said):
    assert run(*options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_damaged_array_below_sound_consolidated_metadata_is_named(tmp_path, capsys):
    xr.Dataset({"v": (("y", "x"), np.zeros((5, 5), "i2"))}).to_zarr(tmp_path, zarr_format=2, consolidated=True)
    document = json.loads((tmp_path / "v/.zarray").read_text())
    (tmp_path / "v/.zarray").write_text(json.dumps(document | {"chunks": [1, 6, 1]}))

    assert main(["bench", str(tmp_path), "--rounds", "1"]) == 2
    assert "must have the same length" in capsys.readouterr().err


def test_progress_is_shown_in_a_terminal_alone(run, capsys, monkeypatch):
    assert run() == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run() == 0
    told = [line.split("\x1b[K")[-1] for line in capsys.readouterr().err.split("\r")]
    assert told[1:3] == ["first read: zarr, no dask ...", "first read: gpuzarr, no dask ..."]
    assert told[6] == "round 1 of 1: gpuzarr, chunks={} ..."  # the order is turned round


def write_tree(store, **n_elements):
    """Write a group for each name, ``root`` or below it, with one variable of that many elements of 8 bytes."""
    for name, n in n_elements.items():
        group = None if name == "root" else name.replace("_", "/")
        xr.Dataset({"t": ("x", np.zeros(n))}).to_zarr(store, group=group, mode="a", consolidated=False)
    return store


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], ["There are groups below that hold up to 800 B each: gpuzarr bench STORE --group b/c"]),
        (["--group", "b"], ["There are groups below that hold up to 800 B each: gpuzarr bench STORE --group b/c"]),
        (["--group", "b/c"], []),
        (["--variable", "t"], []),
        (["--nbytes", "80"], []),
    ],
)
def test_groups_that_hold_more_than_a_small_array_are_named(tmp_path, capsys, options, told):
    path = write_tree(str(tmp_path / "s.zarr"), root=10, a=20, b=1, b_c=100)

    assert main(["bench", path, "--rounds", "1", *options]) == 0

    assert [line for line in capsys.readouterr().out.splitlines() if "groups" in line] == told


def test_groups_that_hold_less_are_not_named(tmp_path, capsys):
    path = write_tree(str(tmp_path / "s.zarr"), root=10, a=5)

    assert main(["bench", path, "--rounds", "1"]) == 0

    assert "groups" not in capsys.readouterr().out


def test_groups_of_a_distant_store_may_hold_more(tmp_path, capsys):
    url = write_tree(f"memory://{tmp_path.name}/s.zarr", root=10, a=5)

    assert main(["bench", url, "--rounds", "1"]) == 0

    told = capsys.readouterr().out.splitlines()[1]
    assert told == "There are groups below that may hold more: gpuzarr bench STORE --group a"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of a store with shards of several chunks, and of an array without chunks."""
    folder = tmp_path_factory.mktemp("served")
    field = np.arange(10 * 20.0).reshape(10, 20)
    xr.Dataset({"t": (("y", "x"), field)}).to_zarr(folder / "s.zarr", zarr_format=3, encoding={"t": ENCODING})
    zarr.create_array(folder / "empty.zarr", shape=(4,), dtype="i2")
    with RangeServer(folder) as server:
        yield server


@pytest.fixture
def without_ranges(server):
    """The server, which sends whole objects."""
    server.spoil({"kind": "no ranges"})
    yield server
    server.spoil()


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_server_without_byte_ranges_is_named_and_the_other_readers_go_on(without_ranges, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")

    assert main(["bench", f"{without_ranges.url}/s.zarr", "--rounds", "1"]) == 0

    printed = capsys.readouterr().out
    assert list(rows(printed)) == [name for name in READERS if name.startswith("gpuzarr")]
    assert "zarr, chunks={}: ValueError: Stored and computed checksum do not match" in printed
    assert "\nThis server gives no byte ranges: " in printed


@pytest.mark.parametrize("failing", ["gpuzarr, no dask", "zarr, no dask"])
def test_only_stock_readers_may_fail_where_there_are_no_byte_ranges(without_ranges, monkeypatch, failing):
    stock_reads = bench.reads_of
    monkeypatch.setattr(bench, "reads_of", lambda *where: stock_reads(*where) | {failing: lambda: 1 / 0})

    status = main(["bench", f"{without_ranges.url}/s.zarr", "--rounds", "1"])

    assert status == (1 if failing.startswith("gpuzarr") else 0)


def test_a_stock_reader_that_fails_with_byte_ranges_is_a_failure(server, capsys, monkeypatch):
    stock_reads = bench.reads_of
    monkeypatch.setattr(bench, "reads_of", lambda *where: stock_reads(*where) | {"zarr, no dask": lambda: 1 / 0})

    assert main(["bench", f"{server.url}/s.zarr", "--rounds", "1"]) == 1

    assert "byte ranges" not in capsys.readouterr().out


def test_whether_a_server_gives_byte_ranges_is_not_known_without_an_object(without_ranges):
    sharded = zarr.open_array(f"{without_ranges.url}/s.zarr", path="t", mode="r")
    empty = zarr.open_array(f"{without_ranges.url}/empty.zarr", mode="r")

    assert sends_whole_objects(sharded)
    assert not sends_whole_objects(empty)


@given(
    axes=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 60)), min_size=1, max_size=4),
    most=st.integers(1, 10**6),
)
@example(axes=[(10, 3), (7, 7)], most=1)
def test_the_corner_is_whole_shards_within_the_limit(axes, most):
    shape, whole = zip(*axes, strict=True)

    box = bench.corner_box(shape, whole, 2, most)

    assert all(part.start == 0 for part in box)
    assert all(part.stop == n or part.stop % w == 0 for part, n, w in zip(box, shape, whole, strict=True))
    nbytes = 2 * math.prod(part.stop for part in box)
    one_shard = all(part.stop == min(n, w) for part, n, w in zip(box, shape, whole, strict=True))
    assert nbytes <= most or one_shard
    assert nbytes * 4 > min(most, 2 * math.prod(shape)) or any(w * 4 > n for n, w in zip(shape, whole, strict=True))


def test_the_corner_of_a_scalar_is_all_of_it():
    assert bench.corner_box((), (), 8, 1) == ()
