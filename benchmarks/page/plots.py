"""Writes the figures of results, as SVG and PNG; `PICTURES` says which there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.page import gpu_figures as gpu
from benchmarks.page import host_figures as host
from benchmarks.page.drawing import STYLE
from benchmarks.results import CaseRows
from benchmarks.timed import pictures as timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A figure, where it stands, and what it is called there."""

    name: str
    """Of its files, without suffix."""
    alt: str
    """What it shows, for those who do not see it."""
    draw: Callable[[Sequence[CaseRows]], Figure | None]
    """None if the cases do not suffice."""


def draw_all(
    cases: Sequence[CaseRows], folder: Path, source: str, pictures: Sequence[Picture] | None = None
) -> list[Picture]:
    """Write the figures that the cases suffice for, as SVG and PNG.

    Parameters
    ----------
    cases : sequence of CaseRows
    folder : pathlib.Path
    source : str
        What the figures are made from; stands in the SVG files.
    pictures : sequence of Picture, optional
        Others than `PICTURES`.

    Returns
    -------
    list of Picture
        Those that were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for picture in PICTURES if pictures is None else pictures:
        with mpl.rc_context(STYLE):
            figure = picture.draw(cases)
            if figure is None:
                continue
            described = {"Date": None, "Description": source}
            figure.savefig(folder / f"{picture.name}.svg", metadata=described, bbox_inches="tight")
            figure.savefig(
                folder / f"{picture.name}.png", dpi=160, metadata={"Description": source}, bbox_inches="tight"
            )
        written.append(picture)
    return written


PICTURES = tuple(
    Picture(name=name, alt=alt, draw=draw)
    for name, draw, alt in (
        ("limit", host.draw_limits, "Time of every reader over the limit of the machine, by workload"),
        ("xarray", host.draw_xarray, "The same through xarray: load and mean, with and without dask"),
        ("memory", host.draw_memory, "Memory that every reader needs beyond its result"),
        ("concurrency", host.draw_concurrency, "Time and memory over the number of chunks that are read at once"),
        ("compressors", host.draw_compressors, "Read time against compression ratio, by compressor and reader"),
        ("chunk-edges", host.draw_chunk_edges, "Read time over the edge of a chunk, by reader"),
        ("gpu-reads", gpu.draw_gpu_reads, "Delivered rate of every reader to the GPU, and of what limits it"),
    )
)
TIMED_PICTURES = (
    Picture(name="timed-shares", alt="Share of the bound that each read reached, modelled", draw=timed.draw_shares),
    Picture(name="timed-published", alt="When each resource worked, modelled", draw=timed.draw_published),
)
