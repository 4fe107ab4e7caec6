"""What a store says is shown, never obeyed: hostile names through every door that leads to a terminal or a notebook."""

import json
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr import GpuZarrError, GpuZarrWarning
from xarray_gpuzarr.backend.accessor.explanation import Explanation, summarize
from xarray_gpuzarr.backend.accessor.variable_rows import Row
from xarray_gpuzarr.cli import demo, main
from xarray_gpuzarr.cluster import Stats
from xarray_gpuzarr.cluster.worker_stats import ProcessStats
from xarray_gpuzarr.errors import visible
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process.counters import Counts

pytestmark = pytest.mark.filterwarnings("ignore")

HOSTILE = {
    "colour": ("a\x1b[31mb", r"a\x1b[31mb"),
    "title": ("a\x1b]0;owned\x07b", r"a\x1b]0;owned\x07b"),
    "link": ("a\x1b]8;;http:evil\x07b", r"a\x1b]8;;http:evil\x07b"),
    "one byte control sequence": ("a\x9b31mb", r"a\x9b31mb"),
    "carriage return": ("a\rb", r"a\rb"),
    "backspace": ("a\x08b", r"a\x08b"),
    "delete": ("a\x7fb", r"a\x7fb"),
    "tab": ("a\tb", r"a\tb"),
    "line break": ("a\n  do:    run this", r"a\n  do:    run this"),
    "line separator": ("a\u2028b", r"a\u2028b"),
    "next line": ("a\x85b", r"a\x85b"),
    "right to left": ("a\u202egnp.exe", r"a\u202egnp.exe"),
    "isolate": ("a\u2066b\u2069", r"a\u2066b\u2069"),
    "no width": ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
    "tag": ("a\U000e0041b", r"a\U000e0041b"),
    "markup": ("a[red]b", "a[red]b"),
    "markup of a link": ("a[link=http:evil]b", "a[link=http:evil]b"),
    "emoji code": ("a:boom:b", "a:boom:b"),
    "HTML": ("a<script>b", "a<script>b"),
    "entity": ("a&lt;b", "a&lt;b"),
    "formula": ("a$b_{$", "a$b_{$"),
}
"""Names that a store can hold, and how they are to be seen."""
UNSTORABLE = {
    "end of markup": ("a[/]b", "a[/]b"),
    "end of an element": ("a</td>b", "a</td>b"),
    "path": (r"a\b", r"a\b"),
    "half a character": ("a\udc80b", r"a\udc80b"),
    "nul": ("a\x00b", r"a\x00b"),
}
"""Other text that errors and tables may hold."""


def joined(*kinds):
    """Return one name of several kinds, and how it is to be seen."""
    return tuple(map("".join, zip(*((HOSTILE | UNSTORABLE)[kind] for kind in kinds), strict=True)))


STORABLE = {
    "control": joined("colour", "title", "link", "one byte control sequence", "backspace", "delete", "tab"),
    "layout": joined(
        "carriage return", "line break", "line separator", "next line", "right to left", "isolate", "no width", "tag"
    ),
    "markup": joined("markup", "markup of a link", "emoji code", "HTML", "entity", "formula"),
}
stored_text = pytest.mark.parametrize(("name", "seen"), STORABLE.values(), ids=STORABLE)
any_text = pytest.mark.parametrize(
    ("name", "seen"), [*STORABLE.values(), joined(*UNSTORABLE)], ids=[*STORABLE, "unstorable"]
)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")


def assert_seen(text, seen):
    """Assert that a text shows a name, and that nothing in it is obeyed: its lines are printable."""
    assert seen in text
    assert all(line.isprintable() for line in text.split("\n"))


def assert_seen_in_html(text, seen):
    escaped = seen.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert_seen(text, escaped)
    assert "<script>" not in text
    assert escaped == seen or seen not in text


@many
@given(st.text(st.characters(codec=None)).filter(lambda text: "://" not in text))
def test_all_of_it_is_printable_and_the_printable_is_as_it_was(text):
    shown = visible(text)

    assert shown.isprintable()
    shown.encode()  # no half of a character
    assert visible(shown) == shown
    assert (shown == text) == text.isprintable()


@pytest.mark.parametrize(("name", "seen"), (HOSTILE | UNSTORABLE).values(), ids=HOSTILE | UNSTORABLE)
def test_what_would_be_obeyed_is_shown_as_an_escape(name, seen):
    assert visible(name) == seen


def error(name):
    return GpuZarrError(f"cannot read '{name}'", tried=f"key {name}", found=f"ETag {name}", do=f"mend {name}")


@any_text
def test_errors_which_keep_the_name_itself(name, seen):
    copy = pickle.loads(pickle.dumps(error(name)))

    lines = str(copy).split("\n")
    assert lines == [f"cannot read '{seen}'", f"  tried: key {seen}", f"  found: ETag {seen}", f"  do:    mend {seen}"]
    assert_seen(str(copy), seen)
    assert str(copy) == str(error(name))
    assert copy.tried == f"key {name}"


@any_text
def test_warnings_of_this_package(name, seen, monkeypatch):
    monkeypatch.setattr(advice, "warned", set())

    with pytest.warns(GpuZarrWarning) as warned:
        advice.advise("subject", f"'{name}'", found=name, do=name)

    assert str(warned[0].message).split("\n") == [f"'{seen}'", f"  found: {seen}", f"  do:    {seen}"]


@any_text
def test_tables(name, seen):
    texts = dict.fromkeys(["variable", "codecs", "cast", "where", "why", "storage"], name)
    row = Row(dims=(name,), shape=(1,), stored_dtype=None, dtype="i4", decoded_nbytes=4, **texts)
    explanation = Explanation(rows=(row,), note=f"note {name}")

    assert_seen(explanation.to_text(400), seen)
    assert_seen(str(explanation), f"note {seen}")
    assert all(line.isprintable() for line in explanation.to_text(60).split("\n"))
    assert_seen_in_html(explanation._repr_html_(), f"note {seen}")
    assert_seen(str(summarize([row], "host")), seen)
    assert_seen_in_html(summarize([row], "host").to_html(), seen)


@any_text
def test_names_of_workers(name, seen):
    rows = (ProcessStats(workers=(name,), process="1", counts=Counts()),)
    stats = Stats(rows=rows, note=f"Without {name}.")

    assert_seen(str(stats), f"Without {seen}.")
    assert_seen_in_html(stats._repr_html_(), f"Without {seen}.")


@pytest.fixture
def hostile(tmp_path, name):
    """A store that says the same hostile text wherever text may stand, with a group of that name."""
    path = tmp_path / "s.zarr"
    attributes = {"long_name": name, "units": name, name: name}
    field = xr.DataArray(np.arange(6.0).reshape(2, 3), dims=("y", f"x{name}"), name=name, attrs=attributes)
    dataset = field.to_dataset().assign_attrs(attributes)
    dataset.to_zarr(path, consolidated=False, encoding={name: {"chunks": (1, 3), "shards": (2, 3)}})
    dataset.to_zarr(path, group=f"g{name}", mode="a", consolidated=False)
    zarr.consolidate_metadata(path)
    return path


@stored_text
def test_datasets_arrays_and_trees(hostile, name, seen):
    dataset = xr.open_dataset(hostile, engine="gpuzarr", device="host")
    tree = xr.open_datatree(hostile, engine="gpuzarr", device="host")

    for described in (dataset, dataset[name], tree):
        assert_seen(repr(described.gpuzarr), seen)
        assert_seen_in_html(described.gpuzarr._repr_html_(), seen)
        assert_seen(described.gpuzarr.explain().to_text(400), seen)
        assert_seen_in_html(described.gpuzarr.explain()._repr_html_(), seen)


@stored_text
def test_names_of_tasks(hostile, name, seen):
    dataset = xr.open_dataset(hostile, engine="gpuzarr", device="host", chunks={})

    assert_seen(dataset[name].data.name, seen if "-" not in seen else seen.replace("-", "_"))
    np.testing.assert_array_equal(dataset[name].values, np.arange(6.0).reshape(2, 3))


@stored_text
def test_info(hostile, name, seen, capsys):
    assert main(["info", str(hostile), "--device", "host", "--gpu-memory", "24 GB"]) == 0

    out = capsys.readouterr().out
    assert_seen(out, f"PATH):\n  g{seen}")
    assert out.count(seen) == 5


@stored_text
def test_info_of_a_hostile_group(hostile, name, seen, capsys):
    assert main(["info", str(hostile), "--device", "host", "--group", f"g{name}"]) == 0

    assert_seen(capsys.readouterr().out, f"group /g{seen},")


@stored_text
def test_errors_of_damaged_stores(hostile, name, seen, capsys):
    metadata = hostile / "zarr.json"
    document = json.loads(metadata.read_text())
    document["consolidated_metadata"]["metadata"][name]["codecs"][0]["name"] = name
    metadata.write_text(json.dumps(document))

    assert main(["info", str(hostile)]) == 2

    err = capsys.readouterr().err
    assert_seen(err, "found: ")
    assert len(err.splitlines()) == 4


@stored_text
def test_warnings_of_others(hostile, name, seen, capsys):
    (hostile / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group"}))
    (hostile / f"not {name}").mkdir()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["info", str(hostile)]) == 0

    err = capsys.readouterr().err
    assert_seen(err, f"not {seen}")
    assert all(line.startswith("ZarrUserWarning: ") for line in err.splitlines())


@stored_text
def test_demo_draws_and_says_names(hostile, name, seen, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "ROUNDS", 1)

    assert main(["demo", "--source", str(hostile), "--dir", str(tmp_path / "out"), "--device", "host"]) == 0

    out = capsys.readouterr().out
    assert_seen(out, seen)
    assert (tmp_path / "out" / "s-sharded.png").read_bytes().startswith(b"\x89PNG")


@stored_text
def test_bench_names_the_variable(hostile, name, seen, capsys):
    assert main(["bench", str(hostile), "--rounds", "1", "--variable", "none"]) == 2

    assert_seen(capsys.readouterr().err, seen)


def test_a_command_prints_no_traceback_of_requests_that_failed_beside_the_first(tmp_path):
    path = tmp_path / "s.zarr"
    fields = {name: ("x", np.arange(3.0)) for name in "abcdef"}
    xr.Dataset(fields).to_zarr(path, consolidated=False)
    for name in fields:
        (path / name / "zarr.json").write_text('{"zarr_format": 1.5, "node_type": "array"}')

    done = subprocess.run(
        [sys.executable, "-m", "xarray_gpuzarr", "info", str(path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert [line.split(":")[0].strip() for line in done.stderr.splitlines()[1:]] == ["tried", "found", "do"]
