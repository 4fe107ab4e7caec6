"""Calibration files: what they say comes back, what is wrong with them is said, and reads and `explain` follow them."""

import json
import os
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.simulated import gpu as simulated_gpu
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from xarray_gpuzarr import read_array
from xarray_gpuzarr.decoders.cost import calibration
from xarray_gpuzarr.decoders.cost.calibration import (
    as_document,
    calibration_in_force,
    from_document,
    keep_calibration,
    read_calibration,
)
from xarray_gpuzarr.decoders.cuda import split as shares
from xarray_gpuzarr.decoders.cuda.split import ReadsUnderWay
from xarray_gpuzarr.decoders.cuda.staging.host_share import HostShare, n_rows
from xarray_gpuzarr.decoders.host.decoder import HostDecoder
from xarray_gpuzarr.errors import OptionError
from xarray_gpuzarr.process.cache_folder import cache_folder
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force
from xarray_gpuzarr.read import stored_array

TIMES = {
    "device": {"chunk_nbytes": [100, 10_000], "n_chunks": [1, 8], "seconds": [[1e-3, 1e-3], [2e-3, 4e-3]]},
    "host": {"chunk_nbytes": [100], "thread_bytes_per_second": [1e6], "most_bytes_per_second": 1e9},
}
DOCUMENT = {
    "format": "xarray_gpuzarr calibration",
    "version": 1,
    "gpu": "a simulator",
    "date": "2026-11-21",
    "gds_is_quicker": False,
    "wave": 1056,
    "overlaps": True,
    "upload": {"seconds": 1e-5, "bytes_per_second": 1e9},
    "codecs": {"zstd": TIMES, "blosc lz4": TIMES},
}
"""The host has reads of one chunk of 800 bytes: 0.8 ms against more than 1."""


@pytest.fixture
def path(tmp_path):
    """Return a call that writes a file."""

    def write(document):
        file = tmp_path / "calibration.json"
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(file)

    return write


@pytest.fixture
def calibrated(monkeypatch, path):
    """Return a call that lets reads go to the simulator by a calibration; it returns what the host has decoded."""
    simulated_gpu.in_use(monkeypatch)
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "1")
    by_host = []
    decode = HostDecoder.decode
    monkeypatch.setattr(HostDecoder, "decode", lambda *a, **k: (by_host.append(1), decode(*a, **k))[1])

    def use(document):
        options = ResourceOptions(calibration=None if document is None else path(document))
        monkeypatch.setattr(in_force, "options", options)
        return by_host

    return use


def stored(n_chunks=4, compressor=None, **options):
    values = np.arange(n_chunks * 100.0)
    array = zarr.create_array(
        {}, data=values, chunks=(100,), shards=(n_chunks * 100,), compressors=compressor or ZstdCodec(), **options
    )
    return array, values


def test_what_is_written_is_read_back(path):
    calibration = read_calibration(path(DOCUMENT))
    assert as_document(calibration) == DOCUMENT
    assert from_document(json.loads(json.dumps(as_document(calibration)))) == calibration
    assert calibration.device_seconds("zstd", 8, 10_000) == pytest.approx(4e-3)
    assert calibration.host_seconds("zstd", 2, 100, 1) == pytest.approx(2e-4 + 1e-5 + 2e-7)


def changed(**changes):
    return DOCUMENT | changes


def codec(**changes):
    return changed(codecs={"zstd": TIMES | changes})


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ("", "JSONDecodeError"),
        ("[1]", "TypeError"),
        ("null", "TypeError"),
        ({}, "no 'format'"),
        (changed(format="other"), "format 'other', version 1; known: 'xarray_gpuzarr calibration', 1"),
        (changed(version=2), "version 2"),
        (changed(upload=None), "TypeError"),
        (changed(upload={"seconds": 1}), "no 'bytes_per_second'"),
        (changed(upload={"seconds": 0, "bytes_per_second": 1}), "upload_seconds: not all positive"),
        (changed(upload={"seconds": "soon", "bytes_per_second": 1}), "could not convert"),
        (changed(codecs=[]), "AttributeError"),
        (changed(wave=0), "wave: not all positive"),
        (changed(wave="many"), "invalid literal"),
        (codec(host={}), "no 'chunk_nbytes'"),
        (codec(device=TIMES["device"] | {"seconds": [[1, 2]]}), "not one row for each"),
        (codec(device=TIMES["device"] | {"seconds": [[2, 1], [3, 4]]}), "times fall"),
        (codec(host=TIMES["host"] | {"most_bytes_per_second": -1}), "most: not all positive"),
    ],
)
def test_files_that_cannot_be_meant_are_refused(path, document, found):
    with pytest.raises(OptionError) as caught:
        read_calibration(path(document))
    assert found in caught.value.found
    assert "calibration.json" in caught.value.tried


def test_files_from_before_chunks_at_once_were_measured_are_read(path):
    calibration = read_calibration(path({key: DOCUMENT[key] for key in DOCUMENT if key not in {"wave", "overlaps"}}))
    assert (calibration.wave, calibration.overlaps) == (None, None)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(OptionError, match="No such file"):
        read_calibration(str(tmp_path / "nonesuch.json"))


def test_a_changed_file_is_read_again(path):
    file = path(DOCUMENT)
    before = read_calibration(file)
    path(changed(gpu="another"))
    os.utime(file, ns=(1, 1))
    assert (before.gpu, read_calibration(file).gpu) == ("a simulator", "another")


@pytest.mark.parametrize("value", [3, b"x", ["x"]])
def test_a_calibration_that_is_no_path_is_refused(value):
    with pytest.raises(OptionError, match="not a path, as text"):
        ResourceOptions(calibration=value)


def test_the_environment_names_a_file():
    options = ResourceOptions.from_environment({"XARRAY_GPUZARR_CALIBRATION": "/tmp/c.json"})
    assert options.calibration == "/tmp/c.json"
    assert ResourceOptions.from_environment({}).calibration is None


# ---- found by itself


class Identity:
    name = "a simulator"
    compute_capability = "9.0"
    driver = "580.1"
    versions: ClassVar = {"nvCOMP": "6.0.0"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache folder of its own, and no option that names a calibration."""
    monkeypatch.setenv("XARRAY_GPUZARR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(in_force, "options", ResourceOptions())
    return tmp_path / "cache"


def never():
    raise AssertionError


def test_what_was_kept_is_found(folder):
    assert calibration_in_force(never) is None
    path = keep_calibration(from_document(DOCUMENT), Identity())
    assert [*folder.iterdir()] == [path]
    assert as_document(calibration_in_force(Identity)) == DOCUMENT
    keep_calibration(from_document(changed(gpu="another")), Identity())
    assert calibration_in_force(Identity).gpu == "another"


def test_other_machines_find_none(folder, monkeypatch):
    keep_calibration(from_document(DOCUMENT), Identity())

    class Newer(Identity):
        driver = "590.1"

    assert calibration_in_force(Newer) is None
    assert calibration_in_force(lambda: None) is None
    monkeypatch.setattr(calibration, "processor", lambda: "another")
    calibration._name.cache_clear()
    assert calibration_in_force(Identity) is None
    calibration._name.cache_clear()


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", json.dumps(DOCUMENT | {"version": 2}), "\xff"])
def test_what_is_found_and_unusable_is_passed_over(folder, text):
    path = keep_calibration(from_document(DOCUMENT), Identity())
    path.unlink()
    path.write_text(text, encoding="latin-1")
    assert calibration_in_force(Identity) is None


@pytest.mark.parametrize("error", [ImportError, OSError, OptionError("a", tried="b", found="c", do="d")])
def test_a_device_that_cannot_be_asked_has_none(folder, error):
    def broken():
        raise error

    keep_calibration(from_document(DOCUMENT), Identity())
    assert calibration_in_force(broken) is None


def test_what_is_chosen_comes_first(folder, path, monkeypatch):
    keep_calibration(from_document(DOCUMENT), Identity())
    monkeypatch.setattr(in_force, "options", ResourceOptions(calibration="off"))
    assert calibration_in_force(never) is None
    chosen = ResourceOptions(calibration=path(changed(gpu="chosen")))
    monkeypatch.setattr(in_force, "options", chosen)
    assert calibration_in_force(never).gpu == "chosen"


def test_a_read_looks_at_the_file_system_once(folder, monkeypatch):
    keep_calibration(from_document(DOCUMENT), Identity())
    assert calibration_in_force(Identity) is not None
    looked, stat = [], os.stat
    monkeypatch.setattr(os, "stat", lambda path, **k: (looked.append(path), stat(path, **k))[1])
    assert calibration_in_force(Identity) is not None
    assert looked == [str(folder)]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XARRAY_GPUZARR_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/xarray-gpuzarr"),
        ({"XARRAY_GPUZARR_CACHE_DIR": "", "XDG_CACHE_HOME": ""}, "/h/.cache/xarray-gpuzarr"),
        ({}, "/h/.cache/xarray-gpuzarr"),
    ],
)
def test_the_cache_folder_is_the_users(monkeypatch, environ, expected):
    for name in ("XARRAY_GPUZARR_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/h", **environ}.items():
        monkeypatch.setenv(name, value)
    assert str(cache_folder()) == expected


# ---- reads and `explain`


def test_few_chunks_are_decoded_by_the_host_and_many_by_the_device(calibrated):
    by_host = calibrated(DOCUMENT)
    array, values = stored(n_chunks=4)

    one = read_array(array, slice(100, 200), device="cuda")
    n_small = len(by_host)
    every = read_array(array, device="cuda")

    np.testing.assert_array_equal(one.get(), values[100:200], strict=True)
    np.testing.assert_array_equal(every.get(), values, strict=True)
    assert (n_small, len(by_host)) == (1, 1)


def test_points_are_shared_out_by_the_chunks_that_they_touch(calibrated, tmp_path):
    by_host = calibrated(DOCUMENT)
    _, values = stored(n_chunks=4)
    xr.Dataset({"t": ("x", values)}).to_zarr(
        tmp_path / "s.zarr", consolidated=False, encoding={"t": {"chunks": (100,), "shards": (400,)}}
    )
    lazy = xr.open_dataset(tmp_path / "s.zarr", engine="gpuzarr", device="cuda", consolidated=False)["t"]
    within, across = xr.DataArray([3, 1], dims="p"), xr.DataArray([3, 399], dims="p")

    np.testing.assert_array_equal(lazy.isel(x=within).variable.compute().data.get(), values[[3, 1]])
    n_within = len(by_host)
    np.testing.assert_array_equal(lazy.isel(x=across).variable.compute().data.get(), values[[3, 399]])
    assert (n_within, len(by_host)) == (1, 1)


@pytest.mark.parametrize(
    ("document", "compressor", "is_by_host"),
    [
        (None, ZstdCodec(), False),
        (DOCUMENT, BloscCodec(cname="lz4"), True),
        (DOCUMENT, BloscCodec(cname="zstd"), False),  # of which nothing is known
        (DOCUMENT, GzipCodec(), False),
        (changed(codecs={}), ZstdCodec(), False),
    ],
)
def test_what_is_not_calibrated_is_the_devices(calibrated, document, compressor, is_by_host):
    by_host = calibrated(document)
    array, values = stored(n_chunks=1, compressor=compressor)
    np.testing.assert_array_equal(read_array(array, device="cuda").get(), values, strict=True)
    assert bool(by_host) == is_by_host


def explained(tmp_path, n_chunks):
    path, values = tmp_path / f"{n_chunks}.zarr", np.arange(n_chunks * 100.0)
    encoding = {"t": {"chunks": (100,), "shards": (n_chunks * 100,), "compressors": (ZstdCodec(),)}}
    xr.Dataset({"t": ("x", values)}).to_zarr(path, consolidated=False, encoding=encoding)
    dataset = xr.open_dataset(path, engine="gpuzarr", device="cuda", consolidated=False)
    (row,) = dataset.gpuzarr.explain().rows
    return row.where, row.why


def test_explain_says_who_decodes_a_shard_and_why(calibrated, tmp_path):
    calibrated(DOCUMENT)
    assert explained(tmp_path, 4) == ("cuda", "")
    where, why = explained(tmp_path, 1)
    assert where == "host, then one copy to the device"
    assert why == (
        "1 chunk of 800 bytes: 0.811 ms by 1 host thread, 1.37 ms on the device, as calibrated on a simulator"
    )


SLOW = {
    "device": {"chunk_nbytes": [800], "n_chunks": [1, 8], "seconds": [[1.0, 8.0]]},
    "host": {"chunk_nbytes": [800], "thread_bytes_per_second": [800 / 3], "most_bytes_per_second": 1e9},
}
"""Of 1000 chunks, a second each, four threads of the host have more than half: three seconds each."""


def test_explain_says_what_is_shared(calibrated, tmp_path, monkeypatch):
    calibrated(changed(codecs={"zstd": SLOW}))
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "4")
    where, why = explained(tmp_path, 1000)

    assert where == "cuda"
    assert why == (
        "host and device: 571 of 1000 chunks of 800 bytes by 4 host threads, 4.29e+05 ms in all; 1e+06 ms on the "
        "device alone, 7.5e+05 ms by the host alone, as calibrated on a simulator"
    )


def test_a_calibration_lets_both_sides_decode(calibrated, monkeypatch):
    by_host = calibrated(changed(codecs={"zstd": SLOW}))
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "4")
    shared, stage = [], HostShare.stage
    monkeypatch.setattr(
        HostShare, "stage", lambda share, pieces: (shared.append(n_rows(pieces)), stage(share, pieces))[1]
    )
    array, values = stored(n_chunks=1000)

    np.testing.assert_array_equal(read_array(array, device="cuda").get(), values, strict=True)
    assert (by_host, sum(shared)) == ([], 571)


def test_all_chunks_of_a_longer_read_may_be_the_hosts(calibrated, monkeypatch):
    quick = SLOW | {"host": SLOW["host"] | {"thread_bytes_per_second": [1e6]}}
    by_host = calibrated(changed(codecs={"zstd": quick}))
    shared, stage = [], HostShare.stage
    monkeypatch.setattr(
        HostShare, "stage", lambda share, pieces: (shared.append(n_rows(pieces)), stage(share, pieces))[1]
    )
    array, values = stored(n_chunks=1000)

    np.testing.assert_array_equal(read_array(array, device="cuda").get(), values, strict=True)
    assert (by_host, sum(shared)) == ([], 1000)


def test_reads_are_counted_while_they_are_under_way(monkeypatch):
    monkeypatch.setenv("XARRAY_GPUZARR_NUM_THREADS", "8")
    reading = ReadsUnderWay()

    def fails():
        raise KeyError(reading.n)

    assert reading.counted(lambda: (reading.n, reading.n_threads)) == (1, 8)
    assert reading.counted(lambda: reading.counted(lambda: (reading.n, reading.n_threads))) == (2, 4)
    with pytest.raises(KeyError, match="1"):
        reading.counted(fails)
    assert (reading.n, reading.n_threads) == (0, 8)


def test_a_read_is_shared_out_once_those_that_begin_with_it_are_counted(calibrated, monkeypatch):
    """Its first plan is drawn before."""
    calibrated(changed(codecs={"zstd": SLOW}))
    seen, split = [], shares.best_split
    monkeypatch.setattr(shares, "best_split", lambda *a, n_reads: (seen.append(n_reads), split(*a, n_reads=n_reads))[1])
    spec = stored_array(stored()[0]).spec
    target, reading = SimpleNamespace(n_chunks=4), ReadsUnderWay()

    def plans():
        reading._under_way |= {1: None, 2: None, 3: None}
        yield from "ab"

    *_, drawn = shares.shared_out(spec, target, plans(), reading, lambda: None, None)
    assert (seen, list(drawn)) == ([3], ["a", "b"])


def test_an_unusable_calibration_is_an_error_of_the_read(calibrated):
    calibrated("{")
    array, _ = stored()
    with pytest.raises(OptionError, match="unusable calibration"):
        read_array(array, device="cuda")
