"""How kvikio, which a stand-in plays, reads files into device memory: calls and errors."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from xarray_gpuzarr import StoreReadError
from xarray_gpuzarr.cuda import gds_files
from xarray_gpuzarr.cuda.gds_files import NativeFile, why_no_gds

STREAM = SimpleNamespace(handle=0x10)


class FakeKvikio:
    """`kvikio` as far as it is called; `log` has the calls in order, `failing` those that raise."""

    def __init__(self, *, compat=False):
        self.log = []
        self.failing = set()
        self.compat = compat
        self.available = True

    def modules(self):
        top = ModuleType("kvikio")
        top.CuFile = self.cufile
        defaults = ModuleType("kvikio.defaults")
        defaults.is_compat_mode_preferred = lambda: self.compat
        driver = ModuleType("kvikio.cufile_driver")
        driver.get = lambda name: self.call(name) or self.available
        return {"kvikio": top, "kvikio.defaults": defaults, "kvikio.cufile_driver": driver}

    def call(self, name, *args):
        self.log.append((name, *args))
        if name in self.failing:
            raise RuntimeError(f"{name} failed")

    def cufile(self, path, flags):
        self.call("CuFile", path, flags)

        def pread(buffer, nbytes, file_offset):
            self.call("pread", buffer.__cuda_array_interface__["data"][0], nbytes, file_offset)
            return SimpleNamespace(get=lambda: self.call("get") or nbytes)

        return SimpleNamespace(pread=pread, close=lambda: self.call("close"))


@pytest.fixture
def kvikio(monkeypatch):
    fake = FakeKvikio()
    for name, module in fake.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    why_no_gds.cache_clear()
    yield fake
    why_no_gds.cache_clear()


def opened(kvikio):
    return NativeFile("/data/shard", lambda stream: kvikio.log.append(("synchronize", stream.handle)))


def test_reads_go_to_kvikios_threads_once_the_stream_is_idle(kvikio):
    file = opened(kvikio)

    reads = [file.read(0x1000 + 4096 * n, 4096, 8192 * n, STREAM) for n in range(2)]
    assert [read.finish() for read in reads * 2] == [4096] * 4  # of which the first two wait
    file.close()

    assert kvikio.log == [
        ("CuFile", "/data/shard", "r"),
        ("synchronize", 0x10),
        ("pread", 0x1000, 4096, 0),
        ("synchronize", 0x10),
        ("pread", 0x2000, 4096, 8192),
        ("get",),
        ("get",),
        ("close",),
    ]


@pytest.mark.parametrize("call", ["CuFile", "pread", "get"])
def test_failure_is_an_error_that_names_the_file(kvikio, call):
    kvikio.failing.add(call)

    with pytest.raises(StoreReadError, match="/data/shard") as caught:
        opened(kvikio).read(0x1000, 10, 0, STREAM).finish()

    assert f"{call} failed" in caught.value.found
    assert 'storage="posix"' in caught.value.do


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "None"),
        ({"compat": True}, "compatibility mode"),
        ({"available": False}, "nvidia-fs"),
        ({"failing": {"is_gds_available"}}, "does not answer (RuntimeError: is_gds_available failed)"),
    ],
)
def test_where_files_cannot_be_read_there_is_a_reason(kvikio, change, why):
    vars(kvikio).update(change)

    assert why in str(why_no_gds())


NOT_LOADED = [
    ImportError("no kvikio"),
    OSError("libcuda.so.1: cannot open shared object file"),
    RuntimeError('Failure finding "libcufile.so.0"'),  # as cuda.pathfinder words it
]


@pytest.mark.parametrize("error", NOT_LOADED)
def test_kvikio_that_cannot_be_imported_is_a_reason(monkeypatch, error):
    def fail(name):
        raise error

    monkeypatch.setattr(gds_files.importlib, "import_module", fail)
    why_no_gds.cache_clear()

    assert str(error) in why_no_gds()
    why_no_gds.cache_clear()
