"""The kernels that unshuffle Blosc blocks and decode blosclz, on the host, against NumPy and C-Blosc."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Sequence
from dataclasses import replace

import numcodecs
import numpy as np
import pytest
from helpers.kernels.blosc_runs import (
    BITSHUFFLE,
    COPY,
    DAMAGED,
    OK,
    SHUFFLE,
    Block,
    Coded,
    Decoded,
    as_c_blosc_has_it,
    c_blosc,
    coded_streams,
    decompressed,
    run_blosclz,
    run_unshuffle,
)
from helpers.kernels.on_host import HostLaunches, assert_sanitizers_catch, run_child
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.cuda.blosc import MAX_NBYTES, unshuffle

pytestmark = pytest.mark.usefixtures("compiler")

OFFSETS = [(0, 0), (1, 0), (0, 1), (3, 2), (4, 4), (8, 8), (2, 13), (15, 15)]
"""Where sources and targets begin, modulo 16."""
TILE = 1 << 15


def noise(nbytes: int) -> bytes:
    return np.random.default_rng(nbytes).bytes(nbytes)


# ---- unshuffling


def assert_unshuffled(blocks: Sequence[Block]) -> None:
    for block, found in zip(blocks, run_unshuffle(blocks), strict=True):
        assert found == block.unshuffled(), (len(block.content), block.typesize, block.filter, block.offsets)


@pytest.mark.sanitized
@pytest.mark.parametrize("offsets", OFFSETS, ids=str)
@pytest.mark.parametrize("chosen", [COPY, SHUFFLE, BITSHUFFLE])
def test_block_of_any_typesize_and_alignment(chosen: int, offsets: tuple[int, int]) -> None:
    typesizes = [*range(1, 18), 24, 31, 32, 33, 48, 64, 100, 127, 128, 129, 200, 254, 255]
    lengths = [(8, 0), (16, 0), (120, 3), (1000, 0), (1024, 15), (1064, 1)]
    contents = [(noise(n * ts + min(tail, ts - 1)), ts) for ts in typesizes for n, tail in lengths]
    assert_unshuffled([Block(content=c, typesize=ts, filter=chosen, offsets=offsets) for c, ts in contents])


@pytest.mark.sanitized
@pytest.mark.parametrize("typesize", [1, 2, 3, 4, 8, 12, 16, 255])
@pytest.mark.parametrize("chosen", [COPY, SHUFFLE, BITSHUFFLE])
def test_block_of_any_length(chosen: int, typesize: int) -> None:
    steps = (0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40)
    lengths = [*range(70), *(n * TILE + d for n in (1, 2) for s in steps for d in (-s * typesize, s * typesize, s))]
    contents = [noise(n) for n in lengths if n >= 0]
    assert_unshuffled(
        [Block(content=c, typesize=typesize, filter=as_c_blosc_has_it(c, typesize, chosen)) for c in contents]
    )


@pytest.mark.sanitized
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 100), st.integers(0, 3 * TILE), st.integers(0, 24).map(lambda i: i * 2048)),
            st.one_of(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 255)),
            st.sampled_from([COPY, SHUFFLE, BITSHUFFLE]),
            st.tuples(st.integers(0, 31), st.integers(0, 31)),
        ),
        max_size=6,
    )
)
def test_any_blocks_in_one_launch(rows: list[tuple[int, int, int, tuple[int, int]]]) -> None:
    assert_unshuffled(
        [
            Block(content=noise(n), typesize=ts, filter=as_c_blosc_has_it(noise(n), ts, chosen), offsets=offsets)
            for n, ts, chosen, offsets in rows
        ]
    )


@pytest.mark.parametrize(("n", "max_nbytes", "why"), [(1, 2**31, "2147483648 bytes"), (2**31, 1, "2147483648 blocks")])
def test_too_much_for_one_launch_is_refused(n: int, max_nbytes: int, why: str) -> None:
    assert max_nbytes in {1, MAX_NBYTES + 1}
    with pytest.raises(ValueError, match=why):
        unshuffle(HostLaunches(), None, table=0, n=n, max_nbytes=max_nbytes)


# ---- blosclz streams


def assert_as_c_blosc(rows: Sequence[Coded]) -> None:
    for row, found in zip(rows, run_blosclz(rows), strict=True):
        expected = c_blosc(row)
        assert found.status == (DAMAGED if expected is None else OK), row
        assert found.actual <= row.nbytes
        assert set(found.content[found.actual :]) <= {0xA5}
        if expected is not None:
            assert (found.actual, found.content) == (row.nbytes, expected)


def literals(content: bytes) -> bytes:
    return b"".join(bytes([len(run) - 1, *run]) for run in map(bytes, itertools.batched(content, 32)))


def match(distance: int, length: int) -> bytes:
    more = length - 9
    long = b"" if more < 0 else b"\xff" * (more // 255) + bytes([more % 255])
    control = min(length - 2, 7) << 5
    if distance < 8192:
        return bytes([control | (distance - 1) >> 8]) + long + bytes([(distance - 1) & 0xFF])
    return bytes([control | 31]) + long + b"\xff" + struct.pack(">H", distance - 8192)


def repeated(before: bytes, distance: int, length: int) -> bytes:
    out = bytearray(before)
    for _ in range(length):
        out.append(out[-distance])
    return bytes(out)


def assert_match_decodes(before: bytes, distance: int, lengths: Sequence[int]) -> None:
    rows = []
    for i, length in enumerate(lengths):
        stream = literals(before) + match(distance, length) + literals(b"end")
        rows.append(Coded(stream=stream, nbytes=len(before) + length + 3, offsets=(i % 16, i // 16 % 16)))
    for length, found in zip(lengths, run_blosclz(rows), strict=True):
        assert found.status == OK
        assert found.content == repeated(before, distance, length) + b"end"
    assert_as_c_blosc(rows[:1])


@pytest.mark.sanitized
@pytest.mark.parametrize("distance", range(1, 41))
def test_match_that_overlaps_itself(distance: int) -> None:
    assert_match_decodes(noise(40), distance, range(3, 600))


@pytest.mark.sanitized
@pytest.mark.parametrize("distance", [63, 64, 100, 255, 256, 257, 8190, 8191, 8192, 8193, 8447, 8448, 73726, 73727])
def test_match_at_any_distance(distance: int) -> None:
    assert_match_decodes(noise(distance), distance, [3, 8, 9, 10, 127, 128, 129, 263, 264, 265, 519, 9000, 80000])
    assert_match_decodes(noise(distance + 5), distance, [3, 100])


@pytest.mark.sanitized
@pytest.mark.parametrize("length", [1, 31, 32, 33, 127, 128, 129, 100_000])
@pytest.mark.parametrize("offset", [0, 1, 3, 31, 126, 127])
def test_run_of_literals(length: int, offset: int) -> None:
    content = noise(length)
    (found,) = run_blosclz([Coded(stream=literals(content), nbytes=length, offsets=(offset, offset % 7))])
    assert (found.status, found.content) == (OK, content)


def test_upper_bits_of_the_first_byte_are_ignored() -> None:
    stream = literals(b"abc")
    (found,) = run_blosclz([Coded(stream=bytes([stream[0] | 0xE0]) + stream[1:], nbytes=3)])
    assert (found.status, found.content) == (OK, b"abc")


ABC = literals(b"abc")


@pytest.mark.sanitized
@pytest.mark.parametrize(
    ("stream", "nbytes", "actual"),
    [
        (b"", 3, 0),
        (ABC, 2, 0),
        (ABC, 4, 3),
        (ABC[:-1], 3, 0),
        (ABC[:1], 3, 0),
        (ABC + match(3, 5), 8, 3),
        (ABC + match(3, 5)[:1], 8, 3),
        (ABC + match(4, 5) + ABC, 11, 3),
        (ABC + match(3, 5) + ABC, 10, 8),
        (ABC + match(3, 5) + ABC, 7, 3),
        (ABC + match(3, 300)[:2] + b"\xff" * 500, 400, 3),
        (ABC + match(9000, 5) + ABC, 11, 3),
        (ABC + match(9000, 5)[:-1], 11, 3),
    ],
    ids=lambda v: v.hex()[:24] if isinstance(v, bytes) else str(v),
)
def test_damaged_stream_is_told_from_its_intact_neighbours(stream: bytes, nbytes: int, actual: int) -> None:
    intact = Coded(stream=ABC, nbytes=3)
    before, found, behind = run_blosclz([intact, Coded(stream=stream, nbytes=nbytes), intact])
    assert (found.status, found.actual) == (DAMAGED, actual)
    assert (before, behind) == (Decoded(status=OK, actual=3, content=b"abc"),) * 2


@pytest.mark.sanitized
def test_nothing_to_decode() -> None:
    assert run_blosclz([]) == []
    assert run_blosclz([Coded(stream=b"", nbytes=0)]) == [Decoded(status=OK, actual=0, content=b"")]


TOKENS = st.one_of(
    st.binary(min_size=1, max_size=40).map(literals),
    st.builds(match, st.integers(1, 60), st.integers(3, 300)),
    st.builds(match, st.one_of(st.integers(1, 300), st.integers(8000, 9000)), st.integers(3, 300)),
    st.binary(max_size=3),
)
STREAMS = st.one_of(st.binary(min_size=1, max_size=300), st.lists(TOKENS, min_size=1, max_size=20).map(b"".join))
ANY_OFFSETS = st.tuples(st.integers(0, 140), st.integers(0, 20))


@pytest.mark.sanitized
@given(st.lists(st.tuples(STREAMS, st.integers(1, 2000), ANY_OFFSETS), min_size=1, max_size=9))
def test_any_bytes_are_decoded_as_c_blosc_does_or_not_at_all(table: list[tuple[bytes, int, tuple[int, int]]]) -> None:
    rows = [Coded(stream=s, nbytes=n, offsets=o) for s, n, o in table if s and n != len(s)]
    assert_as_c_blosc(rows)
    fitting = [replace(row, nbytes=found.actual) for row, found in zip(rows, run_blosclz(rows), strict=True)]
    assert_as_c_blosc([row for row in fitting if row.nbytes not in {0, len(row.stream)}])


# ---- frames


def contents() -> dict[str, bytes]:
    rng = np.random.default_rng(3)
    walked = rng.integers(-3, 4, 50_001).cumsum()
    return {
        "steps": walked.astype("i4").tobytes(),
        "wave": (100 * np.sin(np.arange(60_000) / 500)).astype("i4").tobytes(),
        "zeros": bytes(300_001),
        "words": b" ".join(rng.choice([b"shard", b"chunk", b"inner", b"codec pipeline"], 20_000).tolist()),
        "rare": (rng.random(150_000) < 0.01).astype("u1").tobytes(),
    }


CONTENTS = contents()


def compressed(content: bytes, *, clevel: int = 5, shuffle: int = 0, typesize: int = 1, blocksize: int = 0) -> bytes:
    codec = numcodecs.Blosc("blosclz", clevel=clevel, shuffle=shuffle, blocksize=blocksize)
    return bytes(codec.encode(np.frombuffer(content[: len(content) // typesize * typesize], f"V{typesize}")))


@pytest.mark.parametrize("typesize", [1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 255])
@pytest.mark.parametrize("shuffle", [COPY, SHUFFLE, BITSHUFFLE])
@pytest.mark.parametrize("name", ["wave", "words"])
def test_frame_of_any_typesize(name: str, shuffle: int, typesize: int) -> None:
    frame = compressed(CONTENTS[name], clevel=9, shuffle=shuffle, typesize=typesize, blocksize=32_000)
    assert decompressed(frame) == numcodecs.Blosc().decode(frame)


@pytest.mark.sanitized
@pytest.mark.parametrize("blocksize", [0, 256, 4096, 50_001, 1 << 20])
@pytest.mark.parametrize("name", CONTENTS)
def test_frame_of_any_blocksize(name: str, blocksize: int) -> None:
    frame = compressed(CONTENTS[name], clevel=9, blocksize=blocksize)
    assert decompressed(frame) == numcodecs.Blosc().decode(frame)


INTACT = [
    coded
    for name in ("steps", "words", "wave")
    for coded in coded_streams(compressed(CONTENTS[name], clevel=9, typesize=4, blocksize=1 << 14))[:4]
    if len(coded.stream) != coded.nbytes
]


@pytest.mark.sanitized
@given(st.sampled_from(INTACT), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=4))
def test_flipped_bits_are_decoded_as_c_blosc_does_or_not_at_all(row: Coded, flips: list[tuple[float, int]]) -> None:
    stream = bytearray(row.stream)
    for where, bit in flips:
        stream[int(where * len(stream))] ^= 1 << bit
    assert_as_c_blosc([Coded(stream=bytes(stream), nbytes=row.nbytes, offsets=row.offsets)])


@pytest.mark.sanitized
@given(st.sampled_from(INTACT), st.floats(0, 1, exclude_max=True), st.integers(-3, 3))
def test_cut_streams_and_other_lengths_are_damaged(row: Coded, where: float, more: int) -> None:
    cut = row.stream[: int(where * len(row.stream))]
    rows = [Coded(stream=cut, nbytes=row.nbytes), Coded(stream=row.stream, nbytes=row.nbytes + more)]
    assert [found.status for found in run_blosclz(rows)] == [DAMAGED, DAMAGED if more else OK]


@pytest.mark.sanitized
@pytest.mark.parametrize("n", [*range(1, 20), 31, 32, 33, 65, 150])
def test_any_number_of_streams_shares_warps(n: int) -> None:
    rows = [replace(row, stream=row.stream[: len(row.stream) - i % 3 // 2]) for i, row in enumerate(INTACT * 20)]
    assert_as_c_blosc(rows[:n])


# ---- accesses outside of what the tables describe

OUTSIDE = """
import numpy as np
from helpers.kernels.on_host import HostLaunches
from helpers.kernels.memory import aligned
from xarray_gpuzarr.cuda.blosc import blosclz, unshuffle

source, target, result = aligned(70000), aligned(70000), np.zeros(2, np.uint64)
source[:] = 0

def run(name, source_nbytes, target_nbytes):
    source_at, target_at = source.ctypes.data, target.ctypes.data
    if name == "blosclz":
        table = np.array([source_at, source_nbytes, target_at, target_nbytes], np.uint64)
        places = dict(actual=result.ctypes.data, status=result[1:].ctypes.data)
        return blosclz(HostLaunches(), None, table=table.ctypes.data, n=1, **places)
    filter = 1 if name == "bytes" else 2
    ends = source_at + 70000 - source_nbytes, target_at + 70000 - target_nbytes
    table = np.array([*ends, 4096, 4, filter], np.uint64)
    unshuffle(HostLaunches(), None, table=table.ctypes.data, n=1, max_nbytes=4096)
"""


def test_sanitizers_catch_wrong_tables() -> None:
    assert_sanitizers_catch(
        OUTSIDE,
        harmless=[("blosclz", 70000, 70000), ("blosclz", 70000, 35000), ("bytes", 4096, 4096), ("bits", 4096, 4096)],
        aborted=[
            ("blosclz", 70008, 70000),
            *((name, *nbytes) for name in ("bytes", "bits") for nbytes in ((4095, 4096), (4096, 4095))),
        ],
    )


LEFT_OUT = """
from helpers.kernels import on_host as host_kernels
from xarray_gpuzarr.cuda.api import Kernel

host_kernels.kernel_source = lambda kernel: '''
extern "C" __global__ void leave_out(unsigned long long n) { if (threadIdx.x < n) __syncwarp(); }
'''
host_kernels.launch(Kernel(file="leave_out.cu", name="leave_out"), 1, 64, (N,))
"""


@pytest.mark.parametrize(("n", "is_allowed"), [(64, True), (32, True), (33, False)])
def test_barrier_that_a_part_of_a_warp_leaves_out_aborts(n: int, is_allowed: bool) -> None:
    child = run_child(dict(os.environ), "-c", LEFT_OUT.replace("N,", f"{n},"))
    assert (child.returncode == 0) is is_allowed, child.stderr
