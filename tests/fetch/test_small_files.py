"""Chunks that are files of their own: read many at a time, whatever their lengths and wherever their bytes are."""

import errno
import os
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.compare import assert_same_bits
from helpers.data.corpus import counting, write
from helpers.interrupts import interrupt
from helpers.linux import needs_linux
from helpers.loops import without_loops
from zarr.storage import LocalStore

from xarray_gpuzarr import StoreReadError, read_array
from xarray_gpuzarr.fetch import local
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.remote.store_source import StoreSource
from xarray_gpuzarr.plan.byte_range import WHOLE_OBJECT, ByteRange

WHOLE = ByteRange(offset=0, nbytes=WHOLE_OBJECT)
LENGTHS = [0, 1, 511, 512, 513, 1024, 1500, 1536, 1537, 5000]


@pytest.fixture
def files(tmp_path):
    """Objects of all lengths, one that does not exist among them: directory and what is in them."""
    noise = np.random.default_rng(0)
    contents = {f"{n}": noise.bytes(n) for n in LENGTHS}
    for key, content in contents.items():
        (tmp_path / key).write_bytes(content)
    return tmp_path, {**contents, "none": None}


@pytest.fixture
def calls(monkeypatch):
    """The calls of the system that this thread makes from Python, with all bytes in memory."""
    without_loops(monkeypatch)
    made, here, preadv = [], threading.get_ident(), os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, offset, _flags=0: preadv(fd, into, offset))

    def noting(name, real):
        def call(*args):
            if threading.get_ident() == here:
                made.append(name)
            return real(*args)

        return call

    for name in ("open", "fstat", "preadv", "close"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
    return made


def found(source, keys):
    objects = source.start([(key, WHOLE) for key in keys])(lambda nbytes: memoryview(bytearray(nbytes)))
    return [None if data is None else bytes(data) for data in objects]


@pytest.mark.both_ways
@pytest.mark.parametrize("kind", ["files", "requests"])
def test_objects_of_all_lengths_and_of_none(files, kind):
    directory, contents = files
    source = LocalSource(root=str(directory)) if kind == "files" else StoreSource(store=LocalStore(directory))

    assert found(source, list(contents)) == list(contents.values())
    assert found(source, ["513"]) == [contents["513"]]
    assert found(source, ["none"]) == [None]


def test_a_file_is_read_once(files, calls):
    directory, contents = files

    calls.clear()
    objects = found(LocalSource(root=str(directory)), ["1", "511", "513", "1024"])
    made = list(calls)

    assert objects == [contents[key] for key in ("1", "511", "513", "1024")]
    assert made == 4 * ["open", "fstat", "preadv", "close"]


def _refused(number):
    def preadv(real, fd, into, offset, flags=0):
        if flags:
            raise OSError(number, os.strerror(number))
        return real(fd, into, offset)

    return preadv


def _one_block(real, fd, into, offset, flags=0):
    return real(fd, [into[0][:512]] if flags else into, offset)


@pytest.mark.both_ways
@pytest.mark.parametrize(
    "preadv",
    [_refused(errno.EAGAIN), _refused(errno.EOPNOTSUPP), _one_block],
    ids=["nothing there", "a system that cannot tell", "one block"],
)
def test_files_that_are_not_all_in_memory(files, monkeypatch, preadv):
    directory, contents = files
    monkeypatch.setattr(os, "preadv", partial(preadv, os.preadv))

    assert found(LocalSource(root=str(directory)), list(contents)) == list(contents.values())


READS = {
    "start": lambda source: source.start([("k", WHOLE)])(bytearray)[0],
    "objects": lambda source: source.start([("k", WHOLE), ("k", WHOLE)])(bytearray)[1],
    "whole": lambda source: source.start_whole("k")().data,
    "the end": lambda source: source.start_edge("k", "end", 10**6)().data,
}


@needs_linux
@pytest.mark.both_ways
@pytest.mark.parametrize("read", READS)
def test_a_file_that_reports_no_length_is_read_to_its_end(tmp_path, read):
    (tmp_path / "k").symlink_to("/proc/version")
    assert not (tmp_path / "k").stat().st_size

    assert bytes(READS[read](LocalSource(root=str(tmp_path)))) == Path("/proc/version").read_bytes()


@needs_linux
@pytest.mark.parametrize("location", ["start", "end"])
def test_an_edge_of_a_file_that_reports_no_length(tmp_path, location):
    (tmp_path / "k").symlink_to("/proc/version")
    whole = Path("/proc/version").read_bytes()

    edge = LocalSource(root=str(tmp_path)).start_edge("k", location, 7)()

    assert bytes(edge.data) == (whole[:7] if location == "start" else whole[-7:])
    assert edge.object_nbytes == len(whole)


@pytest.mark.both_ways
@pytest.mark.parametrize("read", READS)
def test_an_empty_file_that_cannot_be_read_is_an_error(tmp_path, monkeypatch, read):
    (tmp_path / "k").touch()
    monkeypatch.setattr(os, "pread", partial(_failing, errno.EIO))

    with pytest.raises(StoreReadError, match="Input/output error"):
        READS[read](LocalSource(root=str(tmp_path)))


def _failing(number, *_args):
    raise OSError(number, os.strerror(number))


@needs_linux
@pytest.mark.both_ways
@pytest.mark.parametrize("layout", [{"chunks": (2, 4), "shards": (16, 8)}, {"chunks": (16, 8)}], ids=["sharded", "not"])
@pytest.mark.parametrize("call", ["open", "fstat", "preadv"])
@pytest.mark.parametrize("n_times", [1, 100])
def test_a_stale_handle_is_a_file_that_was_replaced(tmp_path, monkeypatch, call, n_times, layout):
    """As a network's file system says of files that another machine has replaced or removed."""
    data = counting((32, 8), "f4")
    array = write(LocalStore(tmp_path), data, compressors=None, **layout)
    without_loops(monkeypatch)
    real, left = getattr(os, call), [n_times]

    def stale(*args):
        path = args[0] if call == "open" else Path(f"/proc/self/fd/{args[0]}").readlink()
        if left[0] and "/c/" in os.fsdecode(path):
            left[0] -= 1
            _failing(errno.ESTALE)
        return real(*args)

    monkeypatch.setattr(os, call, stale)
    if n_times == 1:
        assert_same_bits(read_array(array, device="host"), data)
        assert left == [0]
        return
    with pytest.raises(StoreReadError, match="stale handle") as caught:
        read_array(array, device="host")
    assert f"{tmp_path}/c/" in str(caught.value)


def failed(*_):
    raise StoreReadError("a", tried="b", found="c", do="d")


WITH_AN_OPEN_FILE = {
    "read ahead": ("is_cached", lambda source: source.prefetch("513", ByteRange(0, 5))),
    "ranges": ("read_part", lambda source: source.start([("513", ByteRange(0, 5))])(bytearray)),
    "the whole object": ("file_status", lambda source: source.start([("513", WHOLE)])(bytearray)),
    "whole objects": ("read_exactly", lambda source: source.start([("513", WHOLE), ("1", WHOLE)])(bytearray)),
    "the end": ("file_status", lambda source: source.start_edge("513", "end", 5)()),
}
"""What is done with an open file: a function that it calls, and how."""


@pytest.mark.parametrize("fail", [failed, interrupt])
@pytest.mark.parametrize(("name", "use"), WITH_AN_OPEN_FILE.values(), ids=WITH_AN_OPEN_FILE)
def test_a_file_is_closed_after_an_error(files, monkeypatch, name, use, fail):
    opened, open_file = [], local.open_file
    monkeypatch.setattr(local, "open_file", lambda *args: opened.append(open_file(*args)) or opened[-1])
    monkeypatch.setattr(local, name, fail)

    with pytest.raises((StoreReadError, KeyboardInterrupt)):
        use(LocalSource(root=str(files[0])))

    (fd,) = opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
