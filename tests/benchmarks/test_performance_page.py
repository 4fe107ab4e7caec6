"""docs/performance.md is what benchmarks/results gives; nothing on it is typed, and every figure can be drawn."""

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # `pytest` alone does not look there, `python -m pytest` does

from benchmarks.arrays.published import BLOG, BLOG_SOURCE, CONCURRENCIES, ZARRS_VOLUMES, study
from benchmarks.arrays.workloads import ERA5, SERIES
from benchmarks.page import __main__ as page_module
from benchmarks.page.__main__ import FIGURES, KINDS, PAGE, Run, newest, page
from benchmarks.page.plots import PICTURES, draw_all
from benchmarks.page.tables import best_peers, concurrency_table, in_short, published_table, study_table
from benchmarks.results import CaseRows, Peak, Row, Sample

ABOUT = {
    "date": "2026-11-21T00:00:00+00:00",
    "command": "python -m benchmarks --made-up",
    "settings": {"rounds": 5, "scale": 0.5},
    "machine": {"model": "a processor", "n_cores": 7, "memory_nbytes": 3 * 2**30, "load_average": [0.5, 0, 0]},
    "revision": "abc",
    "versions": {"zarr": "3.4.2", "zarrs": "absent"},
}


def committed():
    return {kind: run for kind in KINDS if (run := newest(kind)) is not None}


def row(name, side, seconds, **more):
    samples = tuple(Sample(wall_s=seconds * share, cpu_s=seconds) for share in (1, 0.9, 1.2))
    return Row(case="", name=name, side=side, status="measured", nbytes=10**9, samples=samples, **more)


def case(workload, operation, concurrency=1, name="", readers=("zarr default", "zarr Fused")):
    rows = [
        row(reader, "peer", 2.0 + i, peak=Peak(peak_nbytes=5 * 10**6, result_nbytes=10**6))
        for i, reader in enumerate(readers)
    ]
    ours = "xarray gpuzarr, chunks={}" if operation in ("load", "mean") else "gpuzarr"
    rows += [row(ours, "ours", 1.25, peak=Peak(peak_nbytes=2 * 10**6, result_nbytes=10**6)), row("limit", "limit", 1.0)]
    about = {
        "operation": operation,
        "concurrency": concurrency,
        "workload": asdict(workload),
        "nbytes": 10**9,
        "stored_nbytes": 4 * 10**8,
    }
    at_once = f" x{concurrency}" if operation == "chunks" else ""
    name = name or f"{workload.name}/{operation}{at_once}"
    return CaseRows(name=name, summary=workload.summary, about=about, rows=rows)


def everything():
    """Return made-up cases of every kind on a host."""
    return [
        case(SERIES, "read"),
        case(ERA5, "load"),
        case(ERA5, "mean"),
        case(BLOG.reduced, "compute"),
        case(BLOG.reduced, "stages"),
        *(case(pair.reduced, "read") for pair in ZARRS_VOLUMES),
        *(case(pair.reduced, "chunks", n) for pair in ZARRS_VOLUMES for n in CONCURRENCIES),
        *(case(pair.reduced, "read", readers=("zarr default", "TensorStore")) for pair in study()),
        CaseRows(name="requests of a shard", summary="counted", rows=[row("ours", "ours", 1.0, facts={"requests": 3})]),
    ]


def on_a_gpu():
    readers = [row("gpuzarr cuda", "ours", 0.1), row("zarr enable_gpu", "peer", 3.0), row("upload", "limit", 0.05)]
    absent = Row(case="", name="kvikio", side="peer", status="absent", note="not installed")
    return [CaseRows(name="blog, warm", summary="all of it", about={"operation": "read"}, rows=[*readers, absent])]


@pytest.fixture
def run(tmp_path):
    """Return a call that makes a run of cases."""

    def made(kind, cases, **about):
        path = tmp_path / f"{kind}-2026-11-21.json"
        path.write_text("{}")
        return Run(path=path, about=ABOUT | about, cases=cases)

    return made


# ---- the page in the repository


def test_the_page_is_what_the_newest_results_give():
    assert PAGE.read_text() == page(committed()), "run `make performance`"


def test_the_figures_on_the_page_are_made_from_the_newest_results():
    runs = committed()
    named = re.findall(r"!\[[^]]+\]\(figures/(.+?)/(.+?)\.svg\)", PAGE.read_text())
    assert named
    for kind, name in named:
        svg = (FIGURES / kind / f"{name}.svg").read_text()
        assert runs[kind].origin in svg, "run `make performance`"
        assert (FIGURES / kind / f"{name}.png").stat().st_size > 1000


def test_no_figure_is_left_over():
    named = set(re.findall(r"figures/(.+?)\.svg", PAGE.read_text()))
    assert {str(p.relative_to(FIGURES).with_suffix("")) for p in FIGURES.rglob("*.*g")} == named


def test_the_command_writes_page_and_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "ROOT", tmp_path)
    monkeypatch.setattr(page_module, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(page_module, "FIGURES", tmp_path / "figures")

    assert page_module.main() == 0

    assert (tmp_path / "performance.md").read_text() == PAGE.read_text()
    assert {p.name for p in (tmp_path / "figures").rglob("*.svg")} == {p.name for p in FIGURES.rglob("*.svg")}


def test_the_newest_results_of_a_kind_are_found_by_their_date(tmp_path):
    for name in ("host-2026-01-02", "host-2025-12-31", "host-full-2026-02-01"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"cases": []}))
    assert newest("host", tmp_path).path.stem == "host-2026-01-02"
    assert newest("host-full", tmp_path).path.stem == "host-full-2026-02-01"
    assert newest("gpu", tmp_path) is None


# ---- what a page says


def test_every_section_and_figure_of_a_host(run):
    text = page({"host": run("host", everything())})

    assert "on a processor, 7 cores, 3 GiB of memory at a scale of 0.5" in text
    assert "`python -m benchmarks --made-up` measures it again" in text
    assert "zarr 3.4.2" in text
    assert "absent" not in text
    for name in ("limit", "xarray", "memory", "concurrency", "compressors", "chunk-edges"):
        assert f"](figures/host/{name}.svg)" in text
    assert "| reading arrays | 28 | 1.60 to 1.60 | 1.60 |" in text
    assert "| series-1mb-zstd/read | gpuzarr | zarr default | 2000 | 1250 | 1.60 | 1.25 | 1.0 | 0.80 |" in text
    assert "### requests of a shard\n\n**requests of a shard**: counted" in text
    assert "requests 3" in text
    assert "no GPU has run it yet" in text
    assert BLOG_SOURCE.url in text
    assert "![" in text
    assert not re.search(r"\n\n\n", text)


def test_full_size_and_gpu_results_have_their_own_sections(run):
    gpu = {"gpu": {"name": "NVIDIA H200"}}
    runs = {"host": run("host", everything()), "host-full": run("host-full", everything())}
    text = page({**runs, "gpu": run("gpu", on_a_gpu(), **gpu)})

    assert "## Published workloads in full size" in text
    assert "(figures/host-full/concurrency.svg)" in text
    assert "NVIDIA H200" in text
    assert "(figures/gpu/gpu-reads.svg)" in text
    assert "| kvikio |  |  |  |  |  | absent: not installed |" in text
    assert "no GPU has run it" not in text


def test_every_figure_is_drawn_and_says_what_it_shows(tmp_path):
    written = draw_all([*everything(), *on_a_gpu()], tmp_path, "made up")

    assert [picture.name for picture in written] == [picture.name for picture in PICTURES]
    for picture in PICTURES:
        svg = (tmp_path / f"{picture.name}.svg").read_text()
        ET.fromstring(svg)  # our own
        assert "made up" in svg
        assert (tmp_path / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")
        assert re.search(r"\(|ms|limit|ratio", svg)  # a unit, or what it is relative to


def test_cases_that_do_not_suffice_give_no_figure(tmp_path):
    assert draw_all([], tmp_path, "nothing") == []
    assert list(tmp_path.iterdir()) == []


def test_tables_are_empty_where_there_is_nothing():
    assert best_peers([]) == concurrency_table([]) == ""
    assert in_short([]).endswith("quicker:\n\n")
    assert study_table([]) == ""


def test_reads_chunk_by_chunk_have_a_column_for_each_number():
    chunked = [case(ZARRS_VOLUMES[0].reduced, "chunks", n) for n in (1, 32)]
    lines = concurrency_table(chunked).splitlines()
    assert lines[0] == "| volume | reader | ms, 1 at once | ms, 32 at once | peak MB, 1 | peak MB, 32 |"
    assert lines[2] == "| zarrs-none | zarr default | 2000 | 2000 | 5 | 5 |"


def test_published_figures_have_their_source_and_date():
    text = published_table([BLOG_SOURCE, replace(BLOG_SOURCE, figures=())])
    assert "| Zarr/NumPy 19.9 s (its author" in text
    assert ", custom/CuPy 478 ms |" in text
    assert text.count(BLOG_SOURCE.url) == 1
    assert BLOG_SOURCE.date in text
