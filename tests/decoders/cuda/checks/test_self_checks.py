"""The engine on a device that does something wrong: values stay right, it says so once, and it remembers.

A fault is planted in each codec and kernel in turn. "The next process" is a new decoder that has been told of nothing.
"""

import functools
import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from queue import Empty

import numcodecs
import numpy as np
import pytest
import zarr
from helpers.data import blosc_frames
from helpers.data.corpus import write
from helpers.kernels import on_host as host_kernels
from helpers.simulated.planted_faults import IDENTITY, Fault, FaultyDevice, engine
from helpers.stores.fakes import put
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import MemoryStore

from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.cuda.checks import check_all, outcome_cache, self_checks, trial
from xarray_gpuzarr.decoders.cuda.checks.codecs import element_check
from xarray_gpuzarr.decoders.cuda.checks.outcome_cache import cache_folder
from xarray_gpuzarr.decoders.cuda.checks.placing import COPIES
from xarray_gpuzarr.decoders.cuda.checks.self_checks import required_checks, run_checks
from xarray_gpuzarr.errors import CudaError, DeviceMemoryError, DeviceUnavailableError, GpuZarrWarning
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force
from xarray_gpuzarr.read import StoredArray, read, read_points, stored_array
from xarray_gpuzarr.stored.cf import Cast
from xarray_gpuzarr.stored.element_codecs import FixedScaleOffsetSpec

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")

VALUES = np.arange(40 * 30, dtype="i2").reshape(40, 30)
# The device decodes whatever it can.
OPTIONS = ResourceOptions(slot_nbytes=2**16, n_slots=2, scratch_nbytes=2**28, verify="off", little="device")
LONG = np.arange(3 * 40_000, dtype="i2").reshape(3, -1) // 3
FLOATS = (VALUES % 11).astype("f4")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember nothing from before, and nothing after."""
    host_kernels.require_compiler()
    monkeypatch.setenv("XARRAY_GPUZARR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(advice, "warned", set())
    monkeypatch.setattr(in_force, "options", OPTIONS)


def stored(values: np.ndarray = VALUES, cast: Cast | None = None, **options: object) -> StoredArray:
    options = {"compressors": None, "filters": None} | options
    return stored_array(zarr.create_array({}, data=values, chunks=(10, 30), shards=(20, 30), **options), cast)


def of_snappy() -> StoredArray:
    """Return Blosc frames of snappy, which numcodecs reads and does not write."""
    store = MemoryStore()
    array = zarr.create_array(
        store,
        shape=(3, 40_000),
        chunks=(1, 40_000),
        dtype="i2",
        zarr_format=2,
        compressors=numcodecs.Blosc(cname="snappy"),
    )
    for row, chunk in enumerate(LONG):
        put(store, f"{row}.0", blosc_frames.encode(chunk.tobytes(), cname="snappy", typesize=2, shuffle=1))
    return stored_array(array)


@functools.cache
def cases() -> dict[str, tuple[StoredArray, np.ndarray]]:
    """Return arrays, and what they hold, by what decodes them."""
    scaled = Cast(dtype="<f4", mask=(7.0,), scale=0.5, offset=1.0)
    expected = np.where(VALUES == 7, np.float32("nan"), VALUES.astype("f4") * np.float32(0.5) + np.float32(1))
    long = zarr.create_array({}, data=LONG, chunks=(1, 40_000), compressors=GzipCodec())
    blosc = {"typesize": 2, "shuffle": "bitshuffle"}
    return {
        "raw": (stored(), VALUES),
        "zstd": (stored(compressors=ZstdCodec()), VALUES),
        "lz4": (stored(compressors=zn.LZ4()), VALUES),
        "gzip": (stored(compressors=GzipCodec()), VALUES),
        "long gzip": (stored_array(long), LONG),
        "blosc snappy": (of_snappy(), LONG),
        "zlib": (stored(compressors=zn.Zlib()), VALUES),
        "blosc lz4": (stored(compressors=BloscCodec(cname="lz4", **blosc)), VALUES),
        "blosc zstd": (stored(compressors=BloscCodec(cname="zstd", **blosc)), VALUES),
        "blosc blosclz": (stored(compressors=BloscCodec(cname="blosclz", **blosc)), VALUES),
        "shuffle": (stored(compressors=[zn.Shuffle(elementsize=2)]), VALUES),
        "delta": (stored(filters=[zn.Delta(dtype="<i2")]), VALUES),
        "float delta": (stored(FLOATS, filters=[zn.Delta(dtype="<f4")]), FLOATS),
        "packbits": (stored(VALUES > 600, filters=[zn.PackBits()]), VALUES > 600),
        "astype": (stored(FLOATS, filters=[zn.AsType(encode_dtype="<f8", decode_dtype="<f4")]), FLOATS),
        "cast": (stored(cast=scaled), expected),
    }


def values(array: StoredArray, decoder: CudaDecoder, selection: object = ...) -> np.ndarray:
    return read(array, selection, decoder).get()


def wrong_kinds(where: str, kinds: str, array: str) -> list[tuple[Fault, str]]:
    every = [Fault(where, kind) for kind in kinds.split()]
    return [(fault, array) for fault in every] + [(Fault(f.where, f.kind, times=1), array) for f in every]


NVCOMP = "bytes length status raise memory"
KERNEL = "bytes raise memory"
FAULTS = [
    *wrong_kinds("Zstd", NVCOMP, "zstd"),
    *wrong_kinds("LZ4", NVCOMP, "lz4"),
    *wrong_kinds("Gzip", NVCOMP, "gzip"),
    *wrong_kinds("Gzip, looking ahead", NVCOMP, "long gzip"),
    *wrong_kinds("Deflate", NVCOMP, "zlib"),
    *wrong_kinds("Snappy", NVCOMP, "blosc snappy"),
    *wrong_kinds("LZ4", "bytes", "blosc lz4"),
    *wrong_kinds("Zstd", "bytes", "blosc zstd"),
    *wrong_kinds("zstd_blocks", KERNEL, "zstd"),
    *wrong_kinds("blosclz", KERNEL, "blosc blosclz"),
    *wrong_kinds("unshuffle", KERNEL, "blosc lz4"),
    *wrong_kinds("unshuffle", "bytes", "shuffle"),
    *wrong_kinds("checksum crc32", KERNEL, "gzip"),
    *wrong_kinds("checksum adler32", KERNEL, "zlib"),
    *wrong_kinds("move", KERNEL, "raw"),
    *wrong_kinds("delta", KERNEL, "delta"),
    *wrong_kinds("float_delta", KERNEL, "float delta"),
    *wrong_kinds("packbits", KERNEL, "packbits"),
    *wrong_kinds("element_codec", KERNEL, "astype"),
    *wrong_kinds("scatter", KERNEL, "raw"),
    *wrong_kinds("scatter", KERNEL, "cast"),
    *(wrong for array in ("zstd", "delta") for wrong in wrong_kinds("scatter", "bytes", array)),
]


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if issubclass(w.category, GpuZarrWarning)]


@pytest.mark.parametrize(("fault", "name"), FAULTS, ids=lambda value: str(value).replace("Fault", ""))
@pytest.mark.parametrize("seed", [0, 2])
def test_values_are_right_whatever_is_wrong(fault, name, seed):
    array, expected = cases()[name]
    decoder, device = engine(fault, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            np.testing.assert_array_equal(values(array, decoder), expected)
    assert device.n_met
    if fault.kind == "memory" and fault.times == 1:  # there was enough at once
        assert told(caught) == []
        assert decoder.route(array.spec, array.cast).where == "cuda"
        return
    (text,) = told(caught)
    route = decoder.route(array.spec, array.cast)
    if fault.kind == "memory":
        assert text.startswith("there is no memory to check")
        assert route.where == "cuda"  # once there is
        return
    assert "failed its self-check on NVIDIA Simulator, driver 580.1, CuPy 14.2.0, nvCOMP 6.0.0" in text
    assert route.where == "host, then one copy to the device"
    assert "failed its self-check on NVIDIA Simulator" in route.why


@pytest.mark.parametrize(("fault", "name"), FAULTS[:8:2], ids=str)
def test_the_next_process_remembers(fault, name, monkeypatch):
    array, expected = cases()[name]
    with pytest.warns(GpuZarrWarning):
        values(array, engine(fault)[0])
    monkeypatch.setattr(advice, "warned", set())
    decoder, device = engine()
    if fault.kind == "memory":
        return
    assert "failed its self-check" in decoder.route(array.spec, array.cast).why  # nobody has used the device yet
    with pytest.warns(GpuZarrWarning, match="failed its self-check"):
        np.testing.assert_array_equal(values(array, decoder), expected)
    assert device.calls["nvcomp"] == 0


def test_checks_do_not_care_which_stream_the_caller_works_on(monkeypatch):
    device = FaultyDevice(None)

    def refused():
        raise DeviceUnavailableError("no such stream", tried="a read", found="ptds", do="use another")

    monkeypatch.setattr(device, "consumer_stream", refused)
    assert [answer.found for answer in check_all(device) if not answer.passed] == []
    device.check()


@pytest.mark.parametrize("fault", [Fault("Zstd", "bytes"), Fault("Zstd", "status")], ids=str)
def test_strict_checks_raise_and_name_what_failed(fault, monkeypatch):
    monkeypatch.setattr(in_force, "options", replace(OPTIONS, checks="strict"))
    decoder = CudaDecoder(lambda: device)
    device, (array, _) = FaultyDevice(fault), cases()["zstd"]
    with pytest.warns(GpuZarrWarning, match="failed"), pytest.raises(CudaError, match="not trusted") as caught:
        values(array, decoder)

    assert "zstd failed its self-check on NVIDIA Simulator" in caught.value.found


def test_checks_that_are_off_run_nothing(monkeypatch):
    monkeypatch.setattr(in_force, "options", replace(OPTIONS, checks="off"))
    device, (array, expected) = FaultyDevice(None), cases()["zstd"]
    np.testing.assert_array_equal(values(array, CudaDecoder(lambda: device)), expected)

    assert device.calls["nvcomp"] == 1


@pytest.mark.parametrize("compressor", [ZstdCodec(), zn.LZ4(), GzipCodec(), zn.Zlib()], ids=str)
def test_chunks_of_one_byte_are_asked_apart(compressor):
    names = {}
    for nbytes in (1, 2):
        data = np.arange(12, dtype="u1")
        array = stored_array(write(MemoryStore(), data, chunks=(nbytes,), compressors=compressor))
        names[nbytes] = {check.name for check in required_checks(array.spec, array.cast, points=False)}

    (usual,), (of_one,) = names[2] - names[1], names[1] - names[2]
    assert of_one == f"{usual}, one byte"


def test_what_has_failed_is_kept_with_its_date_until_the_doctor_asks_again():
    array, expected = cases()["zstd"]
    device = FaultyDevice(Fault("Zstd", "bytes"))
    with pytest.warns(GpuZarrWarning, match=f"on {datetime.now(UTC):%Y-%m-%d}"):
        values(array, CudaDecoder(lambda: device))
    (file,) = cache_folder().glob("checks-*.json")
    outcome_cache.save(IDENTITY, {"a check of other arrays": "wrong"})

    assert all(answer.passed for answer in check_all(FaultyDevice(None)))

    assert not any(json.loads(file.read_text())["checks"].values())
    np.testing.assert_array_equal(values(array, CudaDecoder(lambda: FaultyDevice(None))), expected)


def test_forgotten_outcomes_are_not_returned():
    outcome_cache.save(IDENTITY, {"zstd": "wrong"})
    folder = cache_folder()
    times = folder.stat()
    assert outcome_cache.newest_outcomes() == ((IDENTITY, {"zstd": "wrong"}),)

    outcome_cache.forget(IDENTITY)

    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if the clock of the file system were coarse
    assert not outcome_cache.newest_outcomes()


def test_a_check_runs_once_for_each_thing():
    decoder, device = engine()
    array = cases()["zstd"][0]
    values(array, decoder)
    before = device.calls["nvcomp"]
    values(array, decoder)
    assert device.calls["nvcomp"] == before + 1
    values(array, CudaDecoder(lambda: device))  # remembered: the file says that it has passed
    assert device.calls["nvcomp"] == before + 2
    (file,) = cache_folder().glob("checks-*.json")
    assert json.loads(file.read_text())["checks"]["zstd"] == ""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All kernels of the checks; what is found is remembered elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XARRAY_GPUZARR_CACHE_DIR", str(tmp_path_factory.mktemp("other")))
        patch.setattr(in_force, "options", OPTIONS)
        list(check_all(FaultyDevice(None)))


@pytest.fixture
def impatient(built: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up soon; kernels are built before."""
    monkeypatch.setattr(self_checks, "PATIENCE_S", 1.0)
    monkeypatch.setattr(self_checks, "_SHORTER_PATIENCE_S", 1.0)


@pytest.fixture
def patience_ends(impatient: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[FaultyDevice], None]:
    """Return what lets patience end as soon as somebody waits for what hangs on a device."""

    def with_a_hang(device: FaultyDevice) -> None:
        def within(answers, _seconds):
            while True:
                hangs = device.hangs.is_set()  # whoever waits has given all answers before
                with suppress(Empty):
                    return answers.get(timeout=0.002)
                if hangs:
                    device.hangs.clear()
                    return None

        monkeypatch.setattr(self_checks, "_next_result", within)

    return with_a_hang


@pytest.mark.parametrize(("where", "name"), sorted({(fault.where, name) for fault, name in FAULTS}))
def test_what_hangs_is_given_up(where, name, patience_ends):
    array, expected = cases()[name]
    device = FaultyDevice(Fault(where, "hang"), seed=2)
    patience_ends(device)
    decoder = CudaDecoder(lambda: device)
    with pytest.warns(GpuZarrWarning, match="no end after 1 s"):
        np.testing.assert_array_equal(values(array, decoder), expected)
    assert "no end after 1 s" in decoder.route(array.spec, array.cast).why
    device.released.set()


@pytest.mark.parametrize("where", ["upload", "download"])
@pytest.mark.parametrize("kind", ["bytes", "raise", "hang"])
def test_a_device_that_cannot_copy_is_not_used(where, kind, patience_ends):
    array, _ = cases()["raw"]
    device = FaultyDevice(Fault(where, kind))
    patience_ends(device)
    decoder = CudaDecoder(lambda: device)
    with pytest.warns(GpuZarrWarning, match="copies failed its self-check"):
        assert "copies failed" in decoder.why_unusable()
    with pytest.raises(DeviceUnavailableError, match="copies failed its self-check on NVIDIA Simulator"):
        read(array, ..., decoder)
    device.released.set()


def test_all_checks_pass_and_are_remembered():
    device = FaultyDevice(None)
    answers = list(check_all(device))
    assert [answer for answer in answers if not answer.passed] == []
    assert len({answer.name for answer in answers}) == len(answers) > 25
    assert all(answer.nbytes and answer.seconds > 0 for answer in answers)
    (file,) = cache_folder().glob("checks-*.json")
    assert json.loads(file.read_text())["checks"] == {answer.name: "" for answer in answers}
    assert json.loads(file.read_text())["identity"]["name"] == IDENTITY.name
    device.check()


def test_all_checks_go_on_behind_one_that_fails():
    answers = {answer.name: answer for answer in check_all(FaultyDevice(Fault("LZ4", "status")))}
    assert {name for name, answer in answers.items() if not answer.passed} == {"lz4", "lz4, one byte", "blosc lz4"}


@pytest.mark.parametrize(("error", "scope"), [(DeviceMemoryError, "moment"), (CudaError, "process")])
def test_a_thread_that_cannot_turn_to_the_device_says_so_at_once(monkeypatch, error, scope):
    monkeypatch.setattr(self_checks, "PATIENCE_S", 1.0)
    device = FaultyDevice(None)

    @contextmanager
    def activate():
        raise error("no context", tried="cudaSetDevice", found="there is none to be had", do="wait")
        yield

    monkeypatch.setattr(device, "activate", activate)
    (answer,) = run_checks(device, [COPIES])

    assert (answer.found, answer.scope) == (f"{error.__name__}: there is none to be had", scope)


@pytest.mark.parametrize("kind", ["raise", "hang"])
def test_a_context_that_is_broken_says_nothing_of_the_device(kind, impatient):
    array, expected = cases()["lz4"]
    decoder, device = engine()
    values(cases()["zstd"][0], decoder)
    device.plant(Fault("upload", kind))  # as another library's kernel leaves it
    with pytest.warns(GpuZarrWarning), pytest.raises(DeviceUnavailableError, match="copies failed"):
        values(array, decoder)
    device.released.set()
    sound = FaultyDevice(None)
    np.testing.assert_array_equal(values(array, CudaDecoder(lambda: sound)), expected)
    assert sound.calls["nvcomp"] > 1  # it was checked: nothing was remembered
    sound.check()


@pytest.mark.parametrize("error", [MemoryError("no pages"), OSError("no file"), ImportError("no module")])
def test_what_is_no_error_of_the_device_is_not_remembered(monkeypatch, error):
    array, expected = cases()["lz4"]
    device = FaultyDevice(None)
    with monkeypatch.context() as patch:
        patch.setattr(trial.Trial, "read_by_device", lambda *_: (_ for _ in ()).throw(error))
        with pytest.warns(GpuZarrWarning, match=str(error)):
            np.testing.assert_array_equal(values(array, CudaDecoder(lambda: device)), expected)
    decoder = CudaDecoder(lambda: device)
    np.testing.assert_array_equal(values(array, decoder), expected)
    assert decoder.route(array.spec, array.cast).where == "cuda"


def test_threads_that_cannot_start_leave_it_to_the_host(monkeypatch):
    array, expected = cases()["lz4"]
    decoder, device = engine()

    def fail(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.warns(GpuZarrWarning, match="can't start new thread"):
            np.testing.assert_array_equal(values(array, decoder), expected)
    np.testing.assert_array_equal(values(array, decoder), expected)
    assert device.calls["nvcomp"]


@given(
    scale=st.sampled_from([1, 2, 0.1, 1000, -3]),
    offset=st.sampled_from([0, -1000.0, 1000, 0.5, -1]),
    decoded=st.sampled_from(["u1", "<u2", "<i2", ">i4", "<f4", "<f8"]),
    encoded=st.sampled_from(["u1", "<u2", "<i4", "<f8"]),
)
def test_filters_of_any_numbers_are_checked_by_their_kernel(scale, offset, decoded, encoded):
    spec = FixedScaleOffsetSpec(decoded=decoded, encoded=encoded, scale=scale, offset=offset)
    (answer,) = run_checks(FaultyDevice(None), [element_check(spec)])
    assert answer.found == ""


FIELDS = {"name": "N", "uuid": "u", "compute_capability": "9.0", "driver": "1", "versions": {"nvCOMP": "6"}}
ODD = {
    **{repr(text): text for text in ("", "{", "[]", "\0", '{"made of": 1}')},
    "deep": "[" * 200_000,
    "checks that are a number": {"identity": {}, "checks": 3},
    "versions that are a list": {"identity": FIELDS | {"versions": ["6"]}, "checks": {"zstd": "no"}},
    "versions that are numbers": {"identity": FIELDS | {"versions": {"nvCOMP": 6}}, "checks": {"zstd": "no"}},
    "a list for a name": {"identity": FIELDS | {"uuid": ["u"]}, "checks": {"zstd": "no"}},
    "no text found": {"identity": FIELDS, "checks": {"zstd": None}},
    "another field": {"identity": FIELDS | {"more": "x"}, "checks": {"zstd": "no"}},
}


@pytest.mark.parametrize("said", ODD.values(), ids=ODD)
def test_odd_files_are_passed_over_and_written_anew(said):
    array, expected = cases()["zstd"]
    values(array, CudaDecoder(lambda: FaultyDevice(None)))
    (file,) = cache_folder().glob("checks-*.json")
    file.write_text(said if isinstance(said, str) else json.dumps(json.loads(file.read_text()) | said))

    assert not outcome_cache.newest_outcomes()
    decoder = CudaDecoder(lambda: FaultyDevice(None))
    assert decoder.route(array.spec, array.cast).where == "cuda"
    np.testing.assert_array_equal(values(array, decoder), expected)
    assert json.loads(file.read_text())["checks"]["zstd"] == ""


def test_what_is_no_file_is_passed_over():
    cache_folder().mkdir(parents=True)
    os.mkfifo(cache_folder() / "checks-0.json")
    (cache_folder() / "checks-1.json").mkdir()
    assert not outcome_cache.newest_outcomes()


@pytest.mark.parametrize("folder", ["x" * 5000, f"{__file__}/below"], ids=["too long a name", "below a file"])
def test_a_folder_that_cannot_be_is_passed_over(monkeypatch, folder):
    monkeypatch.setenv("XARRAY_GPUZARR_CACHE_DIR", folder)
    array, expected = cases()["zstd"]
    decoder = CudaDecoder(lambda: FaultyDevice(None))
    assert decoder.route(array.spec, array.cast).where == "cuda"
    np.testing.assert_array_equal(values(array, decoder), expected)


def test_points_are_checked_by_themselves():
    decoder, device = engine(Fault("points", "bytes"))
    array, expected = cases()["zstd"]
    at = (np.array([3, 39, 12]), np.array([0, 29, 7]))
    with pytest.warns(GpuZarrWarning, match="placing of points, 2-byte elements failed"):
        found = read_points(array, at, decoder)
    with device.activate():
        np.testing.assert_array_equal(found.get(), expected[at])
    assert decoder.route(array.spec, array.cast).where == "cuda"


def test_the_folder_is_where_the_user_keeps_caches(monkeypatch):
    monkeypatch.delenv("XARRAY_GPUZARR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", os.sep + "caches")
    assert cache_folder() == Path(os.sep, "caches", "xarray-gpuzarr")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "xarray-gpuzarr"


# --- what outcomes belong to ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".py", ".cu", ".cuh", ".c", ".h", ".json"])
def test_outcomes_belong_to_the_code_that_made_them(tmp_path, monkeypatch, suffix):
    package = shutil.copytree(files("xarray_gpuzarr"), tmp_path / "package", ignore=shutil.ignore_patterns("*.pyc"))
    monkeypatch.setattr(outcome_cache.resources, "files", lambda _: package)
    names = {outcome_cache._package_digest.__wrapped__()}

    changed = sorted(package.rglob(f"*{suffix}"))
    for file in (changed[0], changed[-1]):
        file.write_bytes(file.read_bytes() + b"\n")
        names.add(outcome_cache._package_digest.__wrapped__())

    assert len(names) == 3 if changed[0] != changed[-1] else 2


@pytest.mark.parametrize("library", ["np", "numcodecs"])
def test_outcomes_belong_to_the_libraries_that_said_what_is_right(monkeypatch, library):
    before = outcome_cache._package_digest.__wrapped__()
    monkeypatch.setattr(getattr(outcome_cache, library), "__version__", "999")

    assert outcome_cache._package_digest.__wrapped__() != before
