"""The end of a process: no thread of ours is still at work when what libraries have registered before is torn down."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import xarray_gpuzarr

PACKAGE = Path(xarray_gpuzarr.__file__).parent

DRIVER = """
import atexit, threading, time

class Driver:
    "CUDA as threads see it: calls last a while, and after its teardown none may be under way, nor any memory left."

    def __init__(self):
        self.inside = set()
        self.held = set()
        self.local = threading.local()
        self.entered = threading.Event()
        atexit.register(self.tear_down)  # as libraries do when they are imported

    def call(self, until=lambda: None):
        name = threading.current_thread().name
        self.inside.add(name)
        self.local.workspace = Workspace(self, name)
        self.entered.set()
        until()
        time.sleep(0.3)  # the call itself
        self.inside.discard(name)

    def tear_down(self):
        print("inside", sorted(self.inside), "held", sorted(self.held))

class Workspace:
    "What goes only when its thread has gone."

    def __init__(self, driver, name):
        self.driver, self.name = driver, name
        driver.held.add(name)

    def __del__(self):
        time.sleep(0.1)
        self.driver.held.discard(self.name)

driver = Driver()
"""


def run(script, before=DRIVER):
    command = [sys.executable, "-W", "ignore", "-c", before + textwrap.dedent(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout.strip(), ended.stderr


SCRIPTS = {
    "a thread": """
        from xarray_gpuzarr.process.exit_threads import start_thread
        start_thread(driver.call, "one")
        driver.entered.wait()
        """,
    "reads ahead are stopped": """
        from contextlib import nullcontext
        from xarray_gpuzarr.training.ahead import Ahead

        stopped = threading.Event()

        def read(number, stop):
            if number:
                stop.register(stopped.set)
                driver.call(stopped.wait)

        ahead = Ahead(read, 0, 9, 3, nullcontext)
        ahead.result(0)
        driver.entered.wait()
        """,
    "a self-check that nobody waits for any more": """
        from types import SimpleNamespace
        from contextlib import nullcontext
        from xarray_gpuzarr.decoders.cuda.checks import self_checks

        api = SimpleNamespace(activate=lambda: nullcontext(driver.call()))
        self_checks._next_result = lambda *_: exit()  # Ctrl-C, or the end of the program on another thread
        list(self_checks.run_checks(api, [SimpleNamespace(name="copies")]))
        """,
    "a fork waits for no thread of its parent": """
        import os
        from xarray_gpuzarr.process.exit_threads import start_thread
        start_thread(lambda: driver.call(threading.Event().wait), "parent's", driver.entered.set)
        driver.entered.wait()
        child = os.fork()
        if child == 0:
            driver.inside.clear(), driver.held.clear()
        else:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_threads_have_ended_before_teardown(script):
    assert run(script) == (0, "inside [] held []", "")


def test_a_thread_that_never_ends_keeps_the_process_for_a_while_only():
    ended = run("""
        from xarray_gpuzarr.process import exit_threads
        exit_threads.PATIENCE_S = 0.1
        exit_threads.start_thread(lambda: driver.call(threading.Event().wait), "endless")
        driver.entered.wait()
        """)
    assert ended == (0, "inside ['endless'] held ['endless']", "")


INTERRUPTED = """
import asyncio, signal, threading
import numpy as np, xarray as xr, zarr
from zarr.storage import MemoryStore, WrapperStore

signal.signal(signal.SIGINT, signal.default_int_handler)

class Silent(WrapperStore):
    async def get(self, key, *args, **kwargs):
        if "/c/" in key:
            await asyncio.sleep(0.5)  # until dask waits: interrupted in `submit`, Python keeps its locks for ever
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            await asyncio.sleep(1e6)
        return await super().get(key, *args, **kwargs)

store = MemoryStore()
xr.Dataset({"a": ("x", np.arange(9.0))}).to_zarr(store, zarr_format=3, consolidated=True)
ds = xr.open_dataset(Silent(store), engine="gpuzarr", device="host", chunks={})
try:
    ds.a.compute(scheduler="threads")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_store_that_never_answers_dasks_threads_does_not_keep_the_process():
    code, said, errors = run(INTERRUPTED, before="")

    assert (code, said) == (0, "interrupted"), errors


ELSEWHERE = {"process/crew.py", "process/exit_threads.py"}
"""Where threads may be made: the crew's work only while their callers do."""


def test_threads_are_started_by_the_one_that_waits_for_them():
    makers = [path for path in PACKAGE.rglob("*.py") if re.search(r"\bThread\(", path.read_text())]

    assert {path.relative_to(PACKAGE).as_posix() for path in makers} == ELSEWHERE
