"""Fixtures and settings of the whole suite."""

import fcntl
import gc
import os
import signal
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.core import codec_pipeline
from zarr.storage import LocalStore, MemoryStore

pytest.register_assert_rewrite("helpers")

from helpers import every_decoder, every_pair, not_run, profiles  # noqa: E402, F401  # profiles: loads one
from helpers.data.datasets import write_weather  # noqa: E402
from helpers.gpu import skip_or_fail_without_gpu, why_required_gpu_is_missing  # noqa: E402
from helpers.stores.range_server import RangeServer  # noqa: E402

from xarray_gpuzarr.fetch import index_cache, version_conflicts  # noqa: E402
from xarray_gpuzarr.native.library import loops  # noqa: E402

if hasattr(codec_pipeline, "FusedCodecPipeline"):  # zarr-python 3.2 has none
    # It writes in half the time; in the environment, so that processes of tests have it too.
    os.environ["ZARR_CODEC_PIPELINE__PATH"] = "zarr.core.codec_pipeline.FusedCodecPipeline"
    zarr.config.refresh()

# Arrays of tests are short, and the device is to read them; likewise.
os.environ["XARRAY_GPUZARR_LITTLE"] = "device"

NEEDS_GPU = "tests that need an NVIDIA GPU: make test-gpu"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marked = metafunc.definition.get_closest_marker
    decoders = ["host"]
    if marked("both_ways") and loops() is not None:  # without loops, the host's way is the interpreted one
        decoders.append("interpreted")
    if marked("every_decoder") and not marked("host_decoder"):
        decoders.append("simulated")
        if not not_run.without_gpu(metafunc.config):
            decoders.append(pytest.param("cuda", marks=pytest.mark.gpu))
    if len(decoders) > 1:
        metafunc.parametrize("decoder", decoders, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among what is collected: there are many objects, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Let one process after the other import a module: the first keeps its rewritten assertions for the others."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as module:
        fcntl.flock(module, fcntl.LOCK_EX)
        return (yield)


@pytest.hookimpl(trylast=True)  # what -k and -m choose has every pair of its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not_run.without_gpu(config):
        not_run.count(config, NEEDS_GPU, sum(_on_simulator(item) for item in items))
    every_pair.leave_out(config, items)


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items and all(item.get_closest_marker("gpu") for item in items):
        not_run.count(items[0].config, NEEDS_GPU, len(items))


def _on_simulator(item: pytest.Item) -> bool:
    """Say whether a test would run on a GPU once more."""
    called = getattr(item, "callspec", None)
    return called is not None and called.params.get("decoder") == "simulated"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    not_run.take_over(node.config, getattr(node, "workeroutput", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in not_run.lines(config, terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say last, below the tests that failed for it, why there is no GPU where one is required."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and (why := why_required_gpu_is_missing()) is not None:
        terminal.write_line(f"no GPU: {why}")


@pytest.fixture(scope="session", autouse=True)
def nothing_is_known_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the suite from what the user's cache folder says of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XARRAY_GPUZARR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", autouse=True)
def pass_over_what_is_there() -> None:
    """Let collections of garbage, for which tests ask, pass over the suite itself and what other modules keep."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        skip_or_fail_without_gpu()


@pytest.fixture(scope="module", autouse=True)
def decoder(request: pytest.FixtureRequest) -> Iterator[str]:
    """What carries out the reads of a test; see `helpers.every_decoder`."""
    name = getattr(request, "param", "host")
    with pytest.MonkeyPatch.context() as patch:
        check = every_decoder.use(name, patch)
        yield name
        check()


@pytest.fixture(autouse=True)
def device_decodes_all_by_itself(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that hides what the device cannot do; see `helpers.every_decoder`."""
    every_decoder.decoded_again.clear()
    yield
    assert request.node.get_closest_marker("doubtful_frames") or every_decoder.decoded_again == []


@pytest.fixture(autouse=True)
def settings_are_left_as_they_were() -> Iterator[None]:
    """Fail a test that leaves settings of this package or of zarr-python to later ones."""
    if _settings() != _seen:
        _seen.update(deepcopy(_settings()))
    yield
    assert _settings() == _seen


_seen: dict[str, object] = {}
"""Settings before a test; mostly those before the test before."""


def _settings() -> dict[str, object]:
    ours = {name: value for name, value in os.environ.items() if name.startswith("XARRAY_GPUZARR_")}
    return {"ours": ours, "zarr's": zarr.config.config}


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT raise, also where the tests run in the background of a shell, which has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def usual_pipeline() -> Iterator[None]:
    """The codec pipeline that zarr-python has without any setting: it asks a store only for `get`."""
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        yield


@pytest.fixture
def honest_again(server: RangeServer) -> Iterator[None]:
    """Take the faults from a module's server behind each test, and forget what is known of its objects."""
    index_cache.cache.clear()
    yield
    version_conflicts.care_by_store.clear()
    server.spoil()


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of `helpers.data.datasets.weather` in files, which no test may change."""
    path = tmp_path_factory.mktemp("weather") / "weather.zarr"
    write_weather(path)
    return path


@pytest.fixture
def memory() -> MemoryStore:
    """An empty store in memory: chunks come through the store's own byte-range reads."""
    return MemoryStore()


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    """An empty store of files: chunks come through positional reads."""
    return LocalStore(tmp_path / "store.zarr")


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest) -> MemoryStore | LocalStore:
    """Both kinds of source."""
    return request.getfixturevalue(request.param)
