"""Servers whose headers are odd: what is only needed to keep an index never fails a read, nor gives a wrong number."""

import warnings
from itertools import count

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import V3_CODECS, counting, write
from helpers.data.damage import explained
from helpers.stores.mirrors import Mirrors, Node, in_turn
from helpers.stores.remote import CLIENTS
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from xarray_gpuzarr import GpuZarrError, GpuZarrWarning, StoreReadError, read_array
from xarray_gpuzarr.fetch import index_cache, object_source, version_conflicts
from xarray_gpuzarr.fetch.version_conflicts import Care
from xarray_gpuzarr.process import advice

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

DATA = counting((16, 12), "f4")
RAW = {"chunks": (2, 3), "compressors": None}
LAYOUTS = {
    "zstd in shards": {"chunks": (2, 3), "shards": (8, 12), **V3_CODECS["zstd"]},
    "raw in shards": RAW | {"shards": (8, 12)},
    "raw, indexes in front": RAW | {"shards": {"shape": (8, 12), "index_location": "start"}},
    "zstd": {"chunks": (2, 3), **V3_CODECS["zstd"]},
}
SELECTIONS = {"one chunk": (slice(2, 4), slice(3, 6)), "a column": (slice(None), slice(3)), "all": (...,)}
FSSPEC = ["fsspec http", "fsspec s3"]
OLD = "Sun, 06 Nov 2016 08:49:37 GMT"
READABLE = ["Sun, 06 Nov 2016 08:49:37 -0000", "Sun Nov  6 08:49:37 2016", "Sunday, 06-Nov-16 08:49:37 GMT"]
UNREADABLE = ["0", "-1", "never", "2016-11-06T08:49:37Z", "Sun, 06 Nov 2016 08:49:37 +99999999", "Xyz, 99 Foo 0000"]


@pytest.fixture(autouse=True)
def nothing_known():
    for known in (index_cache.cache, version_conflicts.care_by_store, advice.warned):
        known.clear()


def files(layout, data=DATA):
    memory = MemoryStore()
    write(memory, data, name="t", **LAYOUTS[layout])
    return {f"bucket/s.zarr/{key}": buffer.to_bytes() for key, buffer in memory._store_dict.items()}


def serving(layout="zstd in shards", tag='"a"', **keywords):
    return Mirrors([Node(files(layout), tag=lambda _: tag)], lambda *_: 0, **keywords)


def adding(**headers):
    """Send more headers with data, whose names have lines instead of underscores."""
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda status, said, body: (status, {**said, **more}, body)


def opened(server, client="fsspec http"):
    return zarr.open_array(CLIENTS[client](server.url, "bucket/s.zarr"), path="t", mode="r")


def assert_right(array):
    for selection in SELECTIONS.values():
        assert_same_bits(read_array(array, selection, device="host"), np.ascontiguousarray(DATA[selection]))


def reads_stock(array):
    try:
        return np.array_equal(array[...], DATA)
    except Exception:  # noqa: BLE001  # whatever the client raises
        return False


@pytest.mark.parametrize("tag", ['"a"', None])
@pytest.mark.parametrize("date", [*READABLE, *UNREADABLE, ""])
@pytest.mark.parametrize("header", ["Last_Modified", "Date"])
@pytest.mark.parametrize("client", FSSPEC)
def test_dates_of_any_form_are_no_reason_to_fail(client, header, date, tag):
    with serving(tag=tag, spoil=adding(**{"Last_Modified": OLD, header: date})) as server:
        array = opened(server, client)
        for _ in range(2):
            if reads_stock(array):
                assert_right(array)
            else:
                assert client == "fsspec s3"  # botocore reads them, too


@pytest.mark.every_value
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("headers", "n_indexes"),
    [
        ({"Last_Modified": OLD}, 1),
        *(({"Last_Modified": date}, 1) for date in READABLE),
        *(({"Last_Modified": date}, 3) for date in UNREADABLE),
        *(({"Last_Modified": OLD, "Date": date}, 3) for date in UNREADABLE),
    ],
)
def test_an_index_is_kept_of_objects_whose_age_is_known(client, headers, n_indexes):
    with serving(spoil=adding(**headers)) as server:
        array = opened(server, client)
        if not reads_stock(array):
            return  # obstore and botocore refuse such dates
        server.asked.clear()
        for _ in range(3):
            read_array(array, SELECTIONS["one chunk"], device="host")

        indexes = [request for request in server.of_data if request.range.startswith("bytes=-")]
        assert len(indexes) == (1 if client.startswith("obstore") else n_indexes)  # obstore has its own clock


@settings(max_examples=40)
@given(
    modified=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40) | st.sampled_from(READABLE),
    date=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40) | st.sampled_from(READABLE),
)
def test_dates_of_any_text(modified, date):
    index_cache.cache.clear()
    with serving(spoil=adding(Last_Modified=modified, Date=date)) as server:
        assert_right(opened(server))


def numbered(form):
    """A header that is another one in each answer."""
    numbers = count()
    return lambda status, said, body: (status, {**said, **{k: v(next(numbers)) for k, v in form.items()}}, body)


ALWAYS_OTHER = {
    "tags": {"ETag": lambda n: f'"{n}"'},
    "weak tags": {"ETag": lambda n: f'W/"{n}"'},
    "times": {"Last-Modified": lambda n: f"Sun, 06 Nov 2016 08:{n // 60 % 60:02}:{n % 60:02} GMT"},
    "times that cannot be read": {"Last-Modified": lambda n: f"now {n}"},
}


@pytest.mark.every_value
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("says", ALWAYS_OTHER)
@pytest.mark.parametrize("client", FSSPEC)
def test_tags_that_differ_in_every_answer(client, says, layout):
    with serving(layout, tag=None, spoil=numbered(ALWAYS_OTHER[says]), heeds_if_match=False) as server:
        array = opened(server, client)
        for _ in range(2):
            if reads_stock(array):
                assert_right(array)


@pytest.mark.parametrize("heeds_if_match", [True, False])
@pytest.mark.parametrize("client", CLIENTS)
def test_such_a_store_is_known_after_one_read_and_said_once(client, heeds_if_match):
    with serving(tag=None, spoil=numbered(ALWAYS_OTHER["tags"]), heeds_if_match=heeds_if_match) as server:
        array = opened(server, client)
        with pytest.warns(GpuZarrWarning, match="another ETag or time in each answer"):
            assert_right(array)
        server.asked.clear()
        with warnings.catch_warnings(action="error", category=GpuZarrWarning):
            assert_right(opened(server, client))

        assert [request.range for request in server.of_data] == [None] * 5
        assert version_conflicts.care_by_store[object_source(array.store).identity] is Care.ONE_ANSWER


def said_of_the_range(form):
    """Replace Content-Range; None leaves it out."""

    def spoil(status, said, body):
        told = said.pop("Content-Range", None)
        if told is not None and form is not None:
            said["Content-Range"] = form(told)
        return status, said, body

    return spoil


RANGES = {
    "none": None,
    "empty": lambda _: "",
    "nonsense": lambda _: "yes",
    "no numbers": lambda _: "bytes a-b/c",
    "of no length": lambda told: told.partition("/")[0] + "/*",
    "capital": lambda told: told.replace("bytes", "Bytes"),
    "many blanks": lambda told: told.replace("bytes ", "bytes   "),
    "unsatisfied": lambda told: f"bytes */{told.partition('/')[2]}",
    "negative": lambda _: "bytes -1--1/-1",
    "backwards": lambda _: "bytes 7-3/9",
    "of an object that is shorter": lambda told: told.partition("/")[0] + "/0",
    "of an endless number": lambda told: told.partition("/")[0] + "/" + "9" * 5000,
}


@pytest.mark.every_value
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("said", RANGES)
@pytest.mark.parametrize("client", FSSPEC)
def test_partial_answers_that_do_not_say_of_what(client, said, layout):
    with serving(layout, spoil=said_of_the_range(RANGES[said])) as server:
        assert_right(opened(server, client))


@pytest.mark.parametrize("said", ["bytes 0-0/1", "Bytes 1-2/3", "bytes 3-7/*"])
@pytest.mark.parametrize("client", FSSPEC)
def test_partial_answers_of_other_bytes_are_errors(client, said):
    with (
        serving(spoil=said_of_the_range(lambda _: said)) as server,
        explained(StoreReadError, "t/c/0/0", said.partition("-")[0].lower()),
    ):
        read_array(opened(server, client), SELECTIONS["one chunk"], device="host")


def shortened(kept, n_times):
    """Send less than the headers say, as often as `n_times`; `kept` is what remains of a body."""
    numbers = count()
    return lambda status, said, body: (status, said, kept(body) if next(numbers) < n_times else body)


KEPT = {"half": lambda body: body[: len(body) // 2], "nothing": lambda body: b""}


@pytest.mark.parametrize("name", ["one chunk", "a column"])
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_that_is_shorter_than_it_says_is_requested_again(client, kept, name):
    with serving(spoil=shortened(KEPT[kept], 1)) as server:
        values = read_array(opened(server, client), SELECTIONS[name], device="host")

        assert_same_bits(values, np.ascontiguousarray(DATA[SELECTIONS[name]]))


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("client", CLIENTS)
def test_answers_that_are_always_shorter_than_they_say_are_no_damage(client, kept):
    with serving(spoil=shortened(KEPT[kept], 1000)) as server:
        array = opened(server, client)
        with explained(StoreReadError, "t/c/0/0"):
            read_array(array, SELECTIONS["one chunk"], device="host")

        assert len(server.of_data) <= 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("client", FSSPEC)
def test_partial_answers_of_status_200_are_known_by_their_range(client, layout):
    def spoil(status, said, body):
        return 200 if status == 206 else status, said, body

    with serving(layout, spoil=spoil) as server:
        assert_right(opened(server, client))


@pytest.mark.parametrize("layout", ["zstd in shards", "raw in shards"])
@pytest.mark.parametrize("client", FSSPEC)
def test_partial_answers_that_pass_for_whole_ones_are_no_damage(client, layout):
    def spoil(_status, said, body):
        said.pop("Content-Range", None)
        return 200, said, body

    with serving(layout, spoil=spoil) as server, explained(StoreReadError, "t/c/0/0", "status 200", "Content-Range"):
        read_array(opened(server, client), SELECTIONS["one chunk"], device="host")


@pytest.mark.every_value
@pytest.mark.parametrize("status", [304, 400, 500, 501])
@pytest.mark.parametrize("client", CLIENTS)
def test_servers_that_do_not_know_if_match(client, status):
    """Two of them behind one address, whose tags differ: a read asks for the tag of its index."""
    nodes = [Node(files("raw in shards"), tag=lambda _, tag=tag: tag) for tag in ('"a"', '"b"')]

    def spoil(answered, said, body):
        return (status, said, b"") if answered == 412 else (answered, said, body)

    with Mirrors(nodes, in_turn(2), spoil=spoil) as server:
        for _ in range(3):
            assert_right(opened(server, client))


@pytest.mark.parametrize("more", [True, False])
@pytest.mark.parametrize("client", FSSPEC)
def test_partial_answers_of_another_length_are_errors(client, more):
    def spoil(status, said, body):
        said.pop("Content-Range", None)
        return status, said, body + b"x" if more else body[1:]

    with serving("raw in shards", spoil=spoil) as server, pytest.raises(GpuZarrError):
        read_array(opened(server, client), SELECTIONS["one chunk"], device="host")


@pytest.mark.parametrize("status", [201, 202, 204, 226, 304])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_answer_that_is_no_object_is_no_damage(status, layout):
    with (
        serving(layout, spoil=lambda _status, said, _body: (status, said, b"")) as server,
        explained(StoreReadError, "t/c/", match=f"status {status}"),
    ):
        read_array(opened(server), SELECTIONS["one chunk"], device="host")


UNTRUSTED = {
    "an empty tag": {"ETag": ""},
    "an empty tag in quotes": {"ETag": '""'},
    "an empty weak tag": {"ETag": 'W/""'},
    "a star": {"ETag": "*"},
    "a tag of whole seconds": {"ETag": '"581eef31-a4"'},
    "a tag and a date that cannot be read": {"ETag": '"581eef31-a4"', "Last-Modified": "0"},
}


@pytest.mark.every_value
@pytest.mark.parametrize("says", UNTRUSTED)
@pytest.mark.parametrize("client", CLIENTS)
def test_no_index_is_kept_by_what_may_be_the_same_for_other_bytes(client, says):
    """Both versions have raw shards of one length, with other indexes."""
    before, after = DATA + 1, DATA * 3 + 1
    before[:2, :3], after[2:4, :3] = 0, 0
    node = Node(files("raw in shards", before))
    more = adding(**{name.replace("-", "_"): text for name, text in UNTRUSTED[says].items()})
    with Mirrors([node], lambda *_: 0, spoil=more) as server:
        array = opened(server, client)
        try:
            array[...]
        except Exception:  # noqa: BLE001  # obstore and botocore refuse some of these
            return
        read_array(array, SELECTIONS["one chunk"], device="host")

        node.files = files("raw in shards", after)

        for selection in SELECTIONS.values():
            assert_same_bits(read_array(array, selection, device="host"), np.ascontiguousarray(after[selection]))
