"""Notebooks with their outputs: ``python -m helpers.notebooks`` runs them and keeps those; ``--check`` compares.

What is kept is small and says nothing of the machine: pictures get few colours, random identifiers become counts, bars
of progress and what dask's processes log are left out. What is compared is what every machine gives: kinds of outputs
and their text, without decimal fractions. Of cells that are tagged ``measured``, only the kinds are compared.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURE = ROOT / "docs" / "_static" / "first-map.png"
"""What the cell that is tagged ``picture`` draws."""
LIMIT_S = 600
"""Longest that a notebook may run: some twenty seconds are usual, more than ten times as much on a busy machine."""
COLOURS = 48
"""Of a picture."""
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NOT_KEPT = {"application/vnd.jupyter.widget-view+json"}
_FRACTION = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
_LOGGED = re.compile(r"[\d-]+ [\d:,]+ - distributed\.")
"""A record of dask's loggers, such as a worker's whose heartbeat meets a scheduler that ends."""
_LACKING = re.compile(r"CUDA cannot be used here.*", re.DOTALL)


def read(path: Path) -> Notebook:
    """Return a notebook, with the text of cells and outputs as single strings."""
    notebook: Notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
        for output in cell.get("outputs", []):
            output |= {name: "".join(output[name]) for name in ("text",) if name in output}
            data = output.get("data", {})
            data |= {kind: "".join(value) for kind, value in data.items() if isinstance(value, list)}
    return notebook


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    """List the cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(path: Path) -> Notebook:
    """Run a notebook from top to bottom in an empty folder; return it with clean outputs.

    Raises
    ------
    nbclient.exceptions.CellExecutionError, TimeoutError
        A cell fails, or the notebook takes longer than it may.
    """
    import nbformat  # noqa: PLC0415  # an extra
    from nbclient import NotebookClient  # noqa: PLC0415

    notebook, ends = nbformat.read(path, as_version=4), [time.monotonic()]
    options = {"timeout": LIMIT_S, "record_timing": False, "coalesce_streams": True}
    with tempfile.TemporaryDirectory() as folder:
        ended = {"on_cell_executed": lambda **_cell: ends.append(time.monotonic())}
        NotebookClient(notebook, resources={"metadata": {"path": folder}}, **options, **ended).execute()
    if ends[-1] - ends[0] > LIMIT_S:
        cells = [round(end - start) for start, end in pairwise(ends)]
        raise TimeoutError(f"{path.name}: its cells took {cells} s; notebooks have {LIMIT_S} s")
    clean(notebook)
    notebook.metadata.language_info = {"name": "python"}  # and not the version that ran it
    return notebook


def clean(notebook: Notebook) -> None:
    """Make outputs small, and the same when nothing but the machine and the day have changed."""
    names: dict[str, str] = {}
    numbers = count(1)

    def numbered(match: re.Match[str]) -> str:
        return names.setdefault(match[0], f"id-{next(numbers)}")

    for cell in code_cells(notebook):
        cell["outputs"] = [output for output in cell["outputs"] if _is_kept(output)]
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                data["text/html"] = _UUID.sub(numbered, data["text/html"])
            if "image/png" in data:
                data["image/png"] = with_few_colours(data["image/png"])


def _is_kept(output: dict[str, Any]) -> bool:
    """Whether an output is more than a bar of progress, or what dask's processes log."""
    data = output.get("data")
    if data is None:
        return not (output.get("name") == "stderr" and _LOGGED.match(output["text"]))
    return not _NOT_KEPT & set(data)


def with_few_colours(png: str) -> str:
    """Return a picture with a palette, as base64."""
    from PIL import Image  # noqa: PLC0415  # matplotlib brings it

    packed = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(png))) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode() + "\n"


def seen(cell: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what a comparison sees of a cell's outputs: their kinds, and text that every machine gives."""
    measured = "measured" in cell["metadata"].get("tags", [])
    return [(*_kinds(output), "" if measured else _text(output)) for output in cell["outputs"]]


def _kinds(output: dict[str, Any]) -> list[str]:
    return [output["output_type"], output.get("name", ""), output.get("ename", ""), *sorted(output.get("data", {}))]


def _text(output: dict[str, Any]) -> str:
    text = output.get("text", output.get("data", {}).get("text/plain", ""))
    return " ".join(_LACKING.sub("", _FRACTION.sub("#", text)).split())


def differences(kept: Notebook, now: Notebook) -> Iterator[str]:
    """Say of each cell whose outputs are others than those that were kept, what they were and are."""
    for i, (old, new) in enumerate(zip(code_cells(kept), code_cells(now), strict=True), 1):
        if seen(old) != seen(new):
            yield f"code cell {i}\n  committed: {seen(old)}\n  now:       {seen(new)}"


def keep(path: Path, notebook: Notebook) -> None:
    """Write a notebook that has run over the one that is committed, and the picture that pages show."""
    import nbformat  # noqa: PLC0415  # an extra

    nbformat.write(notebook, path)
    for cell in code_cells(notebook):
        if "picture" in cell["metadata"].get("tags", []):
            PICTURE.write_bytes(base64.b64decode(cell["outputs"][0]["data"]["image/png"]))


def main(arguments: list[str]) -> int:
    """Run notebooks; return 1 if ``--check`` finds that one gives something else than what is committed."""
    parser = argparse.ArgumentParser(prog="python -m helpers.notebooks", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is committed, write nothing")
    parser.add_argument("only", nargs="*", help="parts of the names of notebooks (all)")
    options = parser.parse_args(arguments)
    stale = 0
    for path in NOTEBOOKS:
        if options.only and not any(part in path.name for part in options.only):
            continue
        notebook = run(path)
        if not options.check:
            keep(path, notebook)
            continue
        for difference in differences(read(path), notebook):
            sys.stderr.write(f"{path.name}, {difference}\n")
            stale += 1
    if stale:
        sys.stderr.write("outputs are not those that are committed: look why, then run make notebooks\n")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
