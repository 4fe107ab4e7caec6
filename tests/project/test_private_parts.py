"""Private parts of other libraries are used only where `docs/decisions/upstream.md` names them, with its reason."""

import ast
import re
import sys
from pathlib import Path

from xarray_gpuzarr.native import codec_functions

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "xarray_gpuzarr"
LOOK_UP = re.compile(r"^\| `([\w.]+)` \| (`\w+`(?:, `\w+`)*) \| `[\w-]+` \|", re.MULTILINE)
ROW = re.compile(r"^\| `([\w/]+\.py)` \| (`_.*?`) \|", re.MULTILINE)


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def own_names(tree):
    """Names that a module gives to what it defines: those behind an underscore are its own."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Name(name, ast.Store()):
                yield name


def names_of_others(tree):
    """Private names in imports, in attributes of anything but this object, in `getattr` and its like, and in `vars`."""
    stdlib = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    stdlib &= sys.stdlib_module_names
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (part for alias in names if alias.name not in stdlib for part in alias.name.split("."))
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] not in (*stdlib, "__future__"):
                yield from (*module.split("."), *(alias.name for alias in names))
            case ast.Attribute(value=ast.Name("self" | "cls" | "super")):
                pass
            case ast.Attribute(value=ast.Name(module)) if module in stdlib:
                pass
            case ast.Attribute(attr=name):
                yield name
            case ast.Call(func=ast.Name("getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(str(name)), *_]):
                yield name
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name("vars"))), keywords=keywords):
                yield from (keyword.arg for keyword in keywords)


def test_private_parts_of_others_are_those_that_the_page_names():
    used = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        names = set(filter(is_private, names_of_others(tree))) - {*own_names(tree), "_make", "_replace"}
        used |= {(path.relative_to(PACKAGE).as_posix(), name) for name in names}

    rows = ROW.findall((ROOT / "docs" / "decisions" / "upstream.md").read_text())
    assert used == {(path, name) for path, names in rows for name in re.findall(r"`(\w+)`", names)}


def test_functions_that_are_looked_up_in_libraries_of_others_are_those_that_the_page_names():
    used = {}
    for table in (codec_functions._DECODERS, codec_functions._ENCODERS):
        for functions in table.values():
            used.setdefault(functions.module, set()).update(functions.names.values())

    rows = LOOK_UP.findall((ROOT / "docs" / "decisions" / "upstream.md").read_text())
    assert used == {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


def test_no_other_module_looks_functions_up():
    users = {p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py") if "ctypes.CDLL(" in p.read_text()}
    assert {"native/codec_functions.py", "native/library.py"} <= users
    assert {user for user in users if "cuda" not in user} == {"native/codec_functions.py", "native/library.py"}
