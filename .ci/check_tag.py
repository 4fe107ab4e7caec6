"""Refuse to release under a tag that is not the version, or while the changelog or the metadata are not ready."""

import re
import sys
import tomllib
from pathlib import Path


def problems(tag, root):
    """Return what keeps this tree from being released as `tag`, in words."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## \[(.+?)\] - (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if tag != f"v{project['version']}":
        yield f"the tag is {tag}, and pyproject.toml has version {project['version']}"
    if newest[1] != project["version"] or not re.fullmatch(r"\d{4}-\d\d-\d\d", newest[2]):
        yield f"the newest section of CHANGELOG.md is {newest[0]!r}, not of this version with a date"
    if "urls" not in project:
        yield "pyproject.toml has no [project.urls]"
    for page in sorted([*root.glob("*.md"), *root.glob("docs/*.md")]):
        if page.name != "releasing.md" and "no release yet" in page.read_text():
            yield f"{page.relative_to(root)} says that there is no release yet"


if __name__ == "__main__":
    found = [*problems(sys.argv[1], Path(__file__).parents[1])]
    sys.exit("\n".join(found))
