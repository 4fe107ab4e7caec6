"""Notebooks as they are committed; `make docs` runs them."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path):
    return json.loads(path.read_text())


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["01_quickstart", "02_cluster", "03_speed", "04_writing_for_gpus"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(path):
    code = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]

    assert code
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    assert [cell["execution_count"] for cell in code] == [None] * len(code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_says_what_changes_with_a_gpu(path):
    last = "".join(read(path)["cells"][-1]["source"])

    assert last.startswith("## What changes with")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_a_page_of_the_documentation(path):
    assert f"notebooks/{path.stem}\n" in (ROOT / "docs" / "index.md").read_text()
