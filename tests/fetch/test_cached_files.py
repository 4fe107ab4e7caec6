"""Files in the page cache, many read by one call of the compiled loops; what is unusual is left."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.loops import require_loops, without_loops

from xarray_gpuzarr.fetch.cached_files import ABSENT, LEFT, read_files, read_ranges
from xarray_gpuzarr.plan.byte_range import ByteRange

EACH = 1536
LENGTHS = [1, 511, 512, 513, 1023, 1024, 1025, 1535, 1536]
GUARD = 64
NOISE = np.random.default_rng(0).bytes(8000)


@pytest.fixture(autouse=True)
def compiled():
    return require_loops()


@pytest.fixture
def path(tmp_path):
    """A function that writes a file and returns its path."""

    def write(name, content):
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return write


def files_read(paths, each=EACH):
    """What is read of files, and their lengths; nothing may be written behind the room for them."""
    memory = bytearray(b"\xaa" * (len(paths) * each + GUARD))
    room = memoryview(memory)[: len(paths) * each]
    nbytes = read_files(paths, room, each)
    assert memory[len(room) :] == b"\xaa" * GUARD
    return [bytes(room[n * each : n * each + max(0, found)]) for n, found in enumerate(nbytes)], nbytes


def test_files_of_all_lengths(path):
    contents = [NOISE[:n] for n in LENGTHS]

    found, nbytes = files_read([path(f"{n}", NOISE[:n]) for n in LENGTHS])

    assert found == contents
    assert nbytes == LENGTHS


def test_no_file_at_all():
    assert files_read([]) == ([], [])


@pytest.mark.parametrize("n", [1537, 2048, 8000])
def test_a_file_longer_than_its_room_is_left(path, n):
    paths = [path("before", b"1"), path("long", NOISE[:n]), path("after", b"2")]

    assert files_read(paths)[1] == [1, LEFT, 1]


def test_what_is_no_file(path, tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    file = path("file", b"abc")
    names = ["directory", "none", "nowhere", "file/below", "x" * 300]

    nbytes = files_read([*(str(tmp_path / name) for name in names), file])[1]

    assert nbytes == [LEFT, ABSENT, ABSENT, ABSENT, LEFT, 3]


def test_an_empty_file_is_left(path):
    assert files_read([path("empty", b""), path("file", b"abc")])[1] == [LEFT, 3]


def test_a_path_with_a_zero_byte_leaves_all(path):
    """It would end there, and another file be read."""
    file = path("file", b"abc")

    assert files_read([file, f"{file}\0x", file])[1] == [LEFT, LEFT, LEFT]


@pytest.mark.parametrize("name", ["größe", "日本", "a b", "line\nbreak", "byte-\udcff"])
def test_names_of_any_bytes(path, name):
    assert files_read([path(name, b"abc")]) == ([b"abc"], [3])


@pytest.mark.skipif(os.geteuid() == 0, reason="this user may read every file")
def test_a_file_that_may_not_be_read_is_left(path):
    secret = path("secret", b"abc")
    Path(secret).chmod(0)

    assert files_read([secret, path("file", b"abc")])[1] == [LEFT, 3]


def test_a_file_that_cannot_be_read_is_left(path):
    """Its first bytes are not in any process's memory, which the system says only when they are asked for."""
    assert files_read(["/proc/self/mem", path("file", b"abc")])[1] == [LEFT, 3]


def test_no_more_files_may_be_open(path):
    resource = pytest.importorskip("resource")
    file = path("file", b"abc")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, most[1]))
        nbytes = files_read([file, file])[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)

    assert nbytes == [LEFT, LEFT]
    assert files_read([file, file])[1] == [3, 3]


def n_open_files():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_files_are_closed(path):
    paths = [path("file", b"abc"), path("blocks", NOISE[:1024]), path("long", NOISE), "/nowhere"]
    before = n_open_files()

    files_read(paths * 20)

    assert n_open_files() == before


def test_what_is_not_in_memory_is_left_or_right(path):
    """A file system may keep a file in memory that is to be dropped."""
    file = path("cold", NOISE[:EACH])
    fd = os.open(file, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)

    found, nbytes = files_read([file])

    assert (found, nbytes) in [([NOISE[:EACH]], [EACH]), ([b""], [LEFT])]


def test_without_the_loops_every_file_is_left(path, monkeypatch):
    without_loops(monkeypatch)

    assert files_read([path("file", b"abc"), "/nowhere"])[1] == [LEFT, LEFT]


# ---- ranges of a file


def ranges_read(file, wanted, first=0):
    """What ranges of a file are read, and the first one that is left."""
    total = sum(part.nbytes for part in wanted)
    memory = bytearray(b"\xaa" * (total + GUARD))
    fd = os.open(file, os.O_RDONLY)
    try:
        left = read_ranges(fd, wanted, memoryview(memory)[:total], first)
    finally:
        os.close(fd)
    assert memory[total:] == b"\xaa" * GUARD
    return bytes(memory[:total]), left


def ranges(*pairs):
    return [ByteRange(offset=offset, nbytes=nbytes) for offset, nbytes in pairs]


def test_ranges_lie_side_by_side(path):
    wanted = ranges((10, 5), (4096, 700), (0, 1), (512, 512), (7999, 1), (10, 5))

    found, left = ranges_read(path("file", NOISE), wanted)

    assert found == b"".join(NOISE[r.offset : r.offset + r.nbytes] for r in wanted)
    assert left == 6


@pytest.mark.parametrize("wanted", [(7990, 11), (8000, 1), (9000, 5)])
def test_a_range_behind_the_end_of_a_file_is_left(path, wanted):
    file = path("file", NOISE)

    assert ranges_read(file, ranges((0, 8), wanted, (16, 8)))[1] == 1

    found, left = ranges_read(file, ranges((0, 8), wanted, (16, 8)), first=2)
    assert (found[-8:], left) == (NOISE[16:24], 3)
    assert set(found[:-8]) == {0xAA}


def test_ranges_of_a_directory_are_left(tmp_path):
    assert ranges_read(tmp_path, ranges((0, 8)))[1] == 0


def test_none_are_left(path):
    assert ranges_read(path("file", NOISE), ranges((0, 8)), first=1)[1] == 1


def test_without_the_loops_the_first_range_is_left(path, monkeypatch):
    without_loops(monkeypatch)

    assert ranges_read(path("file", NOISE), ranges((0, 8), (8, 8)))[1] == 0
