"""zstd frames that nvCOMP is given: none that is cut, odd or damaged, whatever lies around it.

A kernel judges them, here on the host. What the host looks at itself, in columns, is the headers; all that these refuse
the kernel refuses as well.
"""

import gzip

import numpy as np
import pytest
import zstandard
from helpers.data import zstd_frames as by_hand
from helpers.data.zstd_frames import COMPRESSED, KIB, RAW, RESERVED, RLE, flushed_zstd, is_plain, zstd
from helpers.kernels.on_host import require_compiler
from helpers.kernels.runs import run_check
from helpers.profiles import many
from hypothesis import example, given
from hypothesis import strategies as st

from xarray_gpuzarr.cuda.launch import SPARE_FRAME
from xarray_gpuzarr.frames.device_ready import device_ready
from xarray_gpuzarr.stored.codecs import ZstdSpec

TEXT = b"a shard holds chunks; " * 900
RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def compiler():
    require_compiler()


def ready(frames, expected):
    """Lay the frames side by side, with nothing before the first and after the last, and judge them."""
    nbytes = np.array([len(frame) for frame in frames], np.int64)
    data = np.frombuffer(b"".join(frames), np.uint8)
    return judged(data, np.cumsum(nbytes) - nbytes, nbytes, expected)


def judged(data, start, nbytes, expected):
    ready = device_ready(ZstdSpec(), data, start, nbytes, expected)
    found = run_check([data[i : i + n].tobytes() for i, n in zip(start, nbytes, strict=True)], expected)
    assert not (np.array(found, bool) & ~ready).any()
    return found


PLAIN = zstandard.ZstdCompressor().compress(TEXT)
TRAINED = zstandard.train_dictionary(1000, [RNG.bytes(20) + TEXT[: 100 + i] for i in range(100)])
SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
EMPTY_FRAME = zstandard.ZstdCompressor().compress(b"")
UNUSUAL = {
    "no length": zstandard.ZstdCompressor(write_content_size=False).compress(TEXT),
    "checksum": zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
    "dictionary": zstandard.ZstdCompressor(dict_data=TRAINED).compress(TEXT),
    "skippable frame first": SKIPPABLE + PLAIN,
    "skippable frame last": PLAIN + SKIPPABLE,
    "two frames": zstandard.ZstdCompressor().compress(TEXT[:100]) + zstandard.ZstdCompressor().compress(TEXT[100:]),
    "empty frame first": EMPTY_FRAME + PLAIN,
    "empty frame last": PLAIN + EMPTY_FRAME,
    "one byte more": PLAIN + b"\0",
    "no magic": zstd(format=zstandard.FORMAT_ZSTD1_MAGICLESS)(TEXT),
    "another format": gzip.compress(TEXT),
    "flushed every third byte": flushed_zstd(TEXT, len(TEXT) // 3),
}


def test_unusual_zstd_frames_are_left_to_the_host():
    frames = [PLAIN, *UNUSUAL.values(), PLAIN]

    assert ready(frames, len(TEXT)) == [True, *[False] * len(UNUSUAL), True]
    assert [is_plain(frame, len(TEXT)) for frame in frames] == [True, *[False] * len(UNUSUAL), True]


LONG_RAW = by_hand.header(content_size=9, width=8, window=0) + by_hand.blocks((RAW, 4), (RLE, 5), (RAW, 0))


@pytest.mark.sanitized
@pytest.mark.parametrize(
    ("frame", "expected"),
    [(PLAIN, len(TEXT)), (flushed_zstd(bytes(3000)), 3000), (zstd(window_log=10)(TEXT), len(TEXT)), (LONG_RAW, 9)],
    ids=["plain", "flushed", "many blocks", "raw and repeated"],
)
def test_zstd_frame_cut_at_any_byte_is_refused_though_the_rest_follows_it(frame, expected):
    data = np.frombuffer(frame + frame, np.uint8)
    nbytes = np.arange(2 * len(frame) + 1)

    found = judged(data, np.zeros_like(nbytes), nbytes, expected)

    assert np.flatnonzero(found).tolist() == [len(frame)]


@pytest.mark.sanitized
@pytest.mark.parametrize("frame", [LONG_RAW, PLAIN[:100]], ids=["long header", "plain"])
def test_zstd_frame_cut_at_the_end_of_the_data_is_refused(frame):
    assert [ready([frame[:n]], 9) for n in range(len(frame))] == [[False]] * len(frame)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("window", [None, 0x58])
def test_length_is_read_at_every_width_and_place(width, window):
    expected = {1: 200, 2: 256, 4: 70_000, 8: 70_000}[width]
    frame = by_hand.header(content_size=expected, width=width, window=window) + by_hand.blocks((RLE, expected))
    readable = width > 1 or window is None

    assert ready([frame, frame], expected) == [readable] * 2


def test_length_beyond_63_bits_is_not_taken_for_its_lower_bits():
    frame = by_hand.header(content_size=2**63 + 300, width=8) + by_hand.blocks((RLE, 300))

    assert ready([frame], 300) == [False]


@pytest.mark.sanitized
@pytest.mark.parametrize("beyond", [0, 1])
def test_every_window_descriptor_limits_the_block(beyond):
    longest = [min(2 ** (10 + d // 8) * (8 + d % 8) // 8, 128 * KIB) + beyond for d in range(256)]
    rest = [(COMPRESSED, 2)] * 256
    frames = [
        by_hand.header(content_size=200 * KIB, width=4, window=d) + by_hand.blocks((RLE, n), *rest)
        for d, n in enumerate(longest)
    ]

    assert ready(frames, 200 * KIB) == [beyond == 0] * 176 + [False] * 80


def test_single_segment_is_its_own_window():
    frames = [by_hand.header(content_size=99, width=1) + by_hand.blocks((COMPRESSED, n)) for n in (98, 99, 100)]

    assert ready(frames, 99) == [True, True, False]


SIZES = [
    ("whole block", [(RLE, 128 * KIB), (RLE, 72 * KIB)], True),
    ("too long a block of one value", [(RLE, 128 * KIB + 1), (RLE, 72 * KIB - 1)], False),
    ("too long a raw block", [(RAW, 128 * KIB + 1), (RLE, 72 * KIB - 1)], False),
    ("too long a compressed block", [(COMPRESSED, 128 * KIB + 1), (RLE, 1)], False),
    ("reserved type", [(RESERVED, 1), (COMPRESSED, 3), (COMPRESSED, 3)], False),
    ("blocks beyond the length", [(RLE, 128 * KIB), (COMPRESSED, 5), (RLE, 72 * KIB + 1)], False),
    ("blocks below the length", [(RLE, 128 * KIB), (RLE, 72 * KIB - 1)], False),
    ("compressed blocks that may fit", [(COMPRESSED, 2), (COMPRESSED, 2)], True),
    ("compressed blocks that are too few", [(COMPRESSED, 9)], False),
    ("compressed block without its two headers", [(COMPRESSED, 9), (COMPRESSED, 9), (COMPRESSED, 1)], False),
    ("empty last block", [(COMPRESSED, 9), (COMPRESSED, 9), (RAW, 0)], True),
]


@pytest.mark.sanitized
@pytest.mark.parametrize(("kinds_and_sizes", "found"), [row[1:] for row in SIZES], ids=[row[0] for row in SIZES])
def test_block_sizes_must_be_possible(kinds_and_sizes, found):
    frame = by_hand.header(content_size=200 * KIB, width=4) + by_hand.blocks(*kinds_and_sizes)

    assert ready([frame, PLAIN], 200 * KIB) == [found, False]


@pytest.mark.sanitized
def test_frame_of_endless_blocks_is_given_up():
    hole = by_hand.header(content_size=2000, width=2) + bytes(3_000_000)

    assert ready([hole], 2000) == [False]


headers = st.builds(
    by_hand.header,
    content_size=st.sampled_from([1, 600, 1500, 1800]),
    width=st.sampled_from([0, 1, 2, 2, 4, 8]),
    window=st.none() | st.sampled_from([0, 1, 7, 8, 175, 176, 255]),
    low_bits=st.sampled_from([0] * 9 + [1, 2, 4, 8, 16]),
)
bodies = st.lists(
    st.tuples(st.sampled_from([RAW, RAW, RLE, RLE, COMPRESSED, RESERVED]), st.sampled_from([0, 1, 2, 300, 600, 1300])),
    min_size=1,
    max_size=5,
).map(lambda rows: by_hand.blocks(*rows))
tails = st.sampled_from([b""] * 5 + [b"\0", b"\1\0\0", PLAIN])
handmade = st.tuples(headers, bodies, tails).map(b"".join)
damaged = st.builds(
    lambda frame, at, value, keep: (frame[: at % len(frame)] + bytes([value]) + frame[at % len(frame) + 1 :])[:keep],
    st.sampled_from([PLAIN, UNUSUAL["two frames"], flushed_zstd(bytes(1800)), zstd(window_log=10)(bytes(1800))]),
    st.integers(0, 30) | st.integers(0, 2000),
    st.integers(0, 255),
    st.just(None) | st.integers(0, 2000),
)


@pytest.mark.sanitized
@many
@given(
    frames=st.lists(handmade | damaged | st.binary(max_size=40), max_size=6),
    expected=st.sampled_from([0, 1, 600, 1500, 1800, len(TEXT)]),
)
@example(frames=[LONG_RAW, b"", LONG_RAW[:9]], expected=9)
def test_all_frames_at_once_are_judged_like_each_alone(frames, expected):
    found = ready(frames, expected)

    assert found == [is_plain(frame, expected) for frame in frames]


@many
@given(frame=handmade | damaged, expected=st.sampled_from([1, 600, 1500, 1800, len(TEXT)]))
def test_accepted_frame_says_the_same_to_libzstd(frame, expected):
    if ready([frame], expected) == [True]:
        said = zstandard.get_frame_parameters(frame)
        assert (said.content_size, said.dict_id, said.has_checksum) == (expected, 0, False)


@many
@given(
    rows=st.lists(st.tuples(st.sampled_from([RAW, RLE]), st.integers(0, 1200)), min_size=1, max_size=4),
    expected=st.integers(256, 2000),
)
@example(rows=[(RLE, 1024), (RAW, 0)], expected=1024)
def test_frame_without_compressed_blocks_is_accepted_only_if_libzstd_decodes_it(rows, expected):
    frame = by_hand.header(content_size=expected, width=2, window=0) + by_hand.blocks(*rows)
    if ready([frame], expected) == [True]:
        assert len(zstandard.ZstdDecompressor().decompress(frame)) == expected


def test_spare_frame_is_one_that_libzstd_decodes():
    assert zstandard.ZstdDecompressor().decompress(SPARE_FRAME.tobytes()[:10]) == b"A"
    assert SPARE_FRAME.nbytes == 16


@pytest.mark.sanitized
@pytest.mark.parametrize("n", [1, 31, 32, 33, 200])
def test_each_of_many_frames_is_judged_by_itself(n):
    frames = [PLAIN if i % 3 else PLAIN + b"\0" for i in range(n)]

    assert run_check(frames, len(TEXT)) == [bool(i % 3) for i in range(n)]
