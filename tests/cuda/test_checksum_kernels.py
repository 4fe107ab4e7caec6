"""The kernels that compute checksums, on the host, against zlib and google_crc32c."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
from helpers.kernels.memory import aligned
from helpers.kernels.on_host import HostLaunches, assert_sanitizers_catch
from helpers.kernels.runs import checksums
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.cuda.checksum import TILE_NBYTES, Kind, checksum, final_checksums

pytestmark = pytest.mark.usefixtures("compiler")

Bytes = npt.NDArray[np.uint8]

ORACLES: dict[Kind, Callable[[bytes], int]] = {
    "crc32": zlib.crc32,
    "crc32c": google_crc32c.value,
    "adler32": zlib.adler32,
}
every_kind = pytest.mark.parametrize("kind", ORACLES)

STRIDE = 4096
BORDERS = (16, 256, STRIDE, TILE_NBYTES, TILE_NBYTES + STRIDE, 2 * TILE_NBYTES)
LENGTHS = [0, 1, 2, 3, *(n + d for n in BORDERS for d in (-1, 0, 1)), 3_000_001]


def noise(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).bytes(nbytes)


@pytest.mark.sanitized
@every_kind
@pytest.mark.parametrize("offset", [0, 1, 8, 15])
@pytest.mark.parametrize("nbytes", LENGTHS)
def test_any_length_at_any_alignment(kind: Kind, nbytes: int, offset: int) -> None:
    content = noise(nbytes)
    assert checksums(kind, (content, offset)) == [ORACLES[kind](content)]


@every_kind
@pytest.mark.parametrize("byte", [b"\x00", b"\x01", b"\xff"])
@pytest.mark.parametrize("nbytes", [1, 5552, 5553, TILE_NBYTES, 20_000_003])
def test_sums_of_equal_bytes_do_not_overflow(kind: Kind, nbytes: int, byte: bytes) -> None:
    content = byte * nbytes
    assert checksums(kind, (content, 5)) == [ORACLES[kind](content)]


@pytest.mark.sanitized
@pytest.mark.parametrize(("kind", "value"), [("crc32", 0xCA72F00B), ("crc32c", 0x57ECBA8A), ("adler32", 0x00D10001)])
def test_longest_message(kind: Kind, value: int) -> None:
    # All are zeros, which add nothing: one tile is launched, and only there memory is needed. Values from the oracles.
    nbytes, tile = 2**32 - 16, aligned(TILE_NBYTES)
    tile[:] = 0
    table = np.array([tile.ctypes.data + TILE_NBYTES - nbytes, nbytes, 0], np.uint64)
    places = {"table": table.ctypes.data, "result": table[2:].ctypes.data}
    checksum(HostLaunches(), None, kind, n=1, max_nbytes=1, **places)
    assert final_checksums(kind, table[2:]).tolist() == [value]


@pytest.mark.sanitized
@every_kind
def test_many_messages_in_one_launch(kind: Kind) -> None:
    contents = [noise(n) for n in (7, 0, 200_000, *range(300), 70_000, 0)]
    messages = [(content, i % 16) for i, content in enumerate(contents)]
    assert checksums(kind, *messages) == [ORACLES[kind](content) for content in contents]


CONTENTS = st.one_of(
    st.binary(max_size=100),
    st.builds(noise, st.integers(0, 3 * TILE_NBYTES)),
    st.builds(lambda nbytes: b"\xff" * nbytes, st.integers(0, 3 * TILE_NBYTES)),
)


@given(st.sampled_from(list(ORACLES)), st.lists(st.tuples(CONTENTS, st.integers(0, 31)), max_size=6))
def test_any_messages(kind: Kind, messages: list[tuple[bytes, int]]) -> None:
    assert checksums(kind, *messages) == [ORACLES[kind](content) for content, _ in messages]


@every_kind
@pytest.mark.parametrize(
    ("n", "max_nbytes", "why"),
    [(1, 2**32 - 15, "at most 4294967280"), (2**31, 1, "2147483648 blocks of threads")],
)
def test_too_much_for_one_launch_is_refused(kind: Kind, n: int, max_nbytes: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        checksum(HostLaunches(), None, kind, table=0, n=n, max_nbytes=max_nbytes, result=0)


# ---- accesses outside of the messages

OUTSIDE = """
import numpy as np
from helpers.kernels.on_host import HostLaunches
from helpers.kernels.memory import aligned
from xarray_gpuzarr.cuda.checksum import checksum

message = aligned(70000, 8)

def run(start, end):
    nbytes = end - start
    table = np.array([message.ctypes.data + start, nbytes, 0], np.uint64)
    places = dict(table=table.ctypes.data, result=table[2:].ctypes.data)
    checksum(HostLaunches(), None, "crc32", n=1, max_nbytes=nbytes, **places)
"""


def test_sanitizers_catch_wrong_tables() -> None:
    said = assert_sanitizers_catch(OUTSIDE, harmless=[(0, 70000)], aborted=[(-1, 70000), (0, 70001)])
    assert said.count("READ of size 1") == 2
