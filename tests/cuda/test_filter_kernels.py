"""The kernels that decode filters, on the host, against numcodecs, zarr-python and cast-value-rs: to the bit."""

from __future__ import annotations

import itertools

import cast_value_rs
import numcodecs
import numpy as np
import pytest
from helpers import every_pair
from helpers.data.filter_cases import FLOATS, any_scaled_integers, by_numcodecs, noise
from helpers.kernels.on_host import HostLaunches, assert_sanitizers_catch
from helpers.kernels.runs import run_filter
from helpers.profiles import many
from hypothesis import given
from hypothesis import strategies as st

from xarray_gpuzarr.cuda import filters
from xarray_gpuzarr.cuda.cast import REAL_DTYPES
from xarray_gpuzarr.cuda.filters import Delta, ElementCodec, FilterChunks, PackBits, why_no_filter

pytestmark = pytest.mark.usefixtures("compiler")

PAIRS = [*itertools.product(REAL_DTYPES, REAL_DTYPES)]
"""(encoded, decoded)."""
ORDERS = [("<", "<"), (">", "<"), ("<", ">")]


def casts(encoded: str, decoded: str) -> bool:
    """Whether there are kernels of `cast_value` for a pair."""
    return not {"b1", "f2"} & {encoded, decoded}


def pairs_of(rule: str) -> list[tuple[str, str]]:
    """Return the pairs that a rule is tried with: all pairs by some rule, and every dtype on either side by each.

    A pair and a rule are a kernel to build. Every rule is tried where floating numbers become others: they round.
    """
    n, found = len(REAL_DTYPES), []
    for at, pair in enumerate(PAIRS):
        turn = ("astype", "scaled", "cast_value")[(at // n + at) % 3]
        turn = turn if turn != "cast_value" or casts(*pair) else "astype"
        if rule == turn or every_pair.FULL or pair[0][0] == pair[1][0] == "f":
            found.append(pair)
    return found


TILE = 4096


def dtypes_of(encoded: str, decoded: str, orders: tuple[str, str] = ("<", "<")) -> dict[str, np.dtype]:
    return {"encoded": np.dtype(orders[0] + encoded), "decoded": np.dtype(orders[1] + decoded)}


def tame(dtype: np.dtype, n: int) -> np.ndarray:
    """Return small numbers with fractions where there can be any."""
    numbers = {"f": np.arange(n) % 100 / 2, "b": np.arange(n) % 2}.get(dtype.kind, np.arange(n) % 100)
    return numbers.astype(dtype)


def assert_decodes(codec, chunks, decode, *, may_flag):
    """Compare chunk by chunk; only random bits may be left to the host, and must be where they have no fixed value."""
    found = run_filter(codec, [c.tobytes() for c in chunks], len(chunks[0]), codec.decoded.itemsize, (0, 8, 16))
    assert [f.flagged for f in found if f.flagged] == [True] * (may_flag and len(chunks) - 1)
    for chunk, result in zip(chunks, found, strict=True):
        if not result.flagged:
            assert result.content == decode(chunk)


def test_every_pair_is_decoded_by_some_rule():
    rules = [pairs_of("astype"), pairs_of("scaled"), CASTS]
    assert {pair for rule in rules for pair in rule} == {*PAIRS}
    for rule in rules:
        assert {e for e, _ in rule} == {d for _, d in rule} >= {*REAL_DTYPES} - {"b1", "f2"}


@pytest.mark.parametrize("orders", ORDERS, ids="".join)
@pytest.mark.parametrize("pair", pairs_of("astype"), ids="-".join)
def test_astype(pair, orders):
    dtypes = dtypes_of(*pair, orders)
    chunks = [noise(dtypes["encoded"], 600), tame(dtypes["encoded"], 600), noise(dtypes["encoded"], 600, seed=1)]
    codec = numcodecs.AsType(*dtypes.values())

    may_flag = dtypes["encoded"].kind == "f" and dtypes["decoded"].kind in "iu"
    assert_decodes(ElementCodec(rule="astype", **dtypes), chunks, lambda c: by_numcodecs(codec, c), may_flag=may_flag)


SCALES = [(10, 0), (0.1, 2.5), (-7.3e-5, 1e6), (1e30, 100)]
SCALED = [(pair, *s) for pair in pairs_of("scaled") for s in (SCALES if pair[1][0] == "f" else [(2, 3)])]


@pytest.mark.parametrize(("pair", "scale", "offset"), SCALED, ids=str)
def test_scaled(pair, scale, offset):
    dtypes = dtypes_of(*pair)
    chunks = [noise(dtypes["encoded"], 600)] * (pair[1][0] == "f") + [tame(dtypes["encoded"], 600)]
    codec = numcodecs.FixedScaleOffset(offset, scale, dtypes["decoded"], dtypes["encoded"])

    scaled = ElementCodec(rule="scaled", scale=scale, offset=offset, **dtypes)
    assert_decodes(scaled, chunks, lambda chunk: by_numcodecs(codec, chunk), may_flag=False)


BORDERS = {
    "i1": [-128.9, -129.0, 127.9, 128.0],
    "u1": [-0.9, -1.0, 255.9, 256.0],
    "i4": [-2147483648.9, -2147483649.0, 2147483647.9, 2147483648.0],
    "u4": [-0.9, -1.0, 4294967295.9, 4294967296.0],
    "i8": [-(2.0**63), -(2.0**63) - 1025, 2.0**63 - 1024, 2.0**63],
    "u8": [-0.9, -1.0, 2.0**64 - 2048, 2.0**64],
}


@pytest.mark.parametrize("decoded", BORDERS)
@pytest.mark.parametrize("number", range(7))
def test_number_that_an_integer_cannot_hold_is_left_to_the_host(decoded, number):
    holds = number in (0, 2)
    value = [*BORDERS[decoded], np.nan, np.inf, -np.inf][number]
    codec = ElementCodec(rule="astype", **dtypes_of("f8", decoded))
    chunks = [np.array([value, 1.5]), np.array([1.5, value]), np.array([1.5, 2.5])]

    found = run_filter(codec, [c.tobytes() for c in chunks], 2, codec.decoded.itemsize)

    assert [f.flagged for f in found] == [not holds, not holds, False]
    assert found[2].content == np.array([1, 2], decoded).tobytes()


def with_one_nan(chunk):
    """Return random numbers of which at most one is a NaN: the sum of two has the payload of either."""
    nans = np.flatnonzero(np.isnan(chunk))
    chunk = chunk.copy()
    chunk[nans[1:]] = 1
    return chunk


ADDED = [p for p in PAIRS if p[1][0] in ("f" if np.result_type(*p).kind == "f" else "iu")]


@pytest.mark.parametrize("orders", ORDERS, ids="".join)
@pytest.mark.parametrize("pair", ADDED, ids="-".join)
def test_delta(pair, orders):
    dtypes = dtypes_of(*pair, orders)
    chunks = [with_one_nan(noise(dtypes["encoded"], 300)), tame(dtypes["encoded"], 300)]
    codec = numcodecs.Delta(dtypes["decoded"], dtypes["encoded"])

    assert_decodes(Delta(**dtypes), chunks, lambda chunk: by_numcodecs(codec, chunk), may_flag=False)


LENGTHS = [1, 2, 7, 8, 9, 31, 32, 33, 127, 128, 129, 255, 256, 257, 2047, 2048, 2049, 4095, 4096, 4097, 10_000]


@pytest.mark.sanitized
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("pair", [("i2", "i4"), ("f4", "f4"), ("i2", "f8"), ("f2", "f2")], ids="-".join)
def test_chunks_of_any_length(pair, n):
    dtypes = dtypes_of(*pair)
    chunks = [tame(dtypes["encoded"], n) * 3, tame(dtypes["encoded"], n)]
    delta, astype = numcodecs.Delta(dtypes["decoded"], dtypes["encoded"]), numcodecs.AsType(*dtypes.values())

    assert_decodes(Delta(**dtypes), chunks, lambda chunk: by_numcodecs(delta, chunk), may_flag=False)
    assert_decodes(ElementCodec(rule="astype", **dtypes), chunks, lambda c: by_numcodecs(astype, c), may_flag=False)


@pytest.mark.sanitized
@pytest.mark.parametrize("n", [32_767, 32_768, 32_775, 70_001])
@pytest.mark.parametrize("pair", [("u1", "i2"), ("i2", "i4"), ("i4", "i4"), ("i1", "i8"), ("i8", "u1")], ids="-".join)
def test_long_chunk_is_shared_by_blocks(pair, n):
    dtypes = dtypes_of(*pair)
    chunks = [noise(dtypes["encoded"], n, seed) for seed in range(3)]
    delta = numcodecs.Delta(dtypes["decoded"], dtypes["encoded"])

    assert_decodes(Delta(**dtypes), chunks, lambda chunk: by_numcodecs(delta, chunk), may_flag=False)


def test_chunk_of_more_segments_than_threads(monkeypatch):
    monkeypatch.setattr(filters, "_LEAST_TILES", 1)
    dtypes = dtypes_of("i1", "i1")
    chunk = noise(dtypes["encoded"], 300 * TILE + 5)

    assert_decodes(Delta(**dtypes), [chunk], lambda c: by_numcodecs(numcodecs.Delta("i1"), c), may_flag=False)


@pytest.mark.sanitized
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [0, 1, 31, 32, 33, 127, 128, 299])
@pytest.mark.parametrize("payload", [0, 1, 5])
def test_running_sum_keeps_the_first_nan(dtype, at, payload):
    chunk = tame(np.dtype(dtype), 300).copy()
    words = chunk.view(f"u{chunk.itemsize}")
    words[at] = np.array([np.inf], dtype).view(words.dtype)[0] + words.dtype.type(payload)
    dtypes = dtypes_of(dtype, dtype)

    assert_decodes(Delta(**dtypes), [chunk], lambda c: by_numcodecs(numcodecs.Delta(dtype), c), may_flag=False)


@any_scaled_integers
def test_scaled_integers(case):
    encoded, expected = case.encoded, case.by_zarr()
    dtypes = {"encoded": encoded.dtype, "decoded": encoded.dtype}
    codec = ElementCodec(rule="scaled_integer", scale=case.scale.item(), offset=case.offset.item(), **dtypes)

    (found,) = run_filter(codec, [encoded.tobytes()], len(encoded), encoded.itemsize)

    assert found.flagged == (expected is None)
    assert found.flagged or found.content == expected


ODD = [0.5, -0.5, 2.5, -2.5, 1e10, -1e30, 1e300, np.inf, np.nan]
ROUNDINGS = ["nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away"]
CASTS = [pair for pair in pairs_of("cast_value") if casts(*pair)]


@many
@given(
    st.sampled_from(CASTS),
    st.sampled_from(ROUNDINGS),
    st.lists(st.integers(-300, 300) | st.sampled_from(ODD), min_size=1),
    st.dictionaries(st.integers(-2, 5), st.integers(0, 9), max_size=3),
)
def test_cast_value(pair, rounding, values, mapped):
    encoded_dtype, decoded_dtype = map(np.dtype, pair)
    with np.errstate(all="ignore"):
        is_integer = encoded_dtype.kind in "iu"
        encoded = np.array([v for v in values if not is_integer or isinstance(v, int)] or [1]).astype(encoded_dtype)
    rounding = rounding if decoded_dtype.kind != "f" else "nearest-even"
    mapped = {k: v for k, v in mapped.items() if is_integer and (encoded_dtype.kind == "i" or k >= 0)}
    try:
        expected = cast_value_rs.cast_array(
            encoded, target_dtype=decoded_dtype, rounding_mode=rounding, scalar_map_entries=mapped or None
        ).tobytes()
    except ValueError:
        expected = None
    dtypes = {"encoded": encoded_dtype, "decoded": decoded_dtype}
    codec = ElementCodec(rule="cast_value", rounding=rounding, mapped=tuple(mapped.items()), **dtypes)

    (found,) = run_filter(codec, [encoded.tobytes()], len(encoded), decoded_dtype.itemsize)

    assert found.flagged == (expected is None)
    assert found.flagged or found.content == expected


@pytest.mark.sanitized
@pytest.mark.parametrize("value", [0.5, np.nan, -0.0])
def test_value_that_stands_for_another_one(value):
    codec = ElementCodec(rule="cast_value", mapped=((-9, value), (7, 1)), **dtypes_of("i2", "f4"))

    (found,) = run_filter(codec, [np.array([-9, 7, 8], "i2").tobytes()], 3, 4)

    assert found.content == np.array([value, 1, 8], "f4").tobytes()


@pytest.mark.sanitized
@pytest.mark.parametrize("n", [*range(1, 26), 63, 64, 65, 8191, 8192, 8193, 30_001])
def test_packbits(n):
    chunks = [noise("?", n, seed) for seed in range(3)]

    found = run_filter(PackBits(), [numcodecs.PackBits().encode(c).tobytes() for c in chunks], n, 1, offsets=(0, 1, 5))

    assert [(f.flagged, f.content) for f in found] == [(False, c.tobytes()) for c in chunks]


@pytest.mark.sanitized
@pytest.mark.parametrize("unused", [0, 1, 2, 4, 7, 8, 255])
def test_packbits_that_leave_out_other_bits_are_left_to_the_host(unused):
    found = run_filter(PackBits(), [bytes([unused, 0, 0]), bytes([3, 0, 0])], 13, 1)

    assert [f.flagged for f in found] == [True, False]


CODECS = {
    "elements": ElementCodec(rule="astype", **dtypes_of("i2", "i4")),
    "delta": Delta(**dtypes_of("i2", "i4")),
    "float delta": Delta(**dtypes_of("f4", "f4")),
    "packbits": PackBits(),
}


@pytest.mark.sanitized
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_no_chunks(codec):
    assert run_filter(codec, [], 10, 4) == []


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_too_much_for_one_launch_is_refused(codec):
    places = FilterChunks(table=0, n=2**31, n_elements=1, flags=0, words=0)

    with pytest.raises(ValueError, match="2147483648 blocks"):
        codec.launch(HostLaunches(), None, places)


@pytest.mark.parametrize("dtypes", [("c8",), ("f4", "V4"), ("i4", "M8[s]")])
def test_dtypes_that_no_kernel_knows(dtypes):
    assert str(np.dtype(dtypes[-1])) in why_no_filter(*map(np.dtype, dtypes))
    assert why_no_filter(*map(np.dtype, REAL_DTYPES)) is None


# ---- accesses outside of what the tables describe

OUTSIDE = """
import test_filter_kernels as tests
from helpers.kernels.runs import run_filter

def run(name, encoded_nbytes):
    run_filter(tests.CODECS[name], [bytes(encoded_nbytes)], 3000, 1 if name == "packbits" else 4)
"""


def test_sanitizers_catch_wrong_tables() -> None:
    assert_sanitizers_catch(
        OUTSIDE,
        harmless=[("elements", 6000), ("delta", 6000), ("float delta", 12_000), ("packbits", 376)],
        aborted=[("elements", 5998), ("delta", 5998), ("float delta", 11_996), ("packbits", 375)],
    )
