"""The page of measurements is what benchmarks/results gives; nothing is typed, and its sums are right."""

import re
from dataclasses import asdict

from benchmarks.arrays.workloads import ERA5, SERIES
from benchmarks.page import __main__ as command
from benchmarks.page import measurements, performance
from benchmarks.page.__main__ import DOCS
from benchmarks.page.figures import FIGURES
from benchmarks.page.runs import KINDS, Run, newest
from benchmarks.page.tables import Summary, best_peers, summaries
from benchmarks.runner.results import CaseRows, Peak, Row, Sample


def committed():
    return {kind: run for kind in KINDS if (run := newest(kind)) is not None}


def row(name, side, seconds):
    samples = tuple(Sample(wall_s=seconds * share, cpu_s=seconds) for share in (1, 0.9, 1.2))
    peak = Peak(peak_nbytes=2 * 10**6, result_nbytes=10**6)
    return Row(case="", name=name, side=side, status="measured", nbytes=10**9, samples=samples, peak=peak)


def case(workload, ours, regime=None):
    """Return a read of a workload, in so many seconds, beside two peers of 2 and 3 seconds."""
    rows = [row("zarr default", "peer", 2.0), row("zarr Fused", "peer", 3.0), row("gpuzarr", "ours", ours)]
    about = {"operation": "read", "workload": asdict(workload), "regime": regime}
    name = f"{workload.name}/read {regime or ''}".rstrip()
    return CaseRows(name=name, about=about, rows=[*rows, row("one stage", "bare", 1)])


def test_the_page_and_its_figures_are_those_of_the_newest_results(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setattr(command, "TABLES", tmp_path / "build" / "measurements.md")

    assert command.main() == 0

    page, runs = (DOCS / "performance.md").read_text(), committed()
    assert page == (tmp_path / "performance.md").read_text(), "run `make performance`"
    assert (tmp_path / "build" / "measurements.md").read_text() == measurements.page(runs)
    figures = {path.stem for path in (DOCS / "figures").iterdir()}
    assert figures == {path.stem for path in (tmp_path / "figures").iterdir()}
    assert figures == set(re.findall(r"!\[[^]]+\]\(figures/(.+?)\.svg\)", page))
    for figure in FIGURES:
        if figure.name in figures:
            assert runs[figure.kind].origin in (DOCS / "figures" / f"{figure.name}.svg").read_text()


def test_cases_are_compared_with_the_best_peer_and_summed_up_by_the_geometric_mean():
    cases = [case(SERIES, 1.0), case(ERA5, 4.0), case(SERIES, 9.0, regime="steady")]  # regimes are apart

    assert summaries(cases) == [Summary(title="arrays", n=2, mean=1.0, lowest=0.5, highest=2.0)]
    assert "| series-1mb-zstd/read | gpuzarr | zarr default | 2000 | 1000 | 2.00 | 1.0 | 1.00 |" in best_peers(cases)


def test_a_gpu_has_a_section_and_a_figure():
    readers = [row("gpuzarr cuda", "ours", 0.1), row("zarr enable_gpu", "peer", 3.0), row("upload", "bare", 0.05)]
    found = [CaseRows(name="blog, warm", summary="all of it", about={"operation": "read"}, rows=readers)]
    host = committed()["host"]
    gpu = Run(path=host.path, about=host.about | {"gpu": {"name": "NVIDIA H200"}}, cases=found)

    page, tables = performance.page({"host": host, "gpu": gpu}), measurements.page({"host": host, "gpu": gpu})

    assert "not measured yet" in performance.page({"host": host})
    assert "NVIDIA H200" in page
    assert "(figures/gpu-reads.svg)" in page
    assert "not measured yet" not in page
    assert "| / bare |" in tables
