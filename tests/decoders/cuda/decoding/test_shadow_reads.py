"""Chunks that the host decodes as well: what differs is noticed, and the right values are returned."""

import warnings
from contextlib import suppress

import numpy as np
import pytest
import zarr
from helpers.kernels import on_host as host_kernels
from helpers.simulated.planted_faults import Fault, FaultyDevice, engine
from helpers.simulated.simulator import SimulatedDevice
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.codecs import numcodecs as zn
from zarr.storage import LocalStore

from xarray_gpuzarr.cuda import checksum
from xarray_gpuzarr.decoders.cuda import CudaDecoder
from xarray_gpuzarr.decoders.cuda.decoding import shadows
from xarray_gpuzarr.decoders.cuda.staging.direct import DirectStager
from xarray_gpuzarr.errors import CorruptChunkError, DeviceMemoryError, GpuZarrWarning, OptionError
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process.counters import counters
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force
from xarray_gpuzarr.read import StoredArray, read, stored_array

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")

VALUES = np.arange(60 * 30, dtype="i2").reshape(60, 30)
SMALL = {"slot_nbytes": 2**16, "n_slots": 2, "batch_chunks": 4, "scratch_nbytes": 2**28}


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    host_kernels.require_compiler()
    monkeypatch.setenv("XARRAY_GPUZARR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(advice, "warned", set())
    monkeypatch.setattr(shadows, "_compared", set())


@pytest.fixture
def verify(monkeypatch):
    """Return a call that sets what is verified."""

    def use(value, **options):
        monkeypatch.setattr(in_force, "options", ResourceOptions(**SMALL | options, little="device", verify=value))

    return use


def stored(store=None, path=None, **options) -> StoredArray:
    options = {"chunks": (5, 10), "shards": (20, 30), "compressors": ZstdCodec()} | options
    return stored_array(zarr.create_array({} if store is None else store, name=path, data=VALUES, **options))


def values(array, decoder, selection=...):
    return read(array, selection, decoder).get()


def counted(run):
    """Return what `run` returns, the chunks that were verified, and those that differed."""
    before = counters.snapshot()
    result = run()
    after = counters.snapshot() - before
    return result, after.n_verified, after.n_different


KINDS = {
    "zstd": {},
    "gzip": {"compressors": GzipCodec()},
    "blosc": {"chunks": (20, 30), "compressors": BloscCodec(cname="lz4", typesize=2, shuffle="bitshuffle")},
    "raw": {"compressors": None},
    "big-endian": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    "rows of the result": {"chunks": (5, 30)},
    "filters": {
        "filters": [zn.Delta(dtype="<i2")],
        "compressors": [zn.Shuffle(elementsize=2), ZstdCodec(), zn.CRC32()],
    },
    "objects": {"shards": None, "chunks": (5, 10)},
}


@pytest.mark.every_value
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_all_chunks_are_verified_and_none_differs(name, seed, verify):
    verify("all")
    array, (decoder, device) = stored(**KINDS[name]), engine(None, seed)
    found, n_verified, n_different = counted(lambda: values(array, decoder))
    np.testing.assert_array_equal(found, VALUES)
    assert (n_verified, n_different) == (VALUES.size // np.prod(array.spec.grid.chunk_shape), 0)
    device.check()


def test_the_first_chunk_of_each_array_is_verified_once(verify):
    verify("first")
    decoder, _ = engine()
    one, other = stored(), stored(compressors=GzipCodec())
    n_verified = [counted(lambda a=a: values(a, decoder))[1] for a in (one, other, one, other)]
    assert n_verified == [1, 1, 0, 0]


@pytest.mark.parametrize("number", range(2, 8))
def test_the_first_chunk_is_verified_although_memory_is_short(number, verify):
    verify("first")
    array, (decoder, device) = stored(), engine()
    values(stored(path="another"), decoder)
    countdown = iter(range(number, 0, -1))
    device._fail_allocations = lambda _: next(countdown, 0) == 1
    n_verified = 0
    for _ in range(2):
        with suppress(DeviceMemoryError):
            n_verified += counted(lambda: values(array, decoder))[1]
    assert n_verified == 1


@pytest.mark.parametrize("value", ["all", "off"])
@pytest.mark.parametrize("compressor", [None, ZstdCodec()])
def test_chunks_that_are_too_long_to_sum_up_are_read_unverified(value, compressor, verify, monkeypatch):
    verify(value)
    monkeypatch.setattr(checksum, "MAX_NBYTES", 99)
    array, device = stored(compressors=compressor), SimulatedDevice()
    found, *n = counted(lambda: values(array, CudaDecoder(lambda: device)))
    np.testing.assert_array_equal(found, VALUES)
    assert n == [0, 0]


def test_nothing_is_verified(verify):
    verify("off")
    device = FaultyDevice(None)
    assert counted(lambda: values(stored(), CudaDecoder(lambda: device)))[1:] == (0, 0)


def test_the_default_verifies_on_devices_that_have_to_be_checked(verify):
    verify(None)
    device, trusted = FaultyDevice(None), SimulatedDevice()
    assert counted(lambda: values(stored(), CudaDecoder(lambda: device)))[1] == 1
    assert counted(lambda: values(stored(), CudaDecoder(lambda: trusted)))[1] == 0


@pytest.mark.every_value
@pytest.mark.parametrize("chunk", [0, 2])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_wrong_bytes_of_one_chunk_of_a_batch_are_noticed(chunk, seed, verify):
    verify("all")
    array, (decoder, device) = stored(), engine(None, seed)
    values(array, decoder)
    device.plant(Fault("Zstd", "bytes", chunk=chunk))
    with pytest.warns(GpuZarrWarning) as caught:
        found, _, n_different = counted(lambda: values(array, decoder))
    np.testing.assert_array_equal(found, VALUES)
    assert n_different >= 1
    text = "\n".join(str(w.message) for w in caught if issubclass(w.category, GpuZarrWarning))
    assert "array '/' is decoded on the host from now on; this read is repeated there" in text
    assert "object 'c/" in text
    assert "gpuzarr doctor --report" in text
    n_met = device.n_met
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(values(array, decoder), VALUES)
    assert device.n_met == n_met  # the array is the host's now
    route = decoder.route(array.spec, array.cast)
    assert (route.where, "other bytes than the host" in route.why) == ("host, then one copy to the device", True)
    np.testing.assert_array_equal(values(stored(compressors=zn.LZ4()), decoder), VALUES)


def test_the_route_of_a_distrusted_array_is_the_host_although_checks_are_off(verify):
    verify("all", checks="off")
    array, (decoder, device) = stored(), engine()
    device.plant(Fault("Zstd", "bytes", chunk=0))
    with pytest.warns(GpuZarrWarning, match="other bytes than the host"):
        values(array, decoder)
    assert decoder.route(array.spec, array.cast).where == "host, then one copy to the device"


@pytest.mark.parametrize("chunk", [0, 1, 3])
def test_the_warning_names_the_chunk(chunk, verify):
    array, wrong = stored(), []
    for unseen in (True, False):
        verify("off" if unseen else "all")
        decoder, device = engine()
        values(array, decoder, np.s_[20:40])
        device.plant(Fault("Zstd", "bytes", chunk=chunk, times=1))
        if unseen:
            wrong += np.argwhere(values(array, decoder, np.s_[20:40]) != VALUES[20:40]).tolist()
    ((row, column),) = wrong
    named = rf"decoded chunk \({4 + row // 5}, {column // 10}\) of array '/', object 'c/1/0',"
    with pytest.warns(GpuZarrWarning, match=named):
        values(array, decoder, np.s_[20:40])


@pytest.mark.parametrize(("verified", "kind"), [("all", "length"), ("all", "status"), ("off", "bytes")])
def test_what_the_device_says_itself_and_what_is_not_verified_is_no_difference(verified, kind, verify):
    verify(verified)
    array, (decoder, device) = stored(), engine()
    values(array, decoder)
    device.plant(Fault("Zstd", kind))
    found, _, n_different = counted(lambda: values(array, decoder))
    assert (found == VALUES).all() == (verified == "all")  # so the tests above see something
    assert n_different == 0


@pytest.mark.parametrize("where", ["unshuffle", "delta"])
def test_kernels_behind_the_decompressor_are_verified_too(where, verify):
    verify("all")
    kinds = {"unshuffle": KINDS["blosc"], "delta": KINDS["filters"]}
    array, (decoder, device) = stored(**kinds[where]), engine()
    values(array, decoder)
    device.plant(Fault(where, "bytes"))
    with pytest.warns(GpuZarrWarning, match="other bytes than the host"):
        np.testing.assert_array_equal(values(array, decoder), VALUES)


def test_damaged_chunks_are_the_error_that_they_are(verify, tmp_path):
    verify("all")
    array = stored(LocalStore(tmp_path / "a.zarr"), shards=None, chunks=(10, 30))
    file = tmp_path / "a.zarr" / "c" / "3" / "0"
    frame = bytearray(file.read_bytes())
    frame[10] ^= 255
    file.write_bytes(frame)
    device = FaultyDevice(None)
    with pytest.raises(CorruptChunkError, match=r"chunk \(3, 0\)"):
        values(array, CudaDecoder(lambda: device))


def test_files_that_the_device_reads_are_verified(verify, tmp_path):
    verify("all")
    array = stored_array(
        zarr.create_array(LocalStore(tmp_path / "a"), data=VALUES, chunks=(5, 10), shards=(20, 30)), None, "gds"
    )
    decoder, device = engine(None, reads_files=True)
    found, n_verified, _ = counted(lambda: values(array, decoder))
    np.testing.assert_array_equal(found, VALUES)
    assert n_verified == 36
    assert device.calls["open_file"]
    device.plant(Fault("Zstd", "bytes", chunk=2))
    with pytest.warns(GpuZarrWarning, match="other bytes than the host"):
        np.testing.assert_array_equal(values(array, decoder), VALUES)


def test_a_file_that_is_rewritten_meanwhile_is_no_difference(verify, tmp_path, monkeypatch):
    verify("all")
    written = zarr.create_array(LocalStore(tmp_path / "a"), data=VALUES, chunks=(60, 30), compressors=ZstdCodec())
    array = stored_array(written, None, "gds")
    decoder, _ = engine(None, reads_files=True)
    shadows = DirectStager._shadows

    def rewriting(*args):
        written[...] = VALUES + 1
        return shadows(*args)

    monkeypatch.setattr(DirectStager, "_shadows", rewriting)
    found, n_verified, n_different = counted(lambda: values(array, decoder))
    assert (n_verified, n_different) == (1, 0)
    np.testing.assert_array_equal(found, VALUES)


@given(
    verify=st.sampled_from(["first", "all"]),
    rows=st.slices(60),
    kind=st.sampled_from(sorted(KINDS)),
    fault=st.one_of(st.none(), st.builds(Fault, where=st.just("Zstd"), kind=st.just("bytes"), chunk=st.integers(0, 3))),
    seed=st.integers(0, 31),
)
def test_reads_that_verify_everything_are_right(verify, rows, kind, fault, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_force, "options", ResourceOptions(**SMALL, little="device", verify="all" if fault else verify))
        patch.setattr(shadows, "_compared", set())
        array, (decoder, device) = stored(**KINDS[kind]), engine(None, seed)
        values(array, decoder, np.s_[:1])
        device.plant(fault)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GpuZarrWarning)
            np.testing.assert_array_equal(values(array, decoder, rows), VALUES[rows])


@pytest.mark.parametrize("value", [True, 2, -1, "second", b"all", [], float("nan")])
def test_unusable_arguments_are_refused(value):
    with pytest.raises(OptionError, match="unusable option 'verify'"):
        ResourceOptions(verify=value)
    if isinstance(value, int | float):
        with pytest.raises(OptionError, match="unusable option 'verify'"):
            ResourceOptions.from_environment({"XARRAY_GPUZARR_VERIFY": str(value)})
