"""``gpuzarr bench``: what it compares, what it says of readers that cannot take part, and what it reads."""

import copy
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.here_and_now import HereAndNow
from helpers.stores.s3_server import BUCKET, S3Server
from hypothesis import example, given
from hypothesis import strategies as st
from zarr.codecs.numcodecs import Zlib

from xarray_gpuzarr.cli import bench as command
from xarray_gpuzarr.cli import main
from xarray_gpuzarr.machine.bench import child
from xarray_gpuzarr.machine.bench.child import checksum
from xarray_gpuzarr.machine.bench.readers import READERS, AbsentError, Location
from xarray_gpuzarr.machine.bench.rounds import corner_box

ENCODING = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "chunks": (2, 8), "shards": (4, 8)}
FIRST, OURS = READERS["zarr default"], READERS["gpuzarr"]

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
def bench_of(monkeypatch, path):
    """Return a call that runs the command in this process, with the readers given."""
    monkeypatch.setattr("xarray_gpuzarr.machine.bench.crew.process", HereAndNow)
    before = copy.deepcopy(zarr.config.config)

    def run(*readers, options=()):
        by_name = {reader.name: reader for reader in readers}
        for module in (command, child):
            monkeypatch.setattr(module, "READERS", by_name)
        return main(["bench", path, "--group", "/g/", "--rounds", "1", *options])

    yield run
    zarr.config.config.clear()
    zarr.config.update(before)


def opened(reader, change):
    """Return a reader whose results are changed on their way out."""

    def open_changed(location):
        read_box = reader.open(location)
        return lambda box: change(read_box(box))

    return replace(reader, name="changed", open=open_changed)


def test_readers_in_processes_of_their_own_agree(path, tmp_path, capsys):
    out = tmp_path / "folder" / "bench.json"
    parts = ["zarr Fused, no", "TensorStore", "xarray gpuzarr, "]

    assert main(["bench", path, "--group", "g", "--rounds", "2", "--out", str(out), "--readers", *parts]) == 0

    printed = capsys.readouterr().out
    document = json.loads(out.read_text())
    rows = {row["reader"]: row for row in document["rows"]}
    assert list(rows) == [
        "TensorStore",
        "xarray zarr Fused, no dask",
        "xarray gpuzarr, chunks={}",
        "xarray gpuzarr, no dask",
    ]
    assert [len(row["samples"]) for row in rows.values()] == [2] * 4
    assert all(sample["wall_s"] > 0 for row in rows.values() for sample in row["samples"])
    assert all(row["extra_nbytes"] is not None for row in rows.values())
    assert (document["array"], document["dtype"], document["shape"]) == ("g/t", "int16", [10, 20])
    assert (document["box"], document["nbytes"]) == ([[0, 10], [0, 20]], 400)
    assert "g/t: 10\u00d720 int16, 400 B uncompressed" in printed
    assert all(name.removeprefix("xarray ") in printed for name in rows)


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.device == "host"])
def test_every_reader_reads_the_same_box(path, name):
    location, box = Location(store=path, group="g", variable="t"), (slice(0, 8), slice(0, 16))
    reader = READERS[name]
    if reader.needs:
        pytest.importorskip(reader.needs[0])
    engine = {"read": {"mask_and_scale": False}, "load": {}}[reader.operation]
    with xr.open_dataset(path, engine="zarr", group="g", consolidated=False, chunks=None, **engine) as stock:
        expected = stock["t"].values[box]
    with zarr.config.set(dict(reader.settings)):
        values = reader.open(location)(box)
    np.testing.assert_array_equal(np.asarray(values), expected, strict=True)


@pytest.mark.parametrize("width", [60, 80])
def test_nothing_is_cut_from_tables_in_narrow_terminals(bench_of, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    reader = READERS["xarray gpuzarr, no dask"]

    assert bench_of(reader, replace(reader, name="q" * 40)) == 0

    printed = capsys.readouterr().out
    table = printed[printed.index("other reader\n") :]
    assert "\N{HORIZONTAL ELLIPSIS}" not in table
    assert max(map(len, table.splitlines()[1:])) <= width
    assert table.count("q") == 40
    assert " ".join(table.splitlines()[1].split()) == "reader ms min-max GB/s CPU ms extra MB / peer"


def test_options_of_a_remote_store_reach_every_reader(bench_of, path, tmp_path, capsys):
    parts = ["zarr default", "gpuzarr", "xarray zarr default, no"]
    with S3Server() as server:
        server.check_keys()
        keys = {"endpoint_url": server.url, "key": server.key_id, "secret": server.secret}
        options = [f"--storage-options={name}={value}" for name, value in keys.items()]
        url = f"s3://{BUCKET}/{tmp_path.name}.zarr"
        with xr.open_dataset(path, engine="zarr", group="g", consolidated=False) as field:
            field[["t"]].load().to_zarr(url, group="g", consolidated=False, storage_options=keys)

        assert main(["bench", url, "--group", "g", "--rounds", "1", "--readers", *parts, *options[:1]]) == 2
        refused = capsys.readouterr().err
        assert main(["bench", url, "--group", "g", "--rounds", "1", "--readers", *parts, *options]) == 0
        printed = capsys.readouterr().out

    assert "give credentials that may read it" in refused
    assert server.secret not in refused + printed
    table = {line.split("  ")[0] for line in printed.splitlines()}
    assert {"zarr default", "gpuzarr", "zarr default, no dask", "gpuzarr, no dask"} <= table


def test_readers_that_cannot_take_part_are_named_and_are_no_failure(bench_of, capsys):
    def elsewhere(_):
        raise AbsentError("compared on local folders only")

    absent = replace(FIRST, name="nonesuch", needs=("nonesuch.zarr", "nonesuch-cu13"))
    remote = replace(FIRST, name="remote", open=elsewhere)

    assert bench_of(FIRST, absent, remote, replace(OURS, device="cuda", name="on a GPU")) == 0

    printed = capsys.readouterr().out.splitlines()
    assert "nonesuch: not installed (pip install nonesuch-cu13)" in printed
    assert "remote: compared on local folders only" in printed
    assert any(line.startswith("on a GPU: missing: ") for line in printed)


def test_tensorstore_is_compared_on_local_folders(path):
    with pytest.raises(AbsentError, match="local folders"):
        READERS["TensorStore"].open(Location(store="memory://s.zarr", variable="t"))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"zarr_format": 2}, "reads Zarr v3 only"), ({"compressors": Zlib()}, "codec numcodecs.zlib is not supported")],
)
def test_zarrista_takes_no_part_where_it_cannot_read(tmp_path, options, said):
    pytest.importorskip("zarrista")
    zarr.create_array(tmp_path, name="t", shape=8, dtype="i4", **options)
    with pytest.raises(AbsentError, match=said):
        READERS["zarrista"].open(Location(store=str(tmp_path), variable="t"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda values: values + (values == 14), "other values than zarr default: <i2 (10, 20)"),
        (lambda values: values.astype("i4"), "other values than zarr default: <i4 (10, 20)"),
        (lambda values: values[:, ::-1].T.copy(), "other values than zarr default: <i2 (20, 10)"),
        (lambda values: values[10**6], "IndexError: index 1000000 is out of bounds"),
    ],
)
def test_a_reader_that_fails_or_disagrees_is_reported(bench_of, capsys, change, said):
    assert bench_of(FIRST, opened(OURS, change)) == 1
    assert f"changed: {said}" in capsys.readouterr().out


def test_a_reader_that_fails_later_has_no_times(bench_of, capsys):
    calls = iter([False, True])

    def fail_later(values):
        if next(calls):
            raise OSError("gone")
        return values

    assert bench_of(FIRST, opened(OURS, fail_later)) == 1
    printed = capsys.readouterr().out
    assert "changed: OSError: gone" in printed
    assert "zarr default " in printed


def test_the_largest_variable_is_read_unless_one_is_named(bench_of, capsys):
    assert bench_of(FIRST) == 0
    assert bench_of(FIRST, options=["--variable", "small"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("g/")] == [
        "g/t: 10\u00d720 int16, 400 B uncompressed",
        "g/small: 4\u00d78 int16, 64 B uncompressed",
    ]


def test_whole_shards_are_read_up_to_the_limit(bench_of, capsys):
    assert bench_of(FIRST, options=["--nbytes", "200"]) == 0
    assert "g/t: 4\u00d720 of 10\u00d720 int16, 160 B uncompressed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--variable", "when"], "found: variables that this engine reads: small, t"),
        (["--variable", "nonesuch"], "tried: variable 'nonesuch'"),
        (["--nbytes", "many"], "found: not a size such as 67108864, 64 MiB or 2GB"),
        (["--nbytes", "0"], "--nbytes must be at least 1"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--readers", "nonesuch"], "found: valid readers: zarr default; gpuzarr"),
        (["--group", "nonesuch"], "NoGroupError: cannot open"),
    ],
)
def test_unusable_options_are_refused(bench_of, capsys, options, said):
    assert bench_of(FIRST, OURS, options=options) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("out", ["{tmp}", "{tmp}/file/out.json", "{tmp}/file/below/out.json", "/proc/nowhere/out.json"])
def test_timings_that_cannot_be_written_are_told_before_anything_is_measured(bench_of, tmp_path, capsys, out):
    (tmp_path / "file").touch()
    out = out.format(tmp=tmp_path)

    assert bench_of(FIRST, OURS, options=["--out", out]) == 2

    printed = capsys.readouterr()
    assert f"tried: --out {out}" in printed.err
    assert printed.out == ""


def test_progress_and_an_estimate_are_shown_in_a_terminal(bench_of, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    assert bench_of(FIRST, OURS, options=["--rounds", "2"]) == 0

    printed = re.sub(r"\d+ s left", "some s left", capsys.readouterr().err)
    told = [line.split("\x1b[K")[-1] for line in printed.split("\r")]
    assert told[1:] == [
        "read: getting ready ...",
        "read: first run, 1 of 2: zarr default ...",
        "read: first run, 2 of 2: gpuzarr ...",
        "read: round 1 of 2: zarr default ...",
        "read: round 1 of 2, some s left: gpuzarr ...",
        "read: round 2 of 2, some s left: gpuzarr ...",
        "read: round 2 of 2, some s left: zarr default ...",
        "",
    ]


def test_nothing_of_it_is_shown_where_there_is_no_terminal(bench_of, capsys):
    assert bench_of(FIRST, OURS) == 0
    assert capsys.readouterr().err == ""


def test_no_file_is_left_where_nothing_was_measured(bench_of, tmp_path):
    assert bench_of(FIRST, OURS, options=["--variable", "nonesuch", "--out", str(tmp_path / "out.json")]) == 2
    assert list(tmp_path.iterdir()) == []


def test_checksums_know_no_byte_order_and_one_nan():
    values = np.array([1, np.nan, -np.nan], "f4")
    other = values.astype(">f4")
    other.view(">u4")[1] |= 1  # another payload
    assert checksum(values) == checksum(other) == checksum(np.stack([values, values])[:, ::1][0])
    assert checksum(values) != checksum(values[::-1])


@given(
    axes=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 60)), min_size=1, max_size=4),
    most=st.integers(1, 10**6),
)
@example(axes=[(10, 3), (7, 7)], most=1)
def test_the_corner_is_whole_shards_within_the_limit(axes, most):
    shape, whole = zip(*axes, strict=True)

    box = corner_box(shape, whole, 2, most)

    assert all(part.start == 0 for part in box)
    assert all(part.stop == n or part.stop % w == 0 for part, n, w in zip(box, shape, whole, strict=True))
    nbytes = 2 * math.prod(part.stop for part in box)
    one_shard = all(part.stop == min(n, w) for part, n, w in zip(box, shape, whole, strict=True))
    assert nbytes <= most or one_shard
    assert nbytes * 4 > min(most, 2 * math.prod(shape)) or any(w * 4 > n for n, w in zip(shape, whole, strict=True))


def test_the_corner_of_a_scalar_is_all_of_it():
    assert corner_box((), (), 8, 1) == ()
