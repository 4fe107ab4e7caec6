"""Servers behind one address that tag an object differently: the right values, never a mixture, and one warning."""

import contextlib
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from helpers.compare import assert_same_bits
from helpers.data.corpus import V3_CODECS, counting, write
from helpers.every_pair import usually
from helpers.stores.mirrors import LONG_AGO, Mirrors, Node, at_random, by_range, in_turn
from helpers.stores.remote import CLIENTS
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec
from zarr.storage import MemoryStore, WrapperStore

from xarray_gpuzarr import FetchOptions, GpuZarrWarning, StoreReadError, read_array
from xarray_gpuzarr.fetch import index_cache, object_source, shard_indexes, version_conflicts
from xarray_gpuzarr.fetch.local import LocalSource
from xarray_gpuzarr.fetch.source import Edge
from xarray_gpuzarr.fetch.store_errors import changed_error
from xarray_gpuzarr.fetch.version_conflicts import Care, VersionConflicts, care_by_store
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process import fetch_options as options

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]

DATA = counting((16, 12), "f4")
SHARDED = {"chunks": (2, 3), "shards": (8, 12)}
CODECS = {"raw": {"compressors": None}, "zstd": V3_CODECS["zstd"], "crc32c": {"compressors": Crc32cCodec()}}
ONE_CHUNK = (slice(2, 4), slice(3, 6))
SELECTIONS = {
    "all": (slice(None), slice(None)),
    "one chunk": ONE_CHUNK,
    "a row of chunks": (slice(2), slice(None)),
    "a column of chunks": (slice(None), slice(3)),
    "far chunks": ([0, 7, 8, 15], [0, 11]),
    "chunks here and there": ([0, 1, 4, 5, 10, 15], [0, 4, 10]),
}
MARKS = {
    "strong": lambda n: {"tag": lambda path: f'"{n}-{path[-3:]}"', "modified": LONG_AGO},
    "weak": lambda n: {"tag": lambda path: f'W/"{n}-{path[-3:]}"', "modified": LONG_AGO},
    "strong, other times": lambda n: {"tag": lambda _: f'"{n}"', "modified": LONG_AGO + n},
    "times only": lambda n: {"modified": LONG_AGO + n},
    "one tag, other times": lambda n: {"tag": lambda _: '"same"', "modified": LONG_AGO + n},
    "one without": lambda n: {"tag": lambda _: f'"{n}"'} if n else {},
}


def forget():
    """Let this process know nothing of stores."""
    for known in (index_cache.cache, version_conflicts.care_by_store, advice.warned):
        known.clear()


LONG, SHORT = FetchOptions(), FetchOptions(max_gap_nbytes=0, max_request_nbytes=48)
"""Few requests, and so many that a shard is put together from several answers, of two raw chunks each."""


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(options.in_force, "options", SHORT)
    forget()
    yield
    forget()


def files(data, codec="raw"):
    """The objects of an array ``bucket/s.zarr/t``, by path."""
    memory = MemoryStore()
    write(memory, data, name="t", **SHARDED, **CODECS[codec])
    return {f"bucket/s.zarr/{key}": buffer.to_bytes() for key, buffer in memory._store_dict.items()}


def nodes(marks, *, n=2, codec="raw", datas=None):
    """Servers of the same array, or each with one of its own."""
    contents = [files(data, codec) for data in datas] if datas is not None else [files(DATA, codec)] * n
    return [Node(content, **MARKS[marks](number)) for number, content in enumerate(contents)]


def opened(server, client="obstore http"):
    return zarr.open_array(CLIENTS[client](server.url, "bucket/s.zarr"), path="t", mode="r")


def assert_right(array, selection):
    expected = np.ascontiguousarray(zarr.array(DATA).oindex[selection])
    assert_same_bits(read_array(array, selection, device="host"), expected)


def assert_all_right(array):
    """Read every selection twice: then with what is known from the first time."""
    for selection in [*SELECTIONS.values()] * 2:
        assert_right(array, selection)


@pytest.mark.parametrize("marks", [*MARKS])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("n", "limits", "pick"),
    [(2, LONG, at_random(2, seed=2)), (12, SHORT, at_random(12, seed=3)), (3, SHORT, by_range(3))],
    ids=["two", "many", "caches of pieces"],
)
def test_values_from_every_client(monkeypatch, client, n, limits, pick, marks):
    """Of many servers, no tag is met twice for long.

    A range that caches are asked for again bears the same tag again, so that the one wanted never comes.
    """
    monkeypatch.setattr(options.in_force, "options", limits)
    with Mirrors(nodes(marks, n=n), pick) as server:
        assert_all_right(opened(server, client))


@pytest.mark.every_decoder
@pytest.mark.every_value
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("pick", [in_turn(2), at_random(3, 7), by_range(2)], ids=["in turn", "at random", "by range"])
def test_values_under_every_codec(pick, codec):
    with Mirrors(nodes("strong", n=3, codec=codec), pick) as server:
        assert_all_right(opened(server))


@pytest.mark.parametrize("client", CLIENTS)
def test_servers_that_do_not_heed_if_match(client):
    with Mirrors(nodes("strong", n=3), at_random(3, 1), heeds_if_match=False) as server:
        assert_all_right(opened(server, client))

        assert 412 not in {request.status for request in server.asked}


@pytest.mark.parametrize("client", CLIENTS)
def test_another_tag_costs_no_bytes_where_if_match_is_heeded(monkeypatch, client):
    monkeypatch.setattr(options.in_force, "options", LONG)
    with Mirrors(nodes("strong"), in_turn(2)) as server:
        array = opened(server, client)
        assert_all_right(array)
        server.asked.clear()

        assert_right(array, ONE_CHUNK)
        assert_right(array, ONE_CHUNK)

    assert {request.status for request in server.of_data} == {206, 412}
    assert [request.status for request in server.of_data].count(206) == 2


def test_stores_whose_answers_bear_no_version():
    """Nothing can be told of them, here as with zarr-python."""
    with Mirrors(nodes("strong"), in_turn(2)) as server:
        assert_all_right(zarr.open_array(WrapperStore(opened(server).store), path="t", mode="r"))
    with Mirrors([Node(files(DATA)), Node(files(DATA))], in_turn(2)) as server:
        assert_all_right(opened(server))


def test_reads_of_many_threads():
    with Mirrors(nodes("strong", n=3), at_random(3, seed=5)) as server, ThreadPoolExecutor(8) as pool:
        array = opened(server)

        list(pool.map(lambda number: assert_right(array, [*SELECTIONS.values()][number % 5]), range(40)))


def assert_no_shard_is_mixed(values, selection, datas):
    """What was read of each shard is of one version of the array."""
    rows = np.arange(16)[selection[0]]
    for number in (0, 1):
        of_shard = rows // 8 == number
        versions = [zarr.array(data).oindex[selection][of_shard] for data in datas]
        assert any(np.array_equal(values[of_shard], version) for version in versions)


def picks(n, seed):
    return {"in turn": in_turn(n), "at random": at_random(n, seed), "by range": by_range(n)}


@settings(max_examples=usually(8, full=25))  # each starts a server
@given(
    n=st.integers(2, 5),
    n_versions=st.integers(2, 3),
    seed=st.integers(0, 10**6),
    marks=st.sampled_from([*MARKS]),
    picking=st.sampled_from([*picks(1, 0)]),
    heeds=st.booleans(),
    client=st.sampled_from([*CLIENTS]),
    limits=st.sampled_from([LONG, SHORT, SHORT]),
    chosen=st.lists(st.sampled_from([*SELECTIONS]), min_size=1, max_size=5),
)
def test_servers_with_an_older_version_are_never_mixed(
    *, n, n_versions, seed, marks, picking, heeds, client, limits, chosen
):
    """Raw shards of the same length, with the same index: only what the servers say tells them apart."""
    forget()
    datas = [DATA + 1000 * (number % n_versions) for number in range(n)]
    heeds = heeds and marks != "one tag, other times"
    served = Mirrors(nodes(marks, datas=datas), picks(n, seed)[picking], heeds_if_match=heeds)
    with pytest.MonkeyPatch.context() as patch, served as server:
        patch.setattr(options.in_force, "options", limits)
        array = opened(server, client)
        for name in chosen:
            values = read_array(array, SELECTIONS[name], device="host")
            assert_no_shard_is_mixed(values, SELECTIONS[name], datas)


@pytest.mark.every_decoder
@pytest.mark.every_value
@pytest.mark.parametrize("pick", [in_turn(2), at_random(2, 3), by_range(2)], ids=["in turn", "at random", "by range"])
@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=[*SELECTIONS])
def test_servers_with_an_older_version_are_never_mixed_by_any_decoder(pick, selection):
    datas = [DATA, -DATA]
    with Mirrors(nodes("strong", datas=datas), pick) as server:
        array = opened(server)
        for _ in range(4):
            assert_no_shard_is_mixed(read_array(array, selection, device="host"), selection, datas)


@settings(max_examples=usually(8, full=25))
@given(
    at=st.integers(0, 12),
    n=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    name=st.sampled_from([*SELECTIONS]),
    known=st.booleans(),
)
def test_what_is_replaced_during_a_read_is_of_one_version_and_seen_by_the_next(at, n, seed, name, known):
    forget()
    selection, new, marked = SELECTIONS[name], files(-DATA), nodes("strong", n=n)
    with Mirrors(marked, at_random(n, seed)) as server:
        array = opened(server)
        if known:
            assert_all_right(array)

        begun = server.n_of_data

        def replace_once(number):
            if number == begun + at:
                replace(marked, new)

        server.before = replace_once
        assert_no_shard_is_mixed(read_array(array, selection, device="host"), selection, [DATA, -DATA])
        replace(marked, new)

        expected = np.ascontiguousarray(zarr.array(-DATA).oindex[selection])
        assert_same_bits(read_array(array, selection, device="host"), expected)


def replace(servers, new):
    """Give all servers other objects, each with a tag of its own."""
    for number, node in enumerate(servers):
        node.files, node.tag = new, lambda path, number=number: f'"new-{number}-{path[-3:]}"'


@pytest.mark.parametrize(
    ("pick", "care"),
    [(lambda *_: 0, Care.USUAL), (in_turn(2), Care.ASK_AGAIN), (by_range(2), Care.ONE_ANSWER)],
    ids=["one server", "in turn", "by range"],
)
def test_what_is_known_of_a_store_afterwards(pick, care):
    with Mirrors(nodes("strong"), pick) as server:
        array = opened(server)
        assert_all_right(array)

        assert version_conflicts.care_by_store.get(object_source(array.store).identity, Care.USUAL) == care


def test_one_warning_for_each_store():
    with Mirrors(nodes("strong"), in_turn(2)) as server:
        array = opened(server)
        with warnings.catch_warnings(record=True, action="always", category=GpuZarrWarning) as caught:
            assert_all_right(array)
            assert_all_right(opened(server))

    (warning,) = [w for w in caught if w.category is GpuZarrWarning]
    assert warning.filename == __file__
    found = ("found:", '"0-', '"1-', "bytes, 2020-09-13")
    for words in ("has several ETags or times at once", *found, "do:", "Last-Modified"):
        assert words in str(warning.message)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("name", "n_requests"), [("all", 2), ("one chunk", 2), ("a column of chunks", 4)])
def test_one_server_is_asked_as_ever(monkeypatch, client, name, n_requests):
    monkeypatch.setattr(options.in_force, "options", LONG)
    with Mirrors(nodes("strong", n=1), in_turn(1)) as server:
        array = opened(server, client)
        with warnings.catch_warnings(action="error", category=GpuZarrWarning):
            assert_right(array, SELECTIONS[name])

    assert len(server.of_data) == n_requests


@pytest.mark.every_decoder
@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("max_gap_nbytes", [0, 24, 72])
def test_a_shard_in_one_answer_is_one_request(monkeypatch, max_gap_nbytes, name):
    """Also where chunks lie apart in it, some with gaps that are read and some without."""
    limits = FetchOptions(max_gap_nbytes=max_gap_nbytes, max_request_nbytes=96)
    monkeypatch.setattr(options.in_force, "options", limits)
    with Mirrors(nodes("strong"), by_range(2)) as server:
        array = opened(server)
        version_conflicts.care_by_store[object_source(array.store).identity] = Care.ONE_ANSWER

        assert_right(array, SELECTIONS[name])

    n_shards = 1 if name in ("one chunk", "a row of chunks") else 2
    assert [request.range for request in server.of_data] == [None] * n_shards


@pytest.mark.parametrize("name", SELECTIONS)
def test_an_object_of_which_each_range_has_another_tag_takes_a_bounded_number_of_requests(name):
    with Mirrors(nodes("strong", datas=[DATA, -DATA]), by_range(2)) as server:
        read = read_array(opened(server), SELECTIONS[name], device="host")

        assert_no_shard_is_mixed(read, SELECTIONS[name], [DATA, -DATA])
        assert len(server.of_data) < 300


@pytest.mark.every_decoder
@pytest.mark.parametrize("room", [0, 1.5])
def test_whole_shards_under_way_are_bounded(monkeypatch, room):
    """One that is longer than all the room comes alone."""
    shard_nbytes = len(files(DATA)["bucket/s.zarr/t/c/0/0"])
    monkeypatch.setattr(shard_indexes, "MAX_WHOLE_NBYTES", room * shard_nbytes)
    with Mirrors(nodes("strong"), by_range(2)) as server:
        array = opened(server)
        version_conflicts.care_by_store[object_source(array.store).identity] = Care.ONE_ANSWER

        assert_all_right(array)


def test_servers_of_which_one_lacks_the_object_give_an_error_or_one_version():
    partly = files(DATA)
    del partly["bucket/s.zarr/t/c/0/0"]
    with Mirrors([Node(files(DATA), **MARKS["strong"](0)), Node(partly)], at_random(2, 1)) as server:
        array = opened(server)
        for _ in range(20):
            with contextlib.suppress(StoreReadError):
                values = read_array(array, ONE_CHUNK, device="host")
                assert_no_shard_is_mixed(values, ONE_CHUNK, [DATA, np.zeros_like(DATA)])


class Tags:
    """A source that says nothing of objects but their tags."""

    identity = "some store"

    def __init__(self, *tags):
        self.tags = iter(tags)

    def start_edge(self, key, location, nbytes):
        tag = next(self.tags, None)
        if tag is None:
            raise StoreReadError("no", tried="x", found="y", do="z")
        return lambda: Edge(data=memoryview(b""), object_nbytes=1, version=tag)


@pytest.mark.parametrize(
    ("tags", "care", "later"),
    [
        ("BBBBBA", Care.ASK_AGAIN, Care.ASK_AGAIN),
        ("CDEFGHIJKC", Care.ASK_AGAIN, Care.ASK_AGAIN),
        ("CB", Care.ASK_AGAIN, Care.ASK_AGAIN),
        ("BBBBBBBBBBBBBBBBBBB", Care.ONE_ANSWER, Care.USUAL),
        ("CCCCDEEFGHIJKLMNOPQR", Care.ONE_ANSWER, Care.USUAL),
        ("CDEFGHIJKLMNOPQRSTUVW", Care.ONE_ANSWER, Care.ONE_ANSWER),
        ("", Care.ONE_ANSWER, Care.USUAL),
    ],
)
def test_tags_are_looked_at_before_the_usual_care_is_given_up(tags, care, later):
    """Shards of which another one is met each time say nothing."""
    attempts = VersionConflicts(Tags(*tags), Care.USUAL)

    assert attempts.should_retry(changed_error("s/1", "A", "B", "1"))
    assert attempts.should_retry(changed_error("s/2", "A", "B", "2"))
    assert attempts.care == Care.USUAL
    assert attempts.should_retry(changed_error("s/3", "A", "B", "3"))

    assert attempts.care == care
    assert care_by_store.get(Tags().identity, Care.USUAL) == later


def test_local_files_are_one_server():
    attempts = VersionConflicts(LocalSource(root="/"), Care.USUAL)

    said = [attempts.should_retry(changed_error("/s/1", version, other)) for version, other in ["AB"] * 5]

    assert said == [True, True, True, True, False]
    assert attempts.care == Care.ONE_ANSWER
    assert not care_by_store
