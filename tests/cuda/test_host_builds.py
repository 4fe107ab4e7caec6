"""Kernels for the host are compiled once for all that asks for them, and headers are parsed once for all kernels."""

import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.kernels import on_host


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """What the compiler is asked for, in an empty folder; it only writes its result."""
    on_host.require_compiler()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    commands, together = [], threading.Barrier(2)

    def run(command, _source):
        commands.append([*command])
        with pytest.raises(threading.BrokenBarrierError):  # whoever compiles is alone
            together.wait(0.05)
        together.reset()
        Path(command[command.index("-o") + 1]).write_text("made")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(on_host, "_run", run)
    return commands


def test_of_many_that_ask_one_compiles(commands):
    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(lambda _: on_host.built("a.so", ["-O2"], "int a;", ()), range(4))]

    assert len(commands) == 1
    assert {result.read_text() for result in results} == {"made"}


def test_headers_are_parsed_once(commands, tmp_path):
    header = tmp_path / "shim.h"
    header.write_text("int before;")
    made = {on_host.built_behind([header], "a.so", ["-O2"], f"int a{n};") for n in range(3)}

    assert [command.count("c++-header") for command in commands] == [1, 0, 0, 0]
    assert len(made) == 3


def test_clones_share_what_is_made(commands, tmp_path):
    made = set()
    for clone in ("here", "there"):
        (tmp_path / clone).mkdir()
        (tmp_path / clone / "shim.h").write_text("int before;")
        made.add(on_host.built_behind([tmp_path / clone / "shim.h"], "a.so", ["-O2"], "int a;"))

    assert len(made) == 1
    assert len(commands) == 2


def test_other_headers_make_other_kernels(commands, tmp_path):
    made = set()
    for text in ("int before;", "int after;"):
        (tmp_path / "shim.h").write_text(text)
        made.add(on_host.built_behind([tmp_path / "shim.h"], "a.so", ["-O2"], "int a;"))

    assert len(made) == 2
    assert len(commands) == 4
