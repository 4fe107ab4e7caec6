"""The real implementation of the device interface, with fakes of CuPy and RMM; a GPU is needed for the rest."""

import gc
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.simulated import fake_cuda
from helpers.simulated.fake_cuda import (
    CompileException,
    CudaAsyncMemoryResource,
    CudaMemoryResource,
    CUDARuntimeError,
    FakeCuda,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    TrackingResourceAdaptor,
)

from xarray_gpuzarr import configure
from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.find_gpu import native_device
from xarray_gpuzarr.errors import CudaError, DeviceMemoryError, DeviceUnavailableError, OptionError
from xarray_gpuzarr.process import advice
from xarray_gpuzarr.process.device_options import ResourceOptions, in_force

KERNEL = Kernel(file="double.cu", name="double_it")
OUT_OF_MEMORY = "std::bad_alloc: out_of_memory: CUDA error (failed to allocate 100 bytes) at: a.cpp:26: "
POOL_IS_FULL = "std::bad_alloc: out_of_memory: Maximum pool size exceeded (failed to allocate 100 bytes)"


def make(native, memory="auto"):
    device = native.NativeDevice(0, ResourceOptions(memory=memory))
    return device, device.stream()


@pytest.fixture
def device(native):
    return make(native)[0]


@pytest.fixture
def stream(device):
    return device.stream()


@pytest.mark.parametrize(("driver", "shown"), [("580.65.06", "580.65.06"), (None, "of CUDA 13.2")])
def test_a_device_says_what_it_is(fake, native, monkeypatch, driver, shown):
    monkeypatch.setattr(native, "driver_version", lambda: driver)
    monkeypatch.setattr(native.NativeDevice, "nvcomp", SimpleNamespace(version="6.0.0"))
    monkeypatch.setitem(fake_cuda.PROPERTIES, "uuid", bytes(range(16)) + b"what lies behind it")
    device, _ = make(native)
    identity = device.identity
    assert (identity.name, identity.uuid) == ("NVIDIA H200", "000102030405060708090a0b0c0d0e0f at 0000:01:00.0")
    assert (identity.compute_capability, identity.driver) == ("9.0", shown)
    assert dict(identity.versions) == {"CuPy": "14.2.0", "RMM": "26.10.0", "nvCOMP": "6.0.0", "CUDA": "13.0"}


def is_private(resource):
    """Return "private" if a resource is a pool that only reads use."""
    return "private" if type(resource).__name__ == "PrivatePool" else ""


PLAIN, USERS = CudaMemoryResource(), PoolMemoryResource("plain")


@pytest.mark.parametrize("memory", ["auto", "async", "current"])
@pytest.mark.parametrize(("current", "allocator"), [(PLAIN, "CuPy's own"), (USERS, "RMM's for CuPy")])
def test_sharing_lets_cupy_use_the_users_pool_and_sets_no_other(fake, native, memory, current, allocator):
    fake.current_resource = current
    device, _ = make(native, memory)

    undo = device.share_pool()

    assert (fake.current_resource, fake.allocator) == (current, allocator)
    undo()
    assert (fake.current_resource, fake.allocator) == (current, "CuPy's own")
    assert not fake.called("set_per_device_resource")


def test_sharing_takes_nothing_back_that_the_user_has_changed_since(fake, device):
    fake.current_resource = USERS
    undo = device.share_pool()
    fake.allocator = "the user's"

    undo()

    assert fake.allocator == "the user's"


def test_sharing_is_taken_back_once(fake, device):
    fake.current_resource = USERS
    undo = device.share_pool()
    undo()
    again = device.share_pool()

    undo()

    assert fake.allocator == "RMM's for CuPy"
    again()
    assert fake.allocator == "CuPy's own"


def test_a_device_without_cupy_is_refused(monkeypatch):
    monkeypatch.delitem(sys.modules, "xarray_gpuzarr.cuda.device", raising=False)
    monkeypatch.delattr("xarray_gpuzarr.cuda.device", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)

    with pytest.raises(DeviceUnavailableError, match=r"CuPy or RMM cannot be imported\n[^/]*cupy"):
        native_device()


@pytest.mark.parametrize("is_initialized", [True, False])
def test_trimming_gives_back_what_cupy_keeps_and_pytorch_if_it_is_in_use(fake, device, monkeypatch, is_initialized):
    emptied = []
    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_initialized=lambda: is_initialized, empty_cache=lambda: emptied.append(1))
    )
    monkeypatch.setitem(sys.modules, "torch", torch)

    device.trim()

    assert [name for name, *_ in fake.calls][-2:] == ["deviceSynchronize", "free_all_blocks"]
    assert len(emptied) == is_initialized


# --- where memory comes from -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "current", "has_async", "expected"),
    [
        ("auto", CudaMemoryResource(), True, "private"),
        ("auto", CudaMemoryResource(), False, PoolMemoryResource),
        ("auto", PoolMemoryResource("plain"), True, "current"),
        ("auto", CudaAsyncMemoryResource(), False, "current"),
        ("auto", StatisticsResourceAdaptor(CudaMemoryResource()), True, "current"),
        ("current", CudaMemoryResource(), True, "current"),
        ("current", PoolMemoryResource("plain"), True, "current"),
        ("async", PoolMemoryResource("plain"), False, "private"),
        ("pool", CudaAsyncMemoryResource(), True, PoolMemoryResource),
    ],
)
def test_memory_comes_from_the_resource_that_was_asked_for(fake, native, memory, current, has_async, expected):
    fake.current_resource, fake.has_async = current, has_async
    device, stream = make(native, memory)

    device.allocate(100, stream)

    ((nbytes, on, resource),) = fake.called("allocate")
    assert (nbytes, on) == (100, stream.for_rmm)
    if expected == "current":
        assert resource is current
    elif expected == "private":
        assert is_private(resource)
    else:
        assert (type(resource), type(resource.upstream_mr)) == (PoolMemoryResource, CudaMemoryResource)
        assert resource.options == {"initial_pool_size": 0}


def test_one_private_resource_serves_all_threads(fake, native):
    device, stream = make(native, "async")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: device.allocate(100, stream), range(64)))

    assert len({id(resource) for _, _, resource in fake.called("allocate")}) == 1


def test_a_resource_that_the_caller_sets_later_is_used_from_then_on(fake, device, stream):
    device.allocate(100, stream)

    fake.current_resource = PoolMemoryResource("plain")
    device.allocate(100, stream)

    first, second = (resource for _, _, resource in fake.called("allocate"))
    assert is_private(first)
    assert second is fake.current_resource


@pytest.mark.parametrize("adaptor", [TrackingResourceAdaptor, StatisticsResourceAdaptor])
def test_an_adaptor_without_a_pool_below_it_is_used_and_spoken_of(fake, device, stream, adaptor, recwarn, monkeypatch):
    monkeypatch.setattr(advice, "warned", set())
    fake.current_resource = adaptor(StatisticsResourceAdaptor(CudaMemoryResource()))

    for _ in range(2):
        device.allocate(100, stream)

    assert [resource for *_, resource in fake.called("allocate")] == 2 * [fake.current_resource]
    (warning,) = recwarn
    words = ("has no pool", adaptor.__name__, "rmm_async=True", "memory='async'")
    assert [word for word in words if word not in str(warning.message)] == []
    device.share_pool()
    assert fake.allocator == "CuPy's own"  # whose pool is quicker


@pytest.mark.parametrize("pool", [PoolMemoryResource(CudaMemoryResource()), CudaAsyncMemoryResource()])
def test_an_adaptor_over_a_pool_is_a_pool(fake, device, stream, pool, recwarn):
    fake.current_resource = TrackingResourceAdaptor(pool)

    device.allocate(100, stream)
    device.share_pool()

    assert list(recwarn) == []
    assert fake.allocator == "RMM's for CuPy"


# --- the pool of reads -----------------------------------------------------------------------------------------------


def attributes(fake):
    """Return whether a stream may be made to wait, and the bytes that the only pool keeps."""
    (pool,) = fake.pools.values()
    return pool["ReuseAllowInternalDependencies"], pool["AttrReleaseThreshold"].value


def test_the_pool_of_reads_is_one_of_its_device(fake, native):
    device = native.NativeDevice(3, ResourceOptions())

    device.allocate(100, device.stream())

    assert [pool["device"] for pool in fake.pools.values()] == [3]


def test_no_stream_waits_for_whoever_freed_its_memory(fake, device, stream):
    device.allocate(100, stream)

    assert attributes(fake)[0] == 0


def test_a_stream_waits_for_whoever_freed_its_memory_where_there_is_no_other(fake, device, stream, monkeypatch):
    take, waits = fake.take, []

    def take_if_it_may_wait(nbytes):
        waits.append(attributes(fake)[0])
        if not waits[-1]:
            raise MemoryError(POOL_IS_FULL)
        return take(nbytes)

    monkeypatch.setattr(fake, "take", take_if_it_may_wait)
    kept = device.allocate(100, stream)

    assert (kept.nbytes, waits, attributes(fake)[0]) == (100, [0, 1], 0)


def test_live_results_do_not_count_as_what_the_pool_keeps(fake, device, stream):
    first = device.allocate(700, stream)
    assert attributes(fake)[1] == 700 + 1000 // 4
    second = device.allocate(100, stream)
    assert attributes(fake)[1] == 800 + 1000 // 4
    del first, second
    assert attributes(fake)[1] == 1000 // 4  # which leaves memory to others


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [("POOL_WAITS", "1", (1, 350)), ("POOL_WAITS", "0", (0, 350)), ("POOL_KEPT_NBYTES", "2 KiB", (0, 2048))],
)
def test_settings_of_the_pool_can_be_turned_back(fake, device, monkeypatch, variable, value, expected):
    monkeypatch.setenv(f"XARRAY_GPUZARR_{variable}", value)

    kept = device.allocate(100, device.stream())

    assert (kept.nbytes, *attributes(fake)) == (100, *expected)


def test_the_pool_goes_with_the_last_memory_of_it(fake, native):
    device, stream = make(native)
    kept = device.allocate(100, stream)
    del device
    fake.calls.clear()  # which know the pool, too
    gc.collect()
    assert len(fake.pools) == 1

    del kept
    fake.calls.clear()
    gc.collect()

    assert fake.pools == {}


def test_the_pool_of_a_forgotten_device_goes_though_others_hold_the_device(fake, native):
    device = native.native_device(0)
    stream = device.stream()
    kept = device.allocate(100, stream)
    device.allocate(100, stream).free()

    native.forget_devices()
    fake.calls.clear()  # which know the pool, too
    gc.collect()
    assert len(fake.pools) == 1  # of memory that is in use
    kept.free()
    del kept
    fake.calls.clear()
    gc.collect()
    assert fake.pools == {}

    again = device.allocate(100, stream)  # by a read that was under way
    assert (again.nbytes, len(fake.pools)) == (100, 1)
    assert native.native_device(0) is not device


@pytest.mark.parametrize("call", ["cudaMemPoolCreate", "cudaMemPoolSetAttribute", "cudaMemPoolGetAttribute"])
def test_a_pool_that_cannot_be_made_is_a_cuda_error(fake, device, stream, call):
    fake.failures[call] = RuntimeError("cudaErrorNotSupported")

    with pytest.raises(CudaError, match=f"cudaErrorNotSupported, by {call}"):
        device.allocate(100, stream)


def test_memory_goes_back_when_it_is_freed_and_when_it_is_dropped(fake, device, stream):
    freed, dropped = device.allocate(100, stream), device.allocate(50, stream)
    assert (freed.address, freed.nbytes) == (4096, 100)
    assert fake.taken() == [100, 50]

    freed.free()
    assert fake.taken() == [50]

    del freed, dropped
    assert fake.taken() == []
    assert [on for _, on, _ in fake.called("deallocate")] == [stream.for_rmm] * 2


def test_memory_goes_back_behind_its_consumer(fake, device, stream):
    consumer = device.consumer_stream()
    memory = device.allocate(100, stream)

    memory.free_behind(consumer)
    del memory

    ((nbytes, on, _),) = fake.called("deallocate")
    assert (nbytes, on) == (100, consumer.for_rmm)


@pytest.mark.parametrize("how", ["free", "free_behind", "drop"])
def test_a_forked_process_gives_nothing_back(fake, device, stream, monkeypatch, how):
    memory, consumer = device.allocate(100, stream), device.consumer_stream()
    monkeypatch.setattr("os.getpid", lambda: 0)

    if how == "free":
        memory.free()
    elif how == "free_behind":
        memory.free_behind(consumer)
    del memory

    assert fake.taken() == [100]


def test_an_array_owns_memory_of_its_stream(fake, device, stream):
    array = device.empty((2, 3), np.dtype("f4"), stream)

    assert fake.taken() == [24]
    assert (array.shape, array.dtype, device.address(array)) == ((2, 3), np.dtype("f4"), 4096)
    assert (array.data.mem.nbytes, array.data.mem.index, array.data.mem.owner.nbytes) == (24, 0, 24)
    assert fake.called("allocate")[0][1] is stream.for_rmm
    del array
    assert fake.taken() == []


def test_an_array_in_memory_keeps_its_owner(fake, device, stream):
    owner, memory = object(), device.allocate(100, stream)

    array = device.array_in(memory, (2, 3), np.dtype("f4"), owner)

    assert device.address(array) == memory.address
    assert array.data.mem.owner is owner


def test_pinned_memory_is_as_long_as_asked_and_outlives_its_owner(fake, device):
    array = device.allocate_pinned(1000).array

    array[:] = 7
    assert (array.dtype, array.shape, int(array.sum())) == (np.uint8, (1000,), 7000)
    assert fake.called("PinnedMemory") == [[1000]]


def test_the_per_thread_default_stream_is_refused(fake, device):
    fake.current_stream = 2

    with pytest.raises(DeviceUnavailableError, match="per-thread default stream") as caught:
        device.consumer_stream()

    assert "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM" in caught.value.do


def test_a_stream_becomes_cupys_current_one(fake, device, stream):
    before = device.current_stream().handle
    device.use_stream(stream)

    assert (before, device.current_stream().handle) == (0, stream.handle)


def test_a_stream_of_another_library_is_known_by_its_handle(fake, device):
    stream = device.external_stream(0x1230)

    assert stream.handle == 0x1230
    assert stream.for_rmm.obj is stream.for_cupy


def test_threads_sleep_while_they_wait_for_events(fake, device):
    device.event()

    assert fake.called("Event") == [[True, True]]  # block, disable_timing


# --- failures --------------------------------------------------------------------------------------------------------


def enter(device, _stream):
    with device.activate():
        pass


CALLS = {
    "getDevice": enter,
    "setDevice": enter,
    "memGetInfo": lambda d, s: d.memory_nbytes(),
    "Stream": lambda d, s: d.stream(),
    "get_current_stream": lambda d, s: d.consumer_stream(),
    "use": lambda d, s: d.use_stream(s),
    "Event": lambda d, s: d.event(),
    "record": lambda d, s: d.record(d.event(), s),
    "wait_event": lambda d, s: d.wait(s, d.event()),
    "synchronize": lambda d, s: d.synchronize(s),
    "allocate": lambda d, s: d.allocate(100, s),
    "PinnedMemory": lambda d, s: d.allocate_pinned(100),
    "memcpyAsync": lambda d, s: d.upload(4096, np.zeros(3, np.uint8), s),
    "RawModule": lambda d, s: d.launch(KERNEL, 1, 32, (1,), s),
    "launch double_it": lambda d, s: d.launch(KERNEL, 1, 32, (1,), s),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_fails_in_cuda_is_a_cuda_error_with_its_words(fake, device, stream, name):
    fake.failures[name] = CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")

    with pytest.raises(CudaError, match="cudaErrorIllegalAddress: an illegal memory access") as caught:
        CALLS[name](device, stream)

    assert "this process can no longer use the GPU" in caught.value.found
    assert "restart" in caught.value.do
    assert caught.value.__cause__ is fake.failures[name]


@pytest.mark.parametrize(
    "words", ["cudaErrorMemoryAllocation: out of memory", "CUDA_ERROR_OUT_OF_MEMORY: out of memory"]
)
@pytest.mark.parametrize("name", CALLS)
def test_any_call_may_lack_memory(fake, device, stream, name, words):
    fake.failures[name] = MemoryError(words) if name == "allocate" else CUDARuntimeError(words)

    with pytest.raises(DeviceMemoryError, match="out of memory") as caught:
        CALLS[name](device, stream)

    assert caught.value.__cause__ is fake.failures[name]


def test_the_array_library_may_lack_memory(fake, device):
    fake.failures["asarray"] = MemoryError("Out of memory allocating 24 bytes (allocated so far: 0 bytes).")

    with pytest.raises(DeviceMemoryError, match="allocating 24 bytes"):
        device.array(np.arange(3))


@pytest.mark.parametrize(
    ("version", "do"),
    [
        (12040, "the driver has CUDA 12.4: pip install 'xarray-gpuzarr[cuda12]' instead of"),
        (11080, "the driver has CUDA 11.8, older than the installed packages need: update the driver"),
        (13000, "the driver has CUDA 13.0, older than the installed packages need: update the driver"),
        (None, "there is no NVIDIA driver here, or it cannot be loaded: install one"),
    ],
)
def test_a_driver_that_is_too_old_says_what_fits(fake, native, monkeypatch, version, do):
    monkeypatch.setattr(sys.modules[native.cuda_error.__module__], "cuda_version", lambda: version)
    fake.failures["getDevice"] = CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    with pytest.raises(CudaError, match="no usable GPU") as caught:
        native.native_device()

    assert caught.value.do.startswith(do)


@pytest.mark.parametrize(
    ("words", "state", "do"),
    [
        ("cudaErrorSystemNotReady: system not yet initialized", "no usable GPU", "nvidia-fabricmanager"),
        ("cudaErrorSystemDriverMismatch: driver mismatch", "no usable GPU", "restart the machine"),
        ("cudaErrorCompatNotSupportedOnDevice: forward compatibility", "no usable GPU", "cuda-compat"),
        ("cudaErrorDevicesUnavailable: all devices are busy", "no usable GPU", "nvidia-smi"),
        ("cudaErrorMisalignedAddress: misaligned address", "can no longer use the GPU", "restart this process"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access", "can no longer use the GPU", "restart this process"),
        ("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", "can no longer use the GPU", "restart this process"),
        ("cudaErrorLaunchFailure: unspecified launch failure", "can no longer use the GPU", "restart this process"),
        ("RMM failure at a.cpp:3: cudaErrorAssert device-side assert", "can no longer use the GPU", "restart this"),
        ("cudaErrorInitializationError: initialization error", "no usable GPU", '"spawn" rather than fork'),
        ("cudaErrorInsufficientDriver: driver is insufficient", "no usable GPU", "no NVIDIA driver"),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "no usable GPU", "nvidia-smi"),
        ("CUDA_ERROR_INVALID_VALUE: invalid argument", "the process can go on", "read again"),
        ("cudaErrorAssertion: no such name", "the process can go on", "read again"),
        ("something that CUDA does not say", "the process can go on", "read again"),
    ],
)
def test_a_failure_says_whether_the_process_can_go_on(fake, device, stream, words, state, do):
    fake.failures["synchronize"] = RuntimeError(words)

    with pytest.raises(CudaError) as caught:
        device.synchronize(stream)

    assert caught.value.tried == "cudaStreamSynchronize"
    assert caught.value.found.startswith(words)
    assert state in caught.value.found
    assert do in caught.value.do


def test_a_kernel_that_does_not_compile_shows_the_compilers_words(fake, device, stream):
    fake.failures["RawModule"] = CompileException("double.cu(3): error: expected a ';'")

    with pytest.raises(CudaError) as caught:
        device.launch(KERNEL, 1, 32, (1,), stream)

    assert caught.value.tried == "compiling double_it of double.cu"
    assert "double.cu(3): error: expected a ';'" in caught.value.found


@pytest.mark.parametrize("words", [OUT_OF_MEMORY + "cudaErrorMemoryAllocation out of memory", POOL_IS_FULL])
@pytest.mark.parametrize("ask", ["allocate", "empty"])
def test_want_of_device_memory_says_how_much_and_what_to_set(fake, device, stream, words, ask):
    fake.failures["allocate"] = MemoryError(words)

    with pytest.raises(DeviceMemoryError) as caught:
        device.allocate(100, stream) if ask == "allocate" else device.empty((25,), np.dtype("f4"), stream)

    assert caught.value.tried == "100 bytes on device 0 from the pool of reads"
    assert caught.value.found == f"300 bytes free of 1000; {words}"
    assert "XARRAY_GPUZARR_BATCH_NBYTES" in caught.value.do


def test_an_allocation_that_fails_on_a_broken_device_is_no_want_of_memory(fake, device, stream):
    fake.failures["allocate"] = MemoryError(OUT_OF_MEMORY + "cudaErrorIllegalAddress an illegal memory access")

    with pytest.raises(CudaError, match="this process can no longer use the GPU") as caught:
        device.allocate(100, stream)

    assert caught.value.tried == "100 bytes on device 0 from the pool of reads"


def test_want_of_pinned_memory_says_how_much_and_what_to_set(fake, device):
    fake.failures["PinnedMemory"] = CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

    with pytest.raises(DeviceMemoryError) as caught:
        device.allocate_pinned(1000)

    assert caught.value.tried == "cudaHostAlloc of 1000 bytes"
    assert "XARRAY_GPUZARR_SLOT_NBYTES" in caught.value.do


# --- kernels, copies, the rest ---------------------------------------------------------------------------------------


def test_a_kernel_is_compiled_once_however_many_threads_launch_it(fake, device, stream):
    kernels = [Kernel(file="double.cu", name="double_it", defines=(("T", t),)) for t in ("i2", "i4")]

    device.build(kernels[:1] * 2)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: device.launch(kernels[i % 2], 1, 32, (1,), stream), range(64)))

    sources = [source for source, _, _ in fake.called("RawModule")]
    assert sorted(sources) == sorted(f"source of {k}" for k in kernels)
    assert len(fake.called("launch double_it")) == 64


def test_a_kernel_that_failed_to_compile_is_tried_again(fake, device, stream):
    fake.failures["RawModule"] = CompileException("no space left for the cache")
    with pytest.raises(CudaError):
        device.launch(KERNEL, 1, 32, (1,), stream)

    fake.failures.clear()
    device.launch(KERNEL, 1, 32, (1,), stream)

    assert len(fake.called("launch double_it")) == 1


def test_kernel_arguments_are_unsigned_64_bit_words(fake, device, stream):
    device.launch(KERNEL, 5, 32, (2**64 - 1, 0, 3), stream)

    ((grid, block, args, on),) = fake.called("launch double_it")
    assert (grid, block, on) == ((5,), (32,), stream.for_cupy)
    assert [(type(a), int(a)) for a in args] == [(np.uint64, 2**64 - 1), (np.uint64, 0), (np.uint64, 3)]


def test_copies_go_the_right_way_on_the_given_stream(fake, device, stream):
    data = np.zeros(30, np.uint8)

    device.upload(4096, data[10:], stream)
    device.download(data[:5], 8192, stream)

    start = data.ctypes.data
    assert fake.called("memcpyAsync") == [[4096, start + 10, 20, 1, 7], [start, 8192, 5, 2, 7]]


def test_nothing_of_the_process_is_set(fake, device, stream):
    with device.activate():
        device.record(device.event(), device.consumer_stream())
        device.allocate(100, stream).free()
        device.empty((3,), np.dtype("f4"), stream)
        device.allocate_pinned(10)
        device.launch(KERNEL, 1, 32, (1,), stream)

    called = {name for name, *_ in fake.calls}
    assert "allocate" in called
    assert not {name for name in called if name.startswith("set_")} | called & {"reinitialize"}


def test_there_is_one_device_of_a_number(fake, native):
    fake.contexts.set_device(1)

    assert native.native_device() is native.native_device(1)
    assert native.native_device(0) is not native.native_device(1)
    assert native.native_device().index == 1


def test_another_choice_of_memory_holds_from_the_next_read(fake, native):
    before = native.native_device(0)

    configure(memory="pool")
    after = native.native_device(0)

    assert (before.memory.choice, after.memory.choice) == ("auto", "pool")
    assert native.native_device(0) is after


def test_other_options_leave_the_device_and_its_kernels_alone(native):
    before = native.native_device(0)

    configure(n_slots=7)

    assert native.native_device(0) is before


def test_a_device_that_is_not_there_is_refused_at_once(fake, native):
    fake.failures["setDevice"] = CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    with pytest.raises(CudaError, match="no usable GPU"):
        native.native_device(7)


def test_an_unusable_option_stays_an_option_error(native, monkeypatch):
    monkeypatch.setattr(in_force, "options", None)
    monkeypatch.setenv("XARRAY_GPUZARR_MEMORY", "managed")

    with pytest.raises(OptionError, match="managed"):
        native.native_device(0)


def test_ranges_are_named_in_a_domain_of_their_own(native, device, monkeypatch):
    seen = []
    annotate = lambda name, domain: seen.append((name, domain)) or nullcontext()  # noqa: E731
    monkeypatch.setattr(native, "nvtx", SimpleNamespace(annotate=annotate))

    with device.range("read::fetch"):
        pass

    assert seen == [("read::fetch", "xarray_gpuzarr")]


def test_nvcomp_is_looked_for_once(native, monkeypatch):
    found = []
    monkeypatch.setattr(native, "load_nvcomp", lambda: found.append("library") or "functions")
    monkeypatch.setattr(native, "Nvcomp", lambda functions: SimpleNamespace(functions=functions))
    device, _ = make(native)

    assert device.nvcomp is device.nvcomp
    assert (device.nvcomp.functions, found) == ("functions", ["library"])


# --- the real modules, no GPU needed ---------------------------------------------------------------------------------


def members(of, path=""):
    """Return the dotted names of what a fake module holds."""
    for name, value in vars(of).items():
        if not name.startswith("__"):
            yield path + name
            if isinstance(value, (fake_cuda.ModuleType, SimpleNamespace)):
                yield from members(value, f"{path}{name}.")


@pytest.mark.parametrize("name", ["cupy", "rmm", "cuda.bindings"])
def test_the_fakes_hold_nothing_that_the_real_modules_lack(name):
    real = pytest.importorskip(name, reason=f"{name} is not installed")
    for room in {"cupy": ["cupy.cuda.compiler"], "rmm": ["rmm.pylibrmm.stream", "rmm.allocators.cupy"]}.get(
        name, ["cuda.bindings.runtime", "cuda.bindings.driver"]
    ):
        importlib.import_module(room)

    def has(path):
        at = real
        for part in path.split("."):
            at = getattr(at, part, None)
        return at is not None

    assert [path for path in members(FakeCuda().modules()[name]) if not has(path)] == []
