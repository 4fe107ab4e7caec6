"""What is built of the loops in C, by a hatchling and a compiler that do as little as can be."""

import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from xarray_gpuzarr.native.library import SOURCE
from xarray_gpuzarr.native.naming import SOURCES, file_name

ROOT = Path(__file__).parents[2]
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo compiled > "$2"
"""


class Interface:
    def __init__(self, root):
        self.root, self.warnings = str(root), []
        self.app = SimpleNamespace(display_warning=self.warnings.append)


@pytest.fixture
def native(tmp_path):
    """The sources, and what was compiled of others."""
    native = tmp_path / "xarray_gpuzarr" / "native"
    native.mkdir(parents=True)
    for name in (*SOURCES, "naming.py"):
        (native / name).write_bytes(SOURCE.with_name(name).read_bytes())
    (native / "loops-000000000000.so").touch()
    return native


@pytest.fixture
def hook(tmp_path, native, monkeypatch):
    module = ModuleType("interface")
    module.BuildHookInterface = Interface
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", module)
    for parent in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    monkeypatch.delenv("XARRAY_GPUZARR_REQUIRE_COMPILER", raising=False)
    return runpy.run_path(str(ROOT / "hatch_build.py"))["CustomBuildHook"](tmp_path)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    path = tmp_path / "compiler"
    path.write_text(COMPILER)
    path.chmod(0o755)
    monkeypatch.setenv("CC", f"{path} --option")
    return path


def compiled(native):
    return [path.name for path in native.glob("loops-*")]


def build(hook, version="standard"):
    data = {"artifacts": [], "pure_python": True}
    hook.initialize(version, data)
    return data


def test_a_wheel_carries_the_library_and_is_for_one_platform_and_every_python(hook, native, compiler):
    data = build(hook)

    name = file_name(SOURCE.parent)
    assert data["artifacts"] == [f"/xarray_gpuzarr/native/{name}"]
    assert data["pure_python"] is False
    assert data["tag"].startswith("py3-none-")
    assert "any" not in data["tag"]
    assert compiled(native) == [name]  # no other one


def test_an_editable_install_finds_the_library_beside_its_source(hook, native, compiler):
    data = build(hook, "editable")

    assert data == {"artifacts": [], "pure_python": True}
    assert compiled(native) == [file_name(SOURCE.parent)]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("/nonexistent", "no C compiler '/nonexistent'"),
        ("sh -c 'echo no headers >&2; exit 1'", "failed: no headers"),
        ("{compiler} --option", "Exec format error"),
    ],
)
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_what_cannot_be_compiled_is_left_out(hook, compiler, monkeypatch, version, setting, said):
    compiler.write_text("neither script nor program")
    monkeypatch.setenv("CC", setting.format(compiler=compiler))

    assert build(hook, version) == {"artifacts": [], "pure_python": True}
    assert compiled(Path(hook.root, "xarray_gpuzarr", "native")) == []
    assert "works without compiled loops" in hook.warnings[0]
    assert said in hook.warnings[0]


def test_what_must_be_compiled_is_not_left_out(hook, monkeypatch):
    monkeypatch.setenv("CC", "/nonexistent")
    monkeypatch.setenv("XARRAY_GPUZARR_REQUIRE_COMPILER", "1")

    with pytest.raises(RuntimeError, match="no C compiler"):
        build(hook)
