"""What only a GPU can show of the wall's real implementation: order, memory, copies, kernels, arithmetic."""

import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from xarray_gpuzarr.cuda.address import Address
from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.cuda.launch import all_kernels
from xarray_gpuzarr.errors import DeviceMemoryError
from xarray_gpuzarr.process.device_options import ResourceOptions

pytestmark = pytest.mark.gpu

SLOW = Kernel(file="slow.cu", name="write_late")
SLOW_SOURCE = """
extern "C" __global__ void write_late(unsigned long long to, unsigned long long value, unsigned long long n_cycles) {
    const long long start = clock64();
    while (clock64() - start < (long long)n_cycles) {}
    *(unsigned long long *)to = value;
}
"""
N_CYCLES = 200_000_000  # a tenth of a second at 2 GHz


@pytest.fixture
def write_late(device, monkeypatch):
    """Write a number to device memory, a tenth of a second after the stream gets there."""
    monkeypatch.setattr("xarray_gpuzarr.cuda.compiled_kernels.kernel_source", lambda _kernel: SLOW_SOURCE)
    compile_slow(device)
    return lambda address, value, stream: device.launch(SLOW, 1, 1, (address, value, N_CYCLES), stream)


def compile_slow(device):
    """Compile, so that the first launch takes no longer than the others."""
    stream = device.stream()
    cell = device.allocate(8, stream)
    device.launch(SLOW, 1, 1, (cell.address, 0, 0), stream)
    device.synchronize(stream)


def put(device, stream, data):
    """Return device memory that holds the bytes of an array, once `stream` has come that far."""
    staged = device.allocate_pinned(data.nbytes)
    staged.array[:] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    memory = device.allocate(data.nbytes, stream)
    device.upload(memory.address, staged.array, stream)
    device.synchronize(stream)
    return memory


def get(device, stream, address, dtype, n):
    """Return the array at an address, as `stream` finds it."""
    staged = device.allocate_pinned(n * np.dtype(dtype).itemsize).array
    return fetch(device, stream, address, staged).view(dtype)


def fetch(device, stream, address, staged):
    """As `get`, into memory pinned before: pinning may wait for the device, and hide that nothing else does."""
    device.download(staged, address, stream)
    device.synchronize(stream)
    return staged.copy()


# --- memory and copies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["auto", "pool", "async", "current"])
@pytest.mark.parametrize("nbytes", [1, 255, 256, 257, 10_000_019])
def test_bytes_come_back_as_they_went(native, memory, nbytes):
    device = native.NativeDevice(0, ResourceOptions(memory=memory))
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    with device.activate():
        stream = device.stream()

        held = put(device, stream, data)

        assert (held.address % 256, held.nbytes) == (0, nbytes)
        np.testing.assert_array_equal(get(device, stream, held.address, np.uint8, nbytes), data)


def test_parts_are_copied_to_and_from_any_byte(device, stream):
    held = put(device, stream, np.arange(100, dtype=np.uint8))
    staged = device.allocate_pinned(64).array
    staged[:] = 255

    device.upload(Address(held.address + 3), staged[7:12], stream)
    device.download(staged[20:30], Address(held.address + 1), stream)
    device.synchronize(stream)

    assert staged[20:30].tolist() == [1, 2, 255, 255, 255, 255, 255, 8, 9, 10]
    assert set(staged[:20].tolist()) | set(staged[30:].tolist()) == {255}


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (5, 1, 7)])
@pytest.mark.parametrize("dtype", ["b1", "i2", "u8", "f2", "f4", "f8", "c16"])
def test_an_array_is_cupys_own(device, stream, shape, dtype):
    array = device.empty(shape, np.dtype(dtype), stream)

    assert (type(array).__module__.split(".")[0], array.shape, array.dtype) == ("cupy", shape, np.dtype(dtype))
    assert array.flags.c_contiguous
    assert array.size == 0 or device.address(array) % 256 == 0
    with stream.for_cupy:
        array[...] = 1
        assert array.get().tolist() == np.ones(shape, dtype).tolist()


def test_memory_of_an_array_lives_as_long_as_a_view_of_it(device, stream):
    view = device.empty((1000,), np.dtype("i4"), stream)[10:20]
    with stream.for_cupy:
        view[...] = 7

    others = [device.empty((1000,), np.dtype("i4"), stream) for _ in range(100)]
    for other in others:
        device.upload(device.address(other), device.allocate_pinned(4000).array, stream)

    with stream.for_cupy:
        assert view.get().tolist() == [7] * 10


def test_more_than_the_device_has_is_refused_and_the_next_request_is_not(device, stream):
    _, total = device.memory_nbytes()

    with pytest.raises(DeviceMemoryError, match=str(2 * total)):
        device.allocate(2 * total, stream)

    assert device.allocate(1000, stream).nbytes == 1000


def test_more_pinned_memory_than_any_host_has_is_refused(device):
    with pytest.raises(DeviceMemoryError, match="XARRAY_GPUZARR_SLOT_NBYTES"):
        device.allocate_pinned(2**50)


def test_the_callers_allocators_stay_in_force(device, stream):
    import cupy  # noqa: PLC0415  # only where there is a GPU
    import rmm  # noqa: PLC0415

    before = cupy.cuda.get_allocator(), rmm.mr.get_current_device_resource()

    device.empty((3,), np.dtype("f4"), stream)
    device.allocate_pinned(100)

    assert (cupy.cuda.get_allocator(), rmm.mr.get_current_device_resource()) == before


# --- order -----------------------------------------------------------------------------------------------------------


def test_later_work_waits_for_an_event_of_another_stream(device, stream, write_late):
    cell = put(device, stream, np.zeros(1, np.uint64))
    reader, event, staged = device.stream(), device.event(), device.allocate_pinned(1).array

    write_late(cell.address, 42, stream)
    device.record(event, stream)
    device.wait(reader, event)

    assert fetch(device, reader, cell.address, staged).tolist() == [42]


def test_a_stream_does_not_wait_for_the_legacy_default_stream(device, stream, write_late):
    cell = put(device, stream, np.zeros(1, np.uint64))
    consumer, staged = device.consumer_stream(), device.allocate_pinned(1).array

    write_late(cell.address, 42, consumer)

    assert consumer.handle == 0
    assert fetch(device, stream, cell.address, staged).tolist() == [0]
    device.synchronize(consumer)
    assert fetch(device, stream, cell.address, staged).tolist() == [42]


def test_an_event_that_was_never_recorded_holds_nobody_up(device, stream):
    event = device.event()

    device.wait(stream, event)
    device.synchronize_event(event)


def test_recording_an_event_again_moves_it(device, stream, write_late):
    cell, event = put(device, stream, np.zeros(1, np.uint64)), device.event()
    reader, staged = device.stream(), device.allocate_pinned(1).array
    device.record(event, stream)

    write_late(cell.address, 42, stream)
    device.record(event, stream)
    device.synchronize_event(event)

    assert fetch(device, reader, cell.address, staged).tolist() == [42]


@pytest.mark.parametrize("memory", ["pool", "async", "current"])
def test_memory_freed_while_its_stream_still_writes_to_it_harms_no_other(native, monkeypatch, memory):
    monkeypatch.setattr("xarray_gpuzarr.cuda.compiled_kernels.kernel_source", lambda _kernel: SLOW_SOURCE)
    device = native.NativeDevice(0, ResourceOptions(memory=memory))
    with device.activate():
        writer, other, staged = device.stream(), device.stream(), device.allocate_pinned(8).array
        staged[:] = 7
        compile_slow(device)

        freed = device.allocate(2**20, writer)
        device.launch(SLOW, 1, 1, (freed.address, 13, N_CYCLES), writer)
        freed.free()
        again = device.allocate(2**20, other)
        device.upload(again.address, staged, other)
        device.synchronize(writer)

        assert fetch(device, other, again.address, staged).tolist() == [7] * 8


def test_threads_with_streams_of_their_own_do_not_meet(device):
    def trip(seed):
        with device.activate():
            stream = device.stream()
            data = np.random.default_rng(seed).integers(0, 256, 1_000_000, np.uint8)
            held = put(device, stream, data)
            return np.array_equal(get(device, stream, held.address, np.uint8, data.size), data)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(trip, range(32)))


# --- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda k: "-".join([k.name, *(v for _, v in k.defines)]))
def test_every_kernel_compiles_for_this_device(device, kernel):
    device.build([kernel])


BREAK_THE_DEVICE = """
from xarray_gpuzarr.cuda import device as native
from xarray_gpuzarr.cuda.launch import move
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.errors import CudaError

device = native.NativeDevice(0, ResourceOptions())
with device.activate():
    stream = device.stream()
    move(device, stream, table=8, n=1, max_nbytes=8)
    for call in (lambda: device.synchronize(stream), lambda: device.allocate(100, stream)):
        try:
            call()
        except CudaError as error:
            print(error.found, flush=True)
"""


def test_after_an_illegal_access_every_call_says_that_the_process_is_lost():
    ran = subprocess.run([sys.executable, "-c", BREAK_THE_DEVICE], capture_output=True, text=True, check=False)

    lines = ran.stdout.splitlines()
    assert len(lines) == 2, ran.stderr
    assert all("this process can no longer use the GPU" in line for line in lines)


READ_TO_THE_SECOND = """
import ctypes, threading
from xarray_gpuzarr.cuda import device as native

def read():
    device = native.native_device(1)
    with device.activate():
        stream = device.stream()
        kept.append(device.allocate(100, stream))
        device.synchronize(stream)

def on_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

kept = []
on_thread(read)
on_thread(kept.clear)  # which has used no GPU
for number in range(2):
    flags, active = ctypes.c_uint(), ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(number, ctypes.byref(flags), ctypes.byref(active))
    print(active.value)
"""


def test_threads_that_read_to_the_second_gpu_start_no_other():
    if importlib.import_module("cupy").cuda.runtime.getDeviceCount() < 2:
        pytest.skip("one GPU")

    ran = subprocess.run([sys.executable, "-c", READ_TO_THE_SECOND], capture_output=True, text=True, check=False)

    assert ran.stdout.split() == ["0", "1"], ran.stderr
