"""Check what would be uploaded: metadata, the description as an index shows it, what wheel and sdist contain."""

import re
import runpy
import sys
import tarfile
import zipfile
from pathlib import Path

from markdown_it import MarkdownIt
from packaging.metadata import Metadata

MODULES = {".py", ".c", ".h", ".cu", ".cuh", ".json", ".typed"}
IN_SDIST = {
    ".ci/constraints.txt",
    ".ci/install",
    ".github/workflows/tests.yml",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "Makefile",
    "README.md",
    "benchmarks/README.md",
    "docs/conf.py",
    "docs/index.md",
    "docs/_static/first-map.png",
    "docs/inventories/xarray.inv",
    "gpu.mk",
    "hatch_build.py",
    "notebooks/01_quickstart.ipynb",
    "pyproject.toml",
    "tests/conftest.py",
}
NEVER = re.compile(
    r"(^|/)(__pycache__|\.git|\.venv[^/]*|_build|demo|dist|build|\.[a-z]+_cache)/|^docs/notebooks/|\.(pyc|so)$"
)


def check_metadata(text):
    """Refuse metadata that are not valid, and a description that is not whole wherever it is shown."""
    metadata = Metadata.from_email(text, validate=True)
    assert metadata.version, "no version"
    assert metadata.summary, "no summary"
    assert metadata.license_expression == "Apache-2.0", metadata.license_expression
    assert metadata.description_content_type == "text/markdown", metadata.description_content_type
    page = MarkdownIt("commonmark").render(metadata.description)
    assert "<h1>" in page, "the description has no title"
    assert "<img" not in page, "an index shows no pictures of a repository"
    links = re.findall(r'href="([^"]*)"', page)
    assert all(link.startswith("https://") for link in links), f"links that lead nowhere on an index: {links}"


def check_wheel(path, sources, library):
    """Refuse a wheel that is not the package's files, its compiled loops and its metadata; or is for one Python."""
    assert re.search(r"-py3-none-(?!any)\w+\.whl$", path.name), path.name
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (info,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        check_metadata(wheel.read(info))
        assert b"Root-Is-Purelib: false" in wheel.read(info.replace("METADATA", "WHEEL")), "not for one platform"
    package = {name for name in names if not name.startswith(info.partition("/")[0])}
    assert package == sources | {library}, package ^ (sources | {library})
    assert {Path(name).suffix for name in sources} == MODULES, {Path(name).suffix for name in sources}
    assert any(name.endswith("/known.json") for name in package), "no known frames"


def check_sdist(path, sources):
    """Refuse an sdist that lacks what it is built, tested or documented from, or has what was built."""
    with tarfile.open(path) as sdist:
        members = [member for member in sdist.getmembers() if member.isfile()]
        names = {member.name.partition("/")[2] for member in members}
        (info,) = (member for member in members if member.name.count("/") == 1 and member.name.endswith("/PKG-INFO"))
        check_metadata(sdist.extractfile(info).read())
    assert names >= IN_SDIST | sources, (IN_SDIST | sources) - names
    assert not (found := [name for name in names if NEVER.search(name)]), found


root = Path(sys.argv[1])
sources = {
    str(path.relative_to(root))
    for path in (root / "xarray_gpuzarr").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
}
native = root / "xarray_gpuzarr" / "native"
name = runpy.run_path(native / "naming.py")["file_name"](native)
(wheel,), (sdist,) = (root / "dist").glob("*.whl"), (root / "dist").glob("*.tar.gz")
check_wheel(wheel, sources, f"xarray_gpuzarr/native/{name}")
check_sdist(sdist, sources)
