"""Notebooks as they are committed; ``make fresh-notebooks`` runs them and compares."""

import re

import pytest
from helpers.notebooks import NOTEBOOKS, code_cells, differences, read

import xarray_gpuzarr

MACHINE = re.compile(
    r"(?<![\w.-])/(?:tmp|home|root|work|usr|var|Users)/|0x[0-9a-f]{8,}|127\.0\.0\.1|://[^/]*:\d|\bpid\b"
)
"""Paths, addresses and numbers that only the machine has that ran a notebook."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_ran_in_order_without_errors_and_warnings_and_says_nothing_of_the_machine(path):
    cells = code_cells(read(path))
    outputs = [output for cell in cells for output in cell["outputs"]]
    texts = [text for o in outputs for kind, text in o.get("data", {}).items() if kind != "image/png"]

    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert {output["output_type"] for output in outputs} <= {"execute_result", "display_data"}
    assert any("image/png" in output["data"] for output in outputs)
    assert MACHINE.findall("\n".join(texts)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_uses_public_names_only(path):
    source = "\n".join(cell["source"] for cell in code_cells(read(path)))
    imported = re.findall(r"^\s*from xarray_gpuzarr import (.+)$", source, re.MULTILINE)

    names = {*re.findall(r"\bxarray_gpuzarr\.(\w+)", source), *re.findall(r"(\w+)(?:,| as|$)", "\n".join(imported))}

    assert names <= {*xarray_gpuzarr.__all__, "__version__"}


def notebook(output):
    return {"cells": [{"cell_type": "code", "metadata": {}, "outputs": [output]}]}


def printed(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data):
    return {"output_type": "display_data", "data": data}


@pytest.mark.parametrize(
    ("kept", "now", "differ"),
    [
        (printed("mean 8.62\n"), printed("mean 8.6209\n"), False),
        (printed("a   1.5\nbb 10.25\n"), printed("a 100.5\nbb 1.25\n"), False),
        (printed("2 reads"), printed("2 reads\n\nCUDA cannot be used here; missing:\nCuPy"), False),
        (shown(**{"image/png": "one", "text/plain": "1"}), shown(**{"image/png": "other", "text/plain": "1"}), False),
        (printed("4 shards"), printed("5 shards"), True),
        (printed("1"), printed("1", "stderr"), True),
        (printed("1"), shown(**{"text/plain": "1"}), True),
        (shown(**{"text/plain": "1"}), shown(**{"image/png": "one", "text/plain": "1"}), True),
        (printed("1"), {"output_type": "error", "ename": "ValueError"}, True),
    ],
)
def test_outputs_differ_by_more_than_what_the_machine_gives(kept, now, differ):
    assert [text.partition("\n")[0] for text in differences(notebook(kept), notebook(now))] == ["code cell 1"] * differ
