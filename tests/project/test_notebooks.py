"""Notebooks as they are committed; ``make fresh-notebooks`` runs them and compares."""

import ast
import re

import pytest
from helpers.notebooks import NOTEBOOKS, code_cells, differences, read

import xarray_gpuzarr

OF_A_MACHINE = re.compile(
    r"(?<![\w.-])/(?:tmp|home|root|work|usr|var|Users)/|0x[0-9a-f]{8,}|127\.0\.0\.1|://[^/]*:\d|\bpid\b"
)
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def source(path):
    return "\n".join(cell["source"] for cell in code_cells(read(path)))


def texts(path):
    """Return every text of a notebook's outputs; pictures are none."""
    for cell in code_cells(read(path)):
        for output in cell["outputs"]:
            yield output.get("text", "")
            yield from (value for kind, value in output.get("data", {}).items() if kind != "image/png")


def notebook(*outputs, tags=()):
    return {"cells": [{"cell_type": "code", "metadata": {"tags": list(tags)}, "outputs": list(outputs)}]}


def printed(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


def shown(**data):
    return {"output_type": "display_data", "data": data}


@each
def test_notebook_was_run_from_top_to_bottom(path):
    cells = code_cells(read(path))

    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])


@each
def test_notebook_ran_without_errors_and_warnings(path):
    outputs = [output for cell in code_cells(read(path)) for output in cell["outputs"]]
    kinds = {(output["output_type"], output.get("name")) for output in outputs}

    assert kinds <= {("execute_result", None), ("display_data", None)}


@each
def test_outputs_say_nothing_of_the_machine(path):
    assert [match[0] for text in texts(path) for match in OF_A_MACHINE.finditer(text)] == []


@each
def test_notebook_uses_public_names_only(path):
    tree = ast.walk(ast.parse(source(path)))
    public = {*xarray_gpuzarr.__all__, "__version__"}
    found = set()
    for node in tree:
        match node:
            case ast.Import(names=names):
                found |= {name.name for name in names if name.name.startswith("xarray_gpuzarr.")}
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("xarray_gpuzarr"):
                found |= {f"{module}.{name.name}" for name in names}
            case ast.Attribute(value=ast.Name(id="xarray_gpuzarr"), attr=name):
                found.add(f"xarray_gpuzarr.{name}")

    assert found - {f"xarray_gpuzarr.{name}" for name in public} == set()


@pytest.mark.parametrize(
    ("kept", "now"),
    [
        (printed("mean 8.62\n"), printed("mean 8.6209\n")),
        (printed("a   1.5\nbb 10.25\n"), printed("a 100.5\nbb 1.25\n")),
        (printed("2 reads"), printed("2 reads\n\nCUDA cannot be used here; missing:\nCuPy")),
        (shown(**{"image/png": "one", "text/plain": "1"}), shown(**{"image/png": "other", "text/plain": "1"})),
    ],
)
def test_what_differs_from_machine_to_machine_is_not_compared(kept, now):
    assert [*differences(notebook(kept), notebook(now))] == []


@pytest.mark.parametrize(
    ("kept", "now"),
    [
        (printed("4 shards"), printed("5 shards")),
        (printed("on the host"), printed("on the device")),
        (printed("1"), {"output_type": "stream", "name": "stderr", "text": "1"}),
        (printed("1"), shown(**{"text/plain": "1"})),
        (shown(**{"text/plain": "1"}), shown(**{"image/png": "one", "text/plain": "1"})),
        (printed("1"), {"output_type": "error", "ename": "ValueError"}),
    ],
)
def test_other_outputs_are_found(kept, now):
    (difference,) = differences(notebook(kept), notebook(now))

    assert difference.startswith("code cell 1")
