"""Streams and blocks of Blosc frames: decoding them gives the original, and a damaged frame points nowhere else."""

import itertools
import zlib

import imagecodecs
import numcodecs.blosc
import numpy as np
import pytest
import zstandard
from helpers.data import blosc_frames as by_hand
from helpers.data.blosc_frames import RAW, assemble, decode, encode, header, parts_of, read, stored, streams
from helpers.fuzz import laid
from helpers.profiles import many
from hypothesis import example, given
from hypothesis import strategies as st

from xarray_gpuzarr.frames.blosc import walk_blosc

RNG = np.random.default_rng(7)


def walk(frames, expected):
    """Return what is found in each frame, in the form of `read`."""
    data, start, nbytes = laid(frames)
    return parts_of(walk_blosc(data, start, nbytes, expected), start)


def ready(frames, expected):
    return walk_blosc(*laid(frames), expected).ready.tolist()


def payload(nbytes, seed=0):
    """Return little numbers with some noise: parts of a frame compress and parts do not."""
    rng = np.random.default_rng(seed)
    numbers = (np.arange(nbytes // 4 + 1) % 1000 + 0.25 * rng.integers(0, 4, nbytes // 4 + 1)).astype("f4")
    numbers[: len(numbers) // 2] += rng.random(len(numbers) // 2, "f4") / 1000
    return numbers.tobytes()[:nbytes]


def assert_decodes(frames, content):
    """Decode from the columns alone, and compare the columns with those that are read frame by frame."""
    data, start, nbytes = laid(frames)
    found = walk_blosc(data, start, nbytes, len(content))

    assert found.ready.all()
    assert (decode(data, found, len(content)) == np.frombuffer(content, np.uint8)).all()
    assert parts_of(found, start) == [read(frame, len(content)) for frame in frames]


TYPESIZES = (*range(1, 18), 32, 255)
SETTINGS = [*itertools.product(TYPESIZES, (1, 5)), *itertools.product((1, 4, 6), range(10)), (255, 9)]
LENGTHS = {
    "one byte": 1,
    "odd": 13,
    "one block": 2048,
    "elements that do not fill a byte": 2047 * 4,
    "block and rest": 70_001,
    "many blocks": 300_000,
}


@pytest.mark.parametrize("nbytes", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("shuffle", [0, 1, 2])
@pytest.mark.parametrize("cname", [b"blosclz", b"lz4", b"lz4hc", b"zlib", b"zstd"])
def test_frames_of_numcodecs_decode_from_their_streams(cname, shuffle, nbytes):
    content = payload(nbytes)
    settings = SETTINGS if nbytes < 100_000 else SETTINGS[::7]
    frames = [numcodecs.blosc.compress(content, cname, level, shuffle, 0, typesize) for typesize, level in settings]

    assert_decodes(frames, content)


CONTENT = payload(5000)
HANDMADE = {
    f"{cname}, typesize {typesize}, shuffle {shuffle}{'' if split else ', not split'}": encode(
        CONTENT, cname=cname, typesize=typesize, shuffle=shuffle, split=split, order=[3, 0, 4, 1, 2], gap=b"gap"
    )
    for cname in ("lz4", "snappy", "zlib", "zstd")
    for typesize in (1, 4, 7, 8, 16, 17)
    for shuffle in (0, 1, 2)
    for split in (True, False)
}
HANDMADE["an element too few to split"] = encode(CONTENT, typesize=8, blocksize=127 * 8)


def test_handmade_frames_decode_from_their_streams():
    assert [imagecodecs.blosc_decode(frame) for frame in HANDMADE.values()] == [CONTENT] * len(HANDMADE)
    assert_decodes(list(HANDMADE.values()), CONTENT)


@pytest.mark.parametrize("flags", [2, 3, 6, 0x22, 0x33, 0x93])
def test_stored_frame_is_one_raw_stream_and_has_no_filter(flags):
    assert walk([stored(CONTENT, flags=flags)], 5000) == [([(16, 5000, 0, 5000, RAW)], [])]


BLOCK = streams(zlib.compress(bytes(1024)))
FIELDS = {"typesize": 4, "nbytes": 2048, "blocksize": 1024}
PLAIN = assemble([BLOCK, BLOCK], flags=0x71, **FIELDS)
EXACT = assemble([streams(b"\0", b"\0", b"\0", b"\0")] * 2, flags=1, **FIELDS)


def with_bytes(frame, at, value):
    """Return `frame` with some bytes replaced."""
    return frame[:at] + value + frame[at + len(value) :]


def word(n):
    return (n % 2**32).to_bytes(4, "little")


def at_one_place(nbytes):
    """Return a frame of a block and a rest that are the same bytes."""
    return (
        header(flags=0x31, **FIELDS | {"blocksize": 1500}, cbytes=24 + nbytes)
        + word(24) * 2
        + streams(b"0" * (nbytes - 4))
    )


FRAMES = {
    "plain": (PLAIN, True),
    "format version": (with_bytes(PLAIN, 0, b"\1"), False),
    "codec version": (with_bytes(PLAIN, 1, b"\2"), False),
    "both shuffles": (with_bytes(PLAIN, 2, b"\x75"), False),
    "reserved flag": (with_bytes(PLAIN, 2, b"\x79"), False),
    **{f"codec {n}": (with_bytes(PLAIN, 2, bytes([n << 5 | 17])), n in (0, 1, 3)) for n in range(8)},
    "typesize 0": (with_bytes(PLAIN, 3, b"\0"), False),
    "declared length": (with_bytes(PLAIN, 4, word(2049)), False),
    "blocksize 0": (with_bytes(PLAIN, 8, word(0)), False),
    "blocksize -1": (with_bytes(PLAIN, 8, word(-1)), False),
    "blocksize beyond the chunk": (assemble([BLOCK], flags=0x71, **FIELDS | {"blocksize": 2049}), False),
    "length of the frame": (with_bytes(PLAIN, 12, word(len(PLAIN) - 1)), False),
    "one byte more": (PLAIN + b"\0", True),
    "sixteen bytes more": (PLAIN + bytes(16), True),
    "a frame more": (PLAIN + PLAIN, True),
    "block in the header": (with_bytes(PLAIN, 16, word(0)), False),
    "block in the table": (with_bytes(PLAIN, 16, word(23)), False),
    "block behind the table": (with_bytes(PLAIN, 16, word(24)), True),
    "block at the end": (with_bytes(PLAIN, 20, word(len(PLAIN))), False),
    "block that begins in the last word": (with_bytes(PLAIN, 20, word(len(PLAIN) - 4)), False),
    "block far behind": (with_bytes(PLAIN, 20, word(-1)), False),
    "both blocks at one place": (with_bytes(PLAIN, 20, word(24)), True),
    "stream of nothing": (with_bytes(PLAIN, 24, word(0)), False),
    "stream of -1 bytes": (with_bytes(PLAIN, 24, word(-1)), False),
    "stream up to the end": (with_bytes(PLAIN, 24, word(len(PLAIN) - 28)), True),
    "stream beyond the end": (with_bytes(PLAIN, 24, word(len(PLAIN) - 27)), False),
    "stream longer than the block": (assemble([streams(bytes(1025)), BLOCK], flags=0x31, **FIELDS), False),
    "shortest streams": (EXACT, True),
    "shortest streams for two blocks": (at_one_place(10), True),
    "one stream for two blocks": (at_one_place(9), False),
    "split that leaves a rest": (assemble([streams(*[b"0"] * 3)] * 2, flags=1, **FIELDS | {"typesize": 3}), False),
    "rest in a block that is not split": (assemble([streams(b"0")] * 2, flags=17, **FIELDS | {"typesize": 3}), True),
    "stored, one byte less": (with_bytes(stored(bytes(2047)), 4, word(2048) * 2), False),
    "stored, one byte more": (with_bytes(stored(bytes(2049)), 4, word(2048) * 2), False),
    "stored, unknown codec": (stored(bytes(2048), flags=0xA2), False),
    "stored, typesize 0": (stored(bytes(2048), typesize=0), False),
    "empty": (header(flags=2, typesize=4, nbytes=0, blocksize=0, cbytes=16), False),
    "no bytes": (b"", False),
}


@pytest.mark.parametrize(("frame", "is_ready"), FRAMES.values(), ids=FRAMES)
def test_frame_is_ready_only_if_every_part_of_it_is_sound(frame, is_ready):
    sound = read(PLAIN, 2048)

    assert walk([PLAIN, frame, PLAIN], 2048) == [sound, read(frame, 2048), sound]
    assert ready([frame], 2048) == [is_ready]


SOUND = {
    "zlib": zlib.compress(bytes(1024)),
    "zstd": zstandard.compress(bytes(1024)),
    "snappy": b"\x80\x08\0rest".ljust(256),
}
INNER = {
    "zlib": ("zlib", SOUND["zlib"], True),
    "zlib, dictionary": ("zlib", b"\x78\xbb" + SOUND["zlib"][2:], False),
    "zlib, not deflate": ("zlib", b"\x77\x9c" + SOUND["zlib"][2:], False),
    "zstd": ("zstd", SOUND["zstd"], True),
    "zstd, checksum": ("zstd", zstandard.ZstdCompressor(write_checksum=True).compress(bytes(1024)), False),
    "zstd, another length": ("zstd", zstandard.compress(bytes(1023)), False),
    "zstd, cut, as the device will see": ("zstd", SOUND["zstd"][:-1], True),
    "snappy": ("snappy", SOUND["snappy"], True),
    "snappy, another length": ("snappy", b"\x81\x08\0rest", False),
    "snappy, length in five bytes": ("snappy", b"\x80\x88\x80\x80\x00rest", True),
    "snappy, length in six bytes": ("snappy", b"\x80\x88\x80\x80\x80\x00rest", False),
    "snappy, length without end": ("snappy", b"\x80\x88", False),
    "snappy, longest": ("snappy", SOUND["snappy"].ljust(1024 + 170 + 32), True),
    "snappy, too long": ("snappy", SOUND["snappy"].ljust(1024 + 170 + 33), False),
}


@pytest.mark.parametrize(("cname", "stream", "is_ready"), INNER.values(), ids=INNER)
def test_one_unsound_stream_leaves_its_whole_frame_to_the_host(cname, stream, is_ready):
    flags = 0x11 | by_hand.CODECS.index(cname) << 5
    sound = assemble([streams(SOUND[cname])] * 2, flags=flags, **FIELDS)
    frame = assemble([streams(stream), streams(SOUND[cname])], flags=flags, **FIELDS)

    assert walk([sound, frame, sound], 2048) == [read(sound, 2048), read(frame, 2048), read(sound, 2048)]
    assert ready([sound, frame, sound], 2048) == [True, is_ready, True]


@pytest.mark.parametrize(("nbytes", "is_ready"), [(2**31 - 17, True), (2**31 - 16, False), (2**32 - 1, False)])
def test_chunk_is_no_longer_than_blosc_allows(nbytes, is_ready):
    n_blocks = -(-nbytes // 2**29)
    frame = assemble([streams(b"\0")] * n_blocks, flags=16, typesize=4, nbytes=nbytes, blocksize=2**29)

    assert ready([frame], nbytes) == [is_ready]


@pytest.mark.parametrize(("blocksize", "is_ready"), [(715_827_542, True), (715_827_543, False)])
def test_block_is_no_longer_than_blosc_allows(blocksize, is_ready):
    frame = assemble([streams(b"\0")], flags=16, typesize=4, nbytes=blocksize, blocksize=blocksize)

    assert ready([frame], blocksize) == [is_ready]


def test_header_of_countless_blocks_costs_nothing():
    frame = header(flags=1, typesize=1, nbytes=2**31 - 17, blocksize=1, cbytes=10**6) + bytes(10**6 - 16)

    assert ready([frame], 2**31 - 17) == [False]


def test_streams_of_countless_lengths_are_left_to_the_host():
    common = encode(bytes(5000), cname="zstd", blocksize=4000)
    others = [encode(bytes(5000), cname="zstd", blocksize=4 * n) for n in range(100, 1200)]

    found = ready([*others, common, common], 5000)

    assert 400 < sum(found) < 1000
    assert found[-2:] == [True, True]


FILTERS = [
    ("shuffle", 1, 4, [1, 1]),
    ("shuffle of bytes", 1, 1, []),
    ("shuffle of elements longer than the rest", 1, 200, [1, 0]),
    ("bitshuffle", 4, 1, [2, 0]),
    ("bitshuffle of a rest that fills bytes", 4, 12, [0, 2]),
    ("bitshuffle of elements longer than the rest", 4, 128, [2, 0]),
    ("bitshuffle of nothing", 4, 200, []),
    ("no filter", 0, 4, []),
]


@pytest.mark.parametrize(("flag", "typesize", "kinds"), [row[1:] for row in FILTERS], ids=[row[0] for row in FILTERS])
def test_blocks_have_rows_if_one_of_the_frame_is_filtered(flag, typesize, kinds):
    frame = assemble([streams(b"0")] * 2, flags=16 | flag, typesize=typesize, nbytes=1024 + 100, blocksize=1024)
    blocks = [(0, 1024, typesize, kinds[0]), (1024, 100, typesize, kinds[1])] if kinds else []

    assert walk([frame], 1124)[0][1] == blocks


@pytest.mark.parametrize("expected", [0, 1, 100])
def test_no_chunks_give_no_rows(expected):
    assert walk([], expected) == []


BIG = 2**63 - 1


@pytest.mark.parametrize("start_and_nbytes", [(-1, 5), (0, 101), (100, 1), (5, -1), (BIG, BIG), (1, BIG)])
def test_chunk_outside_the_data_is_an_error(start_and_nbytes):
    start, nbytes = np.array([[0, 100], start_and_nbytes]).T

    with pytest.raises(ValueError, match="outside the 100 bytes"):
        walk_blosc(np.zeros(100, np.uint8), start, nbytes, 10)


VICTIMS = {
    "lz4, split": encode(CONTENT, shuffle=1),
    "lz4, many blocks": encode(CONTENT, shuffle=2, blocksize=256, split=False),
    "snappy": encode(CONTENT, cname="snappy", shuffle=1),
    "zlib": encode(CONTENT, cname="zlib", shuffle=2, typesize=8),
    "zstd": encode(CONTENT, cname="zstd", shuffle=1, split=False),
    "blosclz": numcodecs.blosc.compress(CONTENT, b"blosclz", 5, 1, 1024, 4),
    "stored": stored(CONTENT),
}


def assert_inside(data, start, nbytes, expected):
    """Walk, and check that what is found lies where it may."""
    found = walk_blosc(data, start, nbytes, expected)
    by_hand.check_inside(found, start, nbytes, expected)
    return found


@pytest.mark.parametrize("frame", VICTIMS.values(), ids=VICTIMS)
def test_cut_frame_is_left_to_the_host_though_the_rest_follows_it(frame):
    """What lies behind a whole frame is passed over."""
    data = np.frombuffer(frame + frame, np.uint8)
    nbytes = np.arange(2 * len(frame) + 1)

    found = assert_inside(data, np.zeros_like(nbytes), nbytes, 5000)

    assert np.flatnonzero(found.ready).tolist() == [*range(len(frame), 2 * len(frame) + 1)]


@pytest.mark.parametrize("frame", VICTIMS.values(), ids=VICTIMS)
def test_cut_frame_that_says_so_is_read_no_further(frame):
    frames = [with_bytes(frame[:n], 12, word(n)) for n in range(16, len(frame))]
    data, start, nbytes = laid(frames)

    assert not assert_inside(data, start, nbytes, 5000).ready.any()


@pytest.mark.parametrize("frame", VICTIMS.values(), ids=VICTIMS)
def test_damaged_header_or_table_is_judged_as_if_read_alone(frame):
    frames = [with_bytes(frame, at, bytes([value])) for at in range(80) for value in range(256)]
    data, start, nbytes = laid(frames)

    found = assert_inside(data, start, nbytes, 5000)

    assert parts_of(found, start) == [read(damaged, 5000) for damaged in frames]


def damage(frame, changes, keep):
    for at, value in changes:
        frame = with_bytes(frame, at % len(frame), bytes([value]))
    frame = frame[:keep]
    return with_bytes(frame, 12, word(len(frame))) if len(frame) >= 16 else frame


small = st.integers(0, 40)
damaged = st.builds(
    damage,
    st.sampled_from(list(VICTIMS.values())),
    st.lists(st.tuples(small | st.integers(0, 2000), small | st.integers(0, 255)), max_size=5),
    st.just(None) | st.integers(0, 2000),
)
handmade = st.builds(
    lambda fields, rest: header(**fields, cbytes=16 + len(rest)) + rest,
    st.fixed_dictionaries(
        {
            "flags": st.integers(0, 255) | st.sampled_from([0, 1, 4, 16, 32]),
            "typesize": st.integers(0, 20),
            "nbytes": st.sampled_from([300, 5000]),
            "blocksize": st.sampled_from([100, 128, 150, 256, 300, 2500]),
        }
    ),
    st.lists(st.sampled_from([word(24), word(1), word(20), word(28), b"00", word(128)]), max_size=30).map(b"".join),
)


@many
@given(
    frames=st.lists(damaged | handmade | st.binary(max_size=60), max_size=6),
    expected=st.sampled_from([0, 1, 300, 5000]),
)
@example(frames=[EXACT, b"", PLAIN[:17]], expected=2048)
def test_all_frames_at_once_are_walked_like_each_alone(frames, expected):
    data, start, nbytes = laid(frames)

    found = assert_inside(data, start, nbytes, expected)

    assert parts_of(found, start) == [read(frame, expected) for frame in frames]


@pytest.mark.parametrize(("blocksize", "is_ready"), [(1, False), (4, False), (63, False), (64, True), (4096, True)])
def test_a_frame_of_more_blocks_than_c_blosc_makes_is_left_to_the_host(blocksize, is_ready):
    block = streams(b"x" * min(blocksize, 4096))
    n_blocks, rest = divmod(4096, blocksize)
    bodies = [block] * n_blocks + [streams(b"x" * rest)] * (rest > 0)
    frame = assemble(bodies, flags=16 | 1 << 5, typesize=1, nbytes=4096, blocksize=blocksize)

    assert ready([frame], 4096) == [is_ready]
