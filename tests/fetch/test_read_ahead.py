"""Reading ahead: what is not in the page cache is asked for in time, what is there is left alone."""

import errno
import os
from pathlib import Path

import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.linux import needs_linux
from helpers.loops import leaving_all, without_loops
from zarr.storage import LocalStore

from xarray_gpuzarr import read_array
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.source import ReadAhead
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange

MIB = 1024**2
pytestmark = needs_linux


class FakeSource:
    """A source of which some requests are in memory already."""

    def __init__(self, is_cold):
        self.is_cold = is_cold
        self.asked = []

    def prefetch(self, key, wanted):
        self.asked.append(key)
        return self.is_cold(key)


def requests(n):
    return [(key, ByteRange(offset=0, nbytes=1)) for key in range(n)]


def test_cold_requests_are_all_prefetched_but_the_first_which_is_carried_out_at_once():
    source = FakeSource(lambda _: True)
    read_ahead = ReadAhead(source)

    read_ahead(requests(3))
    read_ahead([("next", ByteRange(offset=0, nbytes=1))])

    assert source.asked == [1, 2, "next"]


def test_after_a_warm_request_seven_are_not_looked_at():
    source = FakeSource(lambda key: key != 2)

    ReadAhead(source)(requests(13))

    assert source.asked == [1, 2, 10, 11, 12]


@pytest.fixture
def advised(monkeypatch):
    """What the system was asked to read ahead."""
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, offset, nbytes, advice: asked.append((offset, nbytes, advice)))
    return asked


def nothing_in_memory(monkeypatch):
    def preadv(fd, buffers, offset, flags=0):
        if flags == os.RWF_NOWAIT:
            raise BlockingIOError
        return original(fd, buffers, offset, flags)

    original = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [((5, 10), (5, 10)), ((0, 100 * MIB), (0, 8 * MIB)), ((0, WHOLE_OBJECT), (0, 8 * MIB))],
    ids=["range", "long range", "whole object"],
)
def test_bytes_that_are_not_in_memory_are_asked_for(tmp_path, monkeypatch, advised, wanted, asked):
    (tmp_path / "a").write_bytes(bytes(100))
    nothing_in_memory(monkeypatch)
    before = n_open_files()

    assert LocalSource(root=str(tmp_path)).prefetch("a", ByteRange(offset=wanted[0], nbytes=wanted[1]))

    assert advised == [(*asked, os.POSIX_FADV_WILLNEED)]
    assert n_open_files() == before


@pytest.mark.parametrize("key", ["in memory", "not there"])
def test_what_need_not_be_read_is_not_asked_for(tmp_path, advised, key):
    (tmp_path / "in memory").write_bytes(bytes(100))

    assert not LocalSource(root=str(tmp_path)).prefetch(key, ByteRange(offset=0, nbytes=100))

    assert not advised


def test_file_system_that_cannot_tell_is_taken_to_have_it(tmp_path, monkeypatch, advised):
    (tmp_path / "a").write_bytes(bytes(100))

    def preadv(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "preadv", preadv)

    assert not LocalSource(root=str(tmp_path)).prefetch("a", ByteRange(offset=0, nbytes=100))
    assert not advised


def n_open_files():
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.parametrize("layout", [{"shards": (64, 64)}, {}], ids=["shards", "files"])
@pytest.mark.parametrize("reads", [without_loops, leaving_all], ids=["without loops", "left by them"])
def test_reading_ahead_changes_no_value(tmp_path, monkeypatch, advised, layout, reads):
    data = counting((512, 256), "f4")
    array = write(LocalStore(tmp_path), data, chunks=(8, 64), **layout)
    nothing_in_memory(monkeypatch)
    reads(monkeypatch)

    assert_same_bits(read_array(array, device="host"), data)

    assert advised
