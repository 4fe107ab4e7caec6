"""The build hook compiles the loops in C, or leaves them out and says why; a shell script stands for the compiler."""

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from xarray_gpuzarr.native.library import SOURCE
from xarray_gpuzarr.native.naming import SOURCES, file_name

ROOT = Path(__file__).parents[2]
LIBRARY = file_name(SOURCE.parent)
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo compiled > "$2"
"""


class Interface:
    """Stands for the base class of hatchling, which is not installed here."""

    def __init__(self, root):
        self.root, self.warnings = str(root), []
        self.app = SimpleNamespace(display_warning=self.warnings.append)


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """The hook, in a folder with the sources, a library compiled from other ones, and a compiler."""
    native = tmp_path / "xarray_gpuzarr" / "native"
    native.mkdir(parents=True)
    for name in (*SOURCES, "naming.py"):
        (native / name).write_bytes(SOURCE.with_name(name).read_bytes())
    (native / "loops-000000000000.so").touch()
    compiler = tmp_path / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", f"{compiler} --option")
    monkeypatch.delenv("XARRAY_GPUZARR_REQUIRE_COMPILER", raising=False)
    module = ModuleType("hatchling.builders.hooks.plugin.interface")
    module.BuildHookInterface = Interface
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for parent in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    return runpy.run_path(str(ROOT / "hatch_build.py"))["CustomBuildHook"](tmp_path)


def build(hook, version="standard"):
    """Return what the hook tells hatchling, and the names of the libraries that are there after it."""
    data = {"artifacts": [], "pure_python": True}
    hook.initialize(version, data)
    return data, [path.name for path in Path(hook.root, "xarray_gpuzarr", "native").glob("loops-*")]


def test_a_wheel_carries_the_library_and_is_for_one_platform_and_every_python(hook):
    data, libraries = build(hook)

    assert libraries == [LIBRARY]
    assert (data["artifacts"], data["pure_python"]) == ([f"/xarray_gpuzarr/native/{LIBRARY}"], False)
    assert data["tag"].startswith("py3-none-")
    assert "any" not in data["tag"]


def test_an_editable_install_finds_the_library_beside_its_source(hook):
    assert build(hook, "editable") == ({"artifacts": [], "pure_python": True}, [LIBRARY])


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("/nonexistent", "no C compiler '/nonexistent'"),
        ("sh -c 'echo no headers >&2; exit 1'", "failed: no headers"),
        ("{folder}/program --option", "Exec format error"),
    ],
)
def test_loops_that_cannot_be_compiled_are_left_out_unless_they_are_required(hook, monkeypatch, compiler, why):
    program = Path(hook.root, "program")
    program.write_text("neither script nor program")
    program.chmod(0o755)
    monkeypatch.setenv("CC", compiler.format(folder=hook.root))

    assert build(hook) == ({"artifacts": [], "pure_python": True}, [])
    assert "works without compiled loops" in hook.warnings[0]
    assert why in hook.warnings[0]

    monkeypatch.setenv("XARRAY_GPUZARR_REQUIRE_COMPILER", "1")
    with pytest.raises(RuntimeError, match="was not compiled"):
        build(hook)
