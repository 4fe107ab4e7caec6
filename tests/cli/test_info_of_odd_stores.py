"""``gpuzarr info`` on stores that are odd, incomplete or damaged: a table or three lines, never a traceback."""

import json
import random
import shutil

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.every_pair import usually
from helpers.stores.s3_server import BUCKET, S3Server
from zarr.storage import LocalStore

from xarray_gpuzarr.backend.lazy_array import LazyArray
from xarray_gpuzarr.cli import contents, main, terminal
from xarray_gpuzarr.cli.lengths_of_files import disk_nbytes
from xarray_gpuzarr.read import stored_array

pytestmark = pytest.mark.filterwarnings("ignore")

FIELD = np.arange(24.0).reshape(4, 6)
ODD = {
    "scalar": ((), np.int32(7)),
    "scalar_float": ((), 3.5),
    "no_elements": (("y", "none"), np.empty((4, 0))),
    "none_at_all": ("none", np.empty(0, "i2")),
    "truth": ("y", np.array([True, False, True, False])),
    "complex": ("y", np.ones(4, "c16")),
    "text": ("y", list("abcd")),
    "scalar_text": ((), "text"),
    "bytes": ("y", np.array([b"a", b"bc", b"", b"d"])),
    "when": ((), np.datetime64("2020-01-01", "ns")),
    "field": (("y", "x"), FIELD),
}


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def nbytes_rows(out):
    """Return the rows of the table of bytes, by the name of their variable."""
    lines = iter(out.splitlines())
    next(line for line in lines if "on disk" in line)
    next(lines)
    rows = [line.split() for line in iter(lambda: next(lines, ""), "")]
    return {row[0]: " ".join(row[1:]) for row in rows}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_every_numeric_variable_has_its_bytes(zarr_format, tmp_path, capsys):
    xr.Dataset(ODD).to_zarr(tmp_path / "s.zarr", zarr_format=zarr_format)

    assert main(["info", str(tmp_path / "s.zarr"), "--all"]) == 0

    rows = nbytes_rows(capsys.readouterr().out)
    assert set(rows) == {"scalar", "scalar_float", "no_elements", "none_at_all", "truth", "complex", "field"}
    assert rows["scalar"].endswith("4 B 4 B 4 B")
    assert rows["none_at_all"].endswith("0 B 0 B 0 B")


def test_storage_options_reach_the_store(capsys, tmp_path):
    with S3Server() as server:
        server.check_keys()
        keys = {"endpoint_url": server.url, "key": server.key_id, "secret": server.secret}
        options = [f"--storage-options={name}={value}" for name, value in keys.items()]
        url = f"s3://{BUCKET}/{tmp_path.name}.zarr"
        xr.Dataset({"field": (("y", "x"), FIELD)}).to_zarr(url, group="g", storage_options=keys)

        assert main(["info", url, *options]) == 0
        assert "  g  1 array, 192 B decompressed" in capsys.readouterr().out.splitlines()
        assert main(["info", url, *options, "--group", "none"]) == 2
        out, err = capsys.readouterr()

    assert err.splitlines()[3] == "  do:    name one of the groups in this store: g"
    assert server.secret not in out + err


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("anon=true", ("anon", True)),
        ("key=a=b", ("key", "a=b")),
        ('secret="123"', ("secret", "123")),
        ('client_kwargs={"region_name": "us-east-1"}', ("client_kwargs", {"region_name": "us-east-1"})),
        ("token=", ("token", "")),
    ],
)
def test_values_of_storage_options(text, option):
    assert terminal.storage_option(text) == option


@pytest.mark.parametrize("text", ["anon", "=true"])
def test_storage_options_without_key_or_value(text, capsys):
    assert_three_lines(capsys, main(["info", "s3://b/s.zarr", "--storage-options", text]), "no KEY=VALUE")


def test_a_storage_option_without_a_key_is_not_shown(capsys):
    main(["info", "s3://b/s.zarr", "--storage-options", "hunter2"])

    assert "hunter2" not in capsys.readouterr().err


def test_structured_elements(tmp_path, capsys):
    dtype = np.dtype([("a", "i4"), ("b", "f8")])
    zarr.create_group(tmp_path / "s.zarr").create_array("pair", shape=(3,), dtype=dtype, dimension_names=["x"])

    assert main(["info", str(tmp_path / "s.zarr")]) == 0

    assert "pair" in capsys.readouterr().out


def groups_told(address, capsys):
    """Return the lines about groups that `info` prints of a store."""
    assert main(["info", address]) == 0
    return capsys.readouterr().out.split("\n\n")[0].splitlines()[1:]


def test_groups_of_a_zip_file_are_those_of_its_folder(tmp_path, capsys):
    for group in (None, "a", "a/b"):
        xr.Dataset({"t": ("x", [1.0])}).to_zarr(tmp_path / "in/s.zarr", group=group, mode="a", consolidated=False)
    packed = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "in")
    itself = shutil.make_archive(str(tmp_path / "itself"), "zip", tmp_path / "in/s.zarr")

    told = [groups_told(address, capsys) for address in (f"{tmp_path}/in/s.zarr", f"zip://s.zarr::{packed}")]

    assert told[0] == told[1] == groups_told(f"zip::{itself}", capsys)
    assert told[0][2].split() == ["a/b", "1", "array,", "8", "B", "decompressed"]


def test_groups_of_a_distant_store_are_said_to_be_only_named(tmp_path, capsys):
    url = f"memory://{tmp_path.name}/s.zarr"
    for group in (None, "a", "a/b"):
        xr.Dataset({"t": ("x", [1.0])}).to_zarr(url, group=group, mode="a", consolidated=False)

    remark = "groups without a number were not opened, and those below them not listed; --all opens all"
    assert groups_told(url, capsys)[1:] == ["  a", remark]


def test_a_group_without_arrays_is_told_from_one_that_was_not_opened(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(contents, "_MOST_LISTED", 1)
    root = zarr.create_group(tmp_path / "s.zarr")
    for name in ("first", "second"):
        root.create_group(name)

    *groups, remark = groups_told(str(tmp_path / "s.zarr"), capsys)[1:]

    assert sorted(group.split() for group in groups) in (
        [["first", "0", "arrays"], ["second"]],
        [["first"], ["second", "0", "arrays"]],
    )
    assert remark.startswith("groups without a number were not opened")


def test_sixty_variables_are_sixty_lines(tmp_path, capsys):
    names = [f"v{i:02}" for i in range(60)]
    store = tmp_path / "s.zarr"
    xr.Dataset(dict.fromkeys(names, (("y", "x"), FIELD))).to_zarr(store)

    assert main(["info", str(store), "--device", "host"]) == 0
    brief = capsys.readouterr().out.splitlines()
    assert main(["info", str(store), "--device", "host", "--all"]) == 0
    whole = capsys.readouterr().out

    of_variables = [line for line in brief if line.startswith("v")]
    assert [line.split()[0] for line in of_variables] == names
    assert of_variables[0] == "v00  float64  4\u00d76  192 B  1 chunk of 4\u00d76  host"
    assert len(brief) < 66
    assert list(nbytes_rows(whole)) == names


def test_a_tree_is_one_line_a_group(tmp_path, capsys):
    store = tmp_path / "s.zarr"
    for group in ("a", "a/b", "a/b/c", "d"):
        xr.Dataset({"t": (("y", "x"), FIELD)}).to_zarr(store, group=group, mode="a", consolidated=False)

    assert main(["info", str(store)]) == 0
    of_root = capsys.readouterr().out.splitlines()
    assert main(["info", str(store), "--group", "a"]) == 0
    of_group = capsys.readouterr().out.splitlines()

    assert of_root[2:] == [
        "  a      1 array, 192 B decompressed",
        "  a/b    1 array, 192 B decompressed",
        "  a/b/c  1 array, 192 B decompressed",
        "  d      1 array, 192 B decompressed",
    ]
    assert of_group[2:4] == ["  a/b    1 array, 192 B decompressed", "  a/b/c  1 array, 192 B decompressed"]


def test_many_groups_are_cut_short(tmp_path, capsys):
    root = zarr.create_group(tmp_path / "s.zarr")
    for i in range(40):
        root.create_group(f"g{i:02}")

    assert main(["info", str(tmp_path / "s.zarr")]) == 0
    brief = capsys.readouterr().out.splitlines()
    assert main(["info", str(tmp_path / "s.zarr"), "--all"]) == 0
    whole = capsys.readouterr().out.splitlines()

    assert len(brief) == 2 + 30 + 1
    assert brief[-1] == "  and 10 more groups; --all shows them"
    assert len(whole) == 2 + 40


def test_a_damaged_group_below_is_named_as_such(tmp_path, capsys):
    root = zarr.create_group(tmp_path / "s.zarr").create_group("below")
    root.create_group("deep")
    (tmp_path / "s.zarr/below/deep/zarr.json").write_text("{")

    assert main(["info", str(tmp_path / "s.zarr")]) == 0

    assert "  below  JSONDecodeError: " in capsys.readouterr().out


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_all_of_it_as_json(zarr_format, tmp_path, capsys):
    store = tmp_path / "s.zarr"
    xr.Dataset(ODD).to_zarr(store, zarr_format=zarr_format, consolidated=False)
    xr.Dataset({"t": (("y", "x"), FIELD)}).to_zarr(store, zarr_format=zarr_format, group="a/b", consolidated=False)

    assert main(["info", str(store), "--json", "--device", "host"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert (document["store"], document["group"], document["zarr_format"]) == (str(store), "/", zarr_format)
    assert [group["path"] for group in document["groups"]] == ["a", "a/b"]
    assert document["groups"][1]["n_arrays"] == 1
    rows = {row["variable"]: row for row in document["variables"]}
    assert rows.keys() == ODD.keys()
    assert rows["field"]["shape"] == rows["field"]["task_shape"] == rows["field"]["chunk_shape"] == [4, 6]
    assert (rows["field"]["decoded_nbytes"], rows["field"]["where"]) == (192, "host")
    assert rows["field"]["disk_nbytes"] == disk_nbytes(lazy(store, "field"))
    assert "task_shape" not in rows["when"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_empty_group(zarr_format, tmp_path, capsys):
    zarr.create_group(tmp_path / "s.zarr", zarr_format=zarr_format)

    assert main(["info", str(tmp_path / "s.zarr")]) == 0

    said = f"{tmp_path}/s.zarr, group /, Zarr format {zarr_format}, metadata not consolidated\n"
    assert capsys.readouterr().out == said


def assert_three_lines(capsys, status, found):
    """Assert that a command has failed as all commands do."""
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert [line.split(":")[0].strip() for line in err.splitlines()[1:]] == ["tried", "found", "do"]
    assert found in err.splitlines()[2]


@pytest.fixture
def consolidated(tmp_path):
    """A store with two fields and a group, whose metadata are consolidated."""
    path = tmp_path / "s.zarr"
    fields = {"a": (("y", "x"), FIELD), "b": (("y", "x"), FIELD)}
    xr.Dataset(fields).to_zarr(path, encoding={"a": {"chunks": (2, 3)}}, consolidated=False)
    xr.Dataset(fields).to_zarr(path, group="sub", consolidated=False)
    zarr.consolidate_metadata(path)
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (shutil.rmtree, "no files 192 B 192 B 48 B"),
        (lambda folder: (shutil.rmtree(folder), folder.write_text("")), "no files 192 B 192 B 48 B"),
        (lambda folder: (folder / "loop").symlink_to("loop"), "not counted"),
    ],
    ids=["missing", "a file", "a link to itself"],
)
def test_an_array_whose_folder_is_odd(consolidated, capsys, change, said):
    change(consolidated / "a")

    assert main(["info", str(consolidated)]) == 0

    assert nbytes_rows(capsys.readouterr().out)["a"].startswith(said)


def lazy(path, name):
    return LazyArray(stored_array(zarr.open_group(LocalStore(path), mode="r")[name]), "host")


@pytest.mark.parametrize("group", ["", "sub"])
def test_it_says_where_metadata_are_not_consolidated(group, consolidated, capsys):
    assert main(["info", str(consolidated), "--group", group]) == 0
    assert "not consolidated" not in capsys.readouterr().out

    (consolidated / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    assert main(["info", str(consolidated), "--group", group]) == 0
    assert "metadata not consolidated" in capsys.readouterr().out.splitlines()[0]


def link_to_nothing(array, _elsewhere):
    (array / "c/0/0").unlink()
    (array / "c/0/0").symlink_to(array / "nowhere")


def links_to_each_other(array, _elsewhere):
    for name in ("first", "second"):
        (array / "c" / name).symlink_to(array)


def folder_elsewhere(array, elsewhere):
    shutil.move(array / "c", elsewhere)
    (array / "c").symlink_to(elsewhere)


@pytest.mark.parametrize(("link", "n_lost"), [(link_to_nothing, 1), (links_to_each_other, 0), (folder_elsewhere, 0)])
def test_every_file_behind_links_is_counted_once(consolidated, tmp_path, link, n_lost):
    before = disk_nbytes(lazy(consolidated, "a"))
    chunk_nbytes = (consolidated / "a/c/0/0").stat().st_size

    link(consolidated / "a", tmp_path / "elsewhere")

    assert disk_nbytes(lazy(consolidated, "a")) == before - n_lost * chunk_nbytes


def damaged_json(draw, document):
    """Return a document with one value, drawn at any depth, replaced or left out."""
    node = document
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw.choice(keys)
        inner = node[key]
        if not isinstance(inner, dict | list) or not inner or draw.random() < 0.2:
            break
        node = inner
    if draw.random() < 0.3:
        del node[key]
    else:
        node[key] = draw.choice([None, -1, 0, 2**70, 1.5, "", "\x1b[31m", [], {}, [[]], {"name": "?"}, True])


@pytest.mark.every_value
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("seed", range(usually(16, full=40)))
def test_damaged_stores_give_a_table_or_three_lines(seed, zarr_format, tmp_path, capsys):
    path, draw = tmp_path / "s.zarr", random.Random(seed)
    xr.Dataset(ODD).to_zarr(path, zarr_format=zarr_format, consolidated=seed % 2 == 0)
    xr.Dataset(ODD).to_zarr(path, zarr_format=zarr_format, group="sub", mode="a", consolidated=False)
    files = sorted(f for f in path.rglob("*") if f.is_file())
    for victim in draw.sample(files, 3):
        if victim.name in ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata") and draw.random() < 0.8:
            document = json.loads(victim.read_text())
            if document:
                damaged_json(draw, document)
            victim.write_text(json.dumps(document))
        elif draw.random() < 0.5:
            victim.unlink()
        else:
            victim.write_bytes(draw.randbytes(draw.randrange(40)))

    for group in ("", "sub"):
        status = main(["info", str(path), "--group", group, "--device", "host"])
        out, err = capsys.readouterr()
        assert status in (0, 2)
        assert (status == 0) == (err == "")
        assert bool(out) == (status == 0)
        assert "\x1b" not in out + err
