"""Importing one module right after another one: before, while and after that is imported, and if it fails at first."""

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from threading import Event
from types import SimpleNamespace

import pytest

from xarray_gpuzarr.import_hook import import_after


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Let `first_module` call what a test sets, and `then_module` tell how often it was run."""
    shared = SimpleNamespace(first=lambda: None, then_begun=Event(), order=[])
    (tmp_path / "first_module.py").write_text("import shared_state as s\ns.first()\ns.order.append('first')\n")
    (tmp_path / "then_module.py").write_text(
        "import shared_state as s\ns.then_begun.set()\nimport first_module\ns.order.append('then')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "shared_state", shared)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield shared
    for name in ("first_module", "then_module"):
        sys.modules.pop(name, None)


def finders():
    return [type(finder).__module__ for finder in sys.meta_path]


def test_it_waits_for_the_first(modules):
    import_after("first_module", "then_module")
    assert modules.order == []

    importlib.import_module("first_module")

    assert modules.order == ["first", "then"]
    assert "xarray_gpuzarr.import_hook" not in finders()


def test_it_does_not_wait_for_what_is_there(modules):
    importlib.import_module("first_module")

    import_after("first_module", "then_module")

    assert modules.order == ["first", "then"]
    assert "xarray_gpuzarr.import_hook" not in finders()


def test_finding_is_not_importing(modules):
    import_after("first_module", "then_module")

    assert find_spec("first_module").origin.endswith("first_module.py")
    assert modules.order == []
    importlib.import_module("first_module")
    assert modules.order == ["first", "then"]


def test_an_import_that_fails_is_waited_for_again(modules):
    modules.first = lambda: 1 / 0
    import_after("first_module", "then_module")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module("first_module")
    assert modules.order == []

    modules.first = lambda: None
    importlib.import_module("first_module")

    assert modules.order == ["first", "then"]


def test_a_module_that_is_not_there_is_missed(modules):
    import_after("no_such_module", "then_module")

    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("no_such_module")


def held(modules, threads):
    """Let a thread import the first module, and hold it there; return its future, and what lets it go on."""
    begun, go_on = Event(), Event()
    modules.first = lambda: (begun.set(), go_on.wait(60))
    importing = threads.submit(importlib.import_module, "first_module")
    assert begun.wait(60)
    return importing, go_on


def assert_both_came(modules, *futures):
    for future in futures:
        future.result(60)
    assert modules.order == ["first", "then"]
    assert "xarray_gpuzarr.import_hook" not in finders()


def test_while_another_thread_imports_the_first(modules):
    with ThreadPoolExecutor() as threads:
        importing, go_on = held(modules, threads)

        after = threads.submit(import_after, "first_module", "then_module")
        go_on.set()

        assert_both_came(modules, importing, after)


def test_two_threads_at_its_end_do_not_wait_for_each_other(modules):
    import_after("first_module", "then_module")
    hook = sys.meta_path[0]
    with ThreadPoolExecutor() as threads:
        importing, go_on = held(modules, threads)

        ending = threads.submit(hook.end)
        assert modules.then_begun.wait(60)
        go_on.set()

        assert_both_came(modules, importing, ending)
