"""The pages of measurements are what benchmarks/results gives; nothing is typed, and every figure can be drawn."""

import json
import re
from dataclasses import asdict, replace
from xml.etree import ElementTree as ET

import pytest

from benchmarks.arrays.published import BLOG, CONCURRENCIES, ZARRS_VOLUMES, study
from benchmarks.arrays.workloads import ERA5, SERIES
from benchmarks.page import __main__ as command
from benchmarks.page import measurements, performance
from benchmarks.page.__main__ import DOCS
from benchmarks.page.figures import FIGURES, draw_all
from benchmarks.page.regimes import regimes_summary, regimes_table
from benchmarks.page.runs import KINDS, Run, newest
from benchmarks.runner.results import CaseRows, Peak, Row, Sample

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
    rows += [
        row(ours, "ours", 1.25, peak=Peak(peak_nbytes=2 * 10**6, result_nbytes=10**6)),
        row("one stage", "bare", 1),
    ]
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


def behind_a_server(codec, ms):
    names = {"gpuzarr, obstore": "ours", "TensorStore": "peer", "gpuzarr, local files": "bare", "bare obstore": "bare"}
    rows = [row(name, side, 1.0 + ms) for name, side in names.items()]
    return CaseRows(name=f"store/{codec} {ms} ms", summary="one array", about={}, rows=rows)


def of_training(crop):
    peers = {"TensorStore, futures": 2.0, "xbatcher": 8.0}
    rows = [*(row(name, "peer", s) for name, s in peers.items()), row("gpuzarr batches, no dask", "ours", 1.6)]
    return CaseRows(name=f"training/{crop} of chunks", about={"operation": "batches", "n_samples": 320}, rows=rows)


def everything():
    """Return made-up cases of every kind on a host."""
    return [
        case(SERIES, "read"),
        case(ERA5, "load"),
        case(ERA5, "mean"),
        case(BLOG.reduced, "read"),
        *(case(pair.reduced, "read") for pair in ZARRS_VOLUMES),
        *(case(pair.reduced, "chunks", n) for pair in ZARRS_VOLUMES for n in CONCURRENCIES),
        *(case(pair.reduced, "read", readers=("zarr default", "TensorStore")) for pair in study()),
        *(behind_a_server(codec, ms) for codec in ("none", "zstd 3") for ms in (0, 10)),
        *(of_training(crop) for crop in ("1x256x256", "4x64x64")),
        CaseRows(name="cluster/task", summary="a task", rows=[row("ours", "ours", 1.0, facts={"requests": 3})]),
        CaseRows(name="host cost", summary="of a shard", rows=[row("1-D", "ours", 1.0)]),
    ]


def on_a_gpu():
    readers = [row("gpuzarr cuda", "ours", 0.1), row("zarr enable_gpu", "peer", 3.0), row("upload", "bare", 0.05)]
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


# ---- the pages in the repository


def test_the_page_is_what_the_newest_results_give():
    assert (DOCS / "performance.md").read_text() == performance.page(committed()), "run `make performance`"


def test_the_figures_on_the_page_are_made_from_the_newest_results():
    runs = committed()
    named = set(re.findall(r"!\[[^]]+\]\(figures/(.+?)\.svg\)", (DOCS / "performance.md").read_text()))
    assert {path.name for path in (DOCS / "figures").iterdir()} == {f"{name}.svg" for name in named}
    for figure in FIGURES:
        if figure.name in named:
            assert runs[figure.kind].origin in (DOCS / "figures" / f"{figure.name}.svg").read_text()


def test_the_command_writes_the_page_figures_and_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setattr(command, "TABLES", tmp_path / "build" / "measurements.md")

    assert command.main() == 0

    assert (tmp_path / "performance.md").read_text() == (DOCS / "performance.md").read_text()
    assert (tmp_path / "build" / "measurements.md").read_text() == measurements.page(committed())
    assert {p.name for p in (tmp_path / "figures").iterdir()} == {p.name for p in (DOCS / "figures").iterdir()}


def test_the_newest_results_of_a_kind_are_found_by_their_date(tmp_path):
    for name in ("host-2026-01-02", "host-2025-12-31", "host-full-2026-02-01"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"cases": []}))
    assert newest("host", tmp_path).path.stem == "host-2026-01-02"
    assert newest("host-full", tmp_path).path.stem == "host-full-2026-02-01"
    assert newest("gpu", tmp_path) is None


# ---- what the pages say


def test_without_a_gpu_the_page_says_so_first(run):
    text = performance.page({"host": run("host", everything())})

    on_one_line = " ".join(text.split())
    assert on_one_line.index("On a GPU: not measured yet") < on_one_line.index("a processor, 7 cores, 2026-11-21")
    assert "xarray_gpuzarr read arrays 1.60 times as fast" in on_one_line
    assert "| arrays | 29 | 1.60 | 1.60 | 1.60 |" in text
    assert "| batches for training | 2 | 1.25 | 1.25 | 1.25 |" in text
    assert "`series-1mb-zstd`: 1000 MB, 1-D float32, zstd, 1.024 MB chunks, 100 a shard" in text
    assert re.findall(r"\(figures/(.+?)\.svg\)", text) == ["arrays", "xarray", "stores"]


def test_every_table_of_a_host(run):
    text = measurements.page({"host": run("host", everything())})

    assert "with 3 GiB of memory at a scale of 0.5" in " ".join(text.split())
    assert "`python -m benchmarks --made-up` measures it again" in " ".join(text.split())
    assert "zarr 3.4.2" in text
    assert "absent" not in text
    assert "| series-1mb-zstd/read | gpuzarr | zarr default | 2000 | 1250 | 1.60 | 1.0 | 0.80 |" in text
    assert "| samples a second | TensorStore, futures | xbatcher | gpuzarr batches, no dask |" in text
    assert "| 4x64x64 of chunks | 160 | 40 | 200 |" in text
    assert "### On a cluster\n\n**task**: a task" in text
    assert "requests 3" in text
    assert "https://github.com/TomAugspurger/cuda-streams-sample" in text
    assert not re.search(r"\n\n\n", text)


def test_every_figure_is_drawn_and_says_what_it_shows(tmp_path, run):
    draw_all({"host": run("host", everything()), "gpu": run("gpu", on_a_gpu())}, tmp_path)

    assert {path.stem for path in tmp_path.glob("*.svg")} == {figure.name for figure in FIGURES}
    for path in tmp_path.glob("*.svg"):
        svg = path.read_text()
        ET.fromstring(svg)  # our own
        assert "SHA-256" in svg
        assert re.search(r"GB of values a second|\(ms\)|GB/s", svg)


def in_regime(regime, workload=SERIES, ours=1.25):
    found = case(workload, "read", name=f"{workload.name}/read {regime}")
    rows = [row("gpuzarr", "ours", ours) if r.name == "gpuzarr" else r for r in found.rows]
    return replace(found, about=found.about | {"regime": regime}, rows=rows)


def test_every_regime_has_its_mean_and_its_worst_case():
    cases = [in_regime("first"), in_regime("first", ERA5, ours=5.0), in_regime("kept", ours=1.6), case(SERIES, "read")]

    lines = regimes_summary(cases).splitlines()

    assert lines[0] == "|  | cases | peer / ours | worst |"
    assert lines[2:] == [
        "| first | 2 | 0.80 | 0.40 (era5-packed) |",
        "| kept | 1 | 1.25 | 1.25 (series-1mb-zstd) |",
    ]
    assert regimes_table(cases).splitlines()[2:] == [
        "| series-1mb-zstd/read first | 2000 | 3000 | 1250 | 1.60 |",
        "| era5-packed/read first | 2000 | 3000 | 5000 | 0.40 |",
        "| series-1mb-zstd/read kept | 2000 | 3000 | 1600 | 1.25 |",
    ]
    assert regimes_summary([]) == regimes_table([]) == ""
