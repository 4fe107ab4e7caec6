"""What a release says of itself: one version, and a description that is whole without the repository."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_changelog_begins_with_the_version():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0] == PROJECT["version"]


def test_make_check_is_all_that_continuous_integration_runs():
    makefile, workflow, script = (
        (ROOT / name).read_text() for name in ("Makefile", ".github/workflows/tests.yml", ".ci/run")
    )
    target = r"(?<![\w.-])[a-z][a-z-]+(?![\w./-])"

    checked = set(re.findall(target, re.search(r"^CHECKED := ((?:.*\\\n)*.*)", makefile, re.MULTILINE)[1]))
    jobs = re.findall(r"- run: make ([a-z -]+)|target: \[(.*)\]", workflow)
    assert {name for job in jobs for name in re.findall(target, " ".join(job))} == checked
    lines = re.findall(r"^make ((?:-\S+ )*)([^#\n]*)", script, re.MULTILINE)
    assert {name for _, line in lines for name in re.findall(target, line)} == checked


READY = {
    "pyproject.toml": '[project]\nversion = "1.2.0"\nurls = {Source = "https://example.org"}',
    "CHANGELOG.md": "# Changelog\n\n## [1.2.0] - 2026-12-24\n\n## [1.1.0] - 2026-11-24",
    "docs/index.md": "Install it.",
}


@pytest.mark.parametrize(
    ("tag", "changed", "said"),
    [
        ("v1.2.0", {}, ""),
        ("v1.3.0", {}, "the tag is v1.3.0, and pyproject.toml has version 1.2.0"),
        ("v1.2.0", {"CHANGELOG.md": "## [1.2.0] - unreleased"}, "the newest section of CHANGELOG.md"),
        ("v1.2.0", {"CHANGELOG.md": "## [1.1.0] - 2026-11-24"}, "the newest section of CHANGELOG.md"),
        ("v1.2.0", {"pyproject.toml": '[project]\nversion = "1.2.0"'}, "no [project.urls]"),
        ("v1.2.0", {"docs/index.md": "There is no release yet."}, "docs/index.md says"),
    ],
)
def test_only_a_tree_that_is_ready_is_released(tmp_path, tag, changed, said):
    problems = runpy.run_path(str(ROOT / ".ci" / "check_tag.py"))["problems"]
    (tmp_path / "docs").mkdir()
    for name, text in (READY | changed).items():
        (tmp_path / name).write_text(text)

    found = [*problems(tag, tmp_path)]

    assert len(found) == bool(said)
    assert said in "".join(found)


def test_citation_names_the_version():
    citation = (ROOT / "CITATION.cff").read_text()

    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [PROJECT["version"]]
    assert re.findall(r"^license: (.+)$", citation, re.MULTILINE) == [PROJECT["license"]]


def test_description_needs_no_files_of_the_repository():
    page = (ROOT / PROJECT["readme"]).read_text()

    targets = re.findall(r"\]\(([^)]*)\)|<(?:img|a) [^>]*", page)
    assert [target for target in targets if not target.startswith("https://")] == []
