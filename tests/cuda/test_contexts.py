"""Which GPU's context is made by whom: a process that reads to GPU 1 must not start GPU 0, some 500 MiB of it.

`NativeDevice` runs on the fakes of CuPy and RMM; whole reads run on the simulated device, whose threads change devices
by `NativeDevice.activate`.
"""

import gc
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from helpers.simulated.contexts import Contexts
from helpers.simulated.fake_cuda import CUDARuntimeError
from helpers.simulated.planted_faults import FaultyDevice
from helpers.simulated.reads import SCENES, CudaReads, limits, scene
from helpers.simulated.simulator import SimulatedDevice

from xarray_gpuzarr.cuda.api import Kernel
from xarray_gpuzarr.decoders.cuda.checks import check_all
from xarray_gpuzarr.errors import CudaError
from xarray_gpuzarr.process.device_options import ResourceOptions


@pytest.fixture
def device(fake, native):
    return native.NativeDevice(1, ResourceOptions())


def on_thread(work, name="another"):
    """Return what `work` does on a thread that has used no GPU; what is local to that is gone then."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), name=name)
    thread.start()
    thread.join()
    gc.collect()
    return found[0] if found else None


def devices(fake):
    return {made.device for made in fake.contexts.made}


# --- CuPy and RMM ----------------------------------------------------------------------------------------------------


def everything(device):
    """Do what a read does; return memory of the device, and what its thread keeps."""
    with device.activate():
        stream, event = device.stream(), device.event()
        pinned = device.allocate_pinned(100)
        device.record(event, stream)
        device.launch(Kernel(file="double.cu", name="double_it"), 1, 32, (1,), stream)
        device.upload(4096, pinned.array, stream)
        device.synchronize(stream)
        return device.allocate(100, stream), device.empty((3,), np.dtype("f4"), stream), stream


def test_threads_that_read_to_device_1_start_no_other(fake, native, device):
    kept = threading.local()

    def read():
        kept.workspace = everything(native.native_device(1))  # which the end of the thread destroys

    on_thread(read)

    assert devices(fake) == {1}, fake.contexts.made
    assert fake.taken() == []


@pytest.mark.parametrize("how", ["free", "free_behind", "drop"])
def test_memory_that_any_thread_gives_back_starts_no_other_device(fake, device, how):
    held = [on_thread(lambda: everything(device))]

    def give_back():
        memory, array, stream = held.pop()
        if how == "free":
            memory.free()
        elif how == "free_behind":
            memory.free_behind(stream)
        del memory, array
        return stream, fake.contexts.device, fake.contexts.context

    _, here, context = on_thread(give_back)

    assert fake.taken() == []
    assert (here, context) == (0, 0)
    assert devices(fake) == {1}, fake.contexts.made


def test_a_stream_that_dies_with_the_last_array_starts_no_other_device(fake, device):
    held = [on_thread(lambda: everything(device))[1:]]
    array, stream = held.pop()
    weak = weakref.ref(stream.for_cupy)
    held.append(array)
    del array, stream
    fake.calls = deque(maxlen=0)  # they would know the stream

    assert weak() is not None
    on_thread(held.clear)

    assert weak() is None
    assert devices(fake) == {1}, fake.contexts.made


def test_who_has_registered_a_stream_hears_of_its_end_before_it_ends(fake, device):
    with device.activate():
        stream, heard = device.stream(), []
    weakref.finalize(stream, heard.append, "forgotten")
    weakref.finalize(stream.for_cupy, heard.append, "destroyed")

    del stream

    assert heard == ["forgotten", "destroyed"]


def test_memory_goes_back_in_its_own_context_on_a_thread_of_another_device(fake, device):
    memory, _, stream = on_thread(lambda: everything(device))
    fake.contexts.set_device(0)
    before, seen = fake.contexts.context, []
    resource = type(fake.called("allocate")[0][2])

    with patch.object(resource, "deallocate", lambda *_: seen.append(fake.contexts.device)):
        memory.free_behind(stream)

    assert seen == [1]
    assert (fake.contexts.device, fake.contexts.context) == (0, before)


def test_a_thread_that_has_used_no_device_keeps_the_one_it_has_used_now(fake, device):
    def read():
        with device.activate():
            pass
        return fake.contexts.device

    assert on_thread(read) == 1
    assert devices(fake) == {1}, fake.contexts.made


def test_a_thread_that_stays_in_its_context_is_not_sent_there_again(fake, native, device):
    fake.contexts.set_device(1)

    with device.activate():
        pass

    assert not fake.called("ctxSetCurrent")


def test_a_thread_gets_a_context_back_that_the_runtime_has_not_made(fake, native, device):
    fake.contexts.set_context(fake.contexts.made_by_the_driver(1))
    before = fake.contexts.context

    with device.activate():
        inside = fake.contexts.context

    assert fake.contexts.context == before != inside
    assert fake.contexts.device == 1


LOST = CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")


def test_a_device_that_is_lost_meanwhile_is_an_error_in_our_words(fake, native, device):
    fake.contexts.set_device(0)

    with pytest.raises(CudaError, match="no longer use the GPU"), device.activate():
        fake.failures["ctxSetCurrent"] = LOST


def test_what_a_lost_device_has_raised_is_not_hidden(fake, native, device):
    fake.contexts.set_device(0)

    def fail():
        with device.activate():
            fake.failures["ctxSetCurrent"] = LOST
            raise KeyError("the cause")

    with pytest.raises(KeyError, match="the cause"):
        fail()


# --- reads -----------------------------------------------------------------------------------------------------------


class OnContexts:
    """A simulated device 1 whose calls, and the destructors of what it gives, need contexts."""

    contexts: Contexts

    def place_on(self, fake, native):
        self.contexts = fake.contexts
        self.native = native
        call = self._border.call

        def needing(name, *used):
            fake.contexts.need(name)
            return call(name, *used)

        self._border.call = needing
        return self

    @contextmanager
    def activate(self):
        with self.native.NativeDevice(self.index, ResourceOptions()).activate(), super().activate():
            yield

    def stream(self):
        return self.contexts.dying(super().stream(), "cudaStreamDestroy")

    def event(self):
        return self.contexts.dying(super().event(), "cudaEventDestroy")

    def allocate_pinned(self, nbytes):
        return self.contexts.dying(super().allocate_pinned(nbytes), "cudaFreeHost")


class Second(OnContexts, SimulatedDevice):
    """The second GPU of a machine."""


class SecondChecked(OnContexts, FaultyDevice):
    """Likewise, one that is checked before it is used."""


@pytest.mark.parametrize("name", SCENES)
def test_reads_to_device_1_start_no_other(fake, native, name):
    reads = CudaReads(Second(2, index=1).place_on(fake, native))

    def read():
        with limits():
            found = reads.read(scene(name).array)
        with reads.device.activate():
            return found.get()

    found = on_thread(read, "reads")
    reads.decoder.close()
    gc.collect()

    np.testing.assert_array_equal(found, scene(name).expected)
    assert [(made.device, made.thread, made.call) for made in fake.contexts.made] == [(1, "reads", "cudaSetDevice")]


def test_self_checks_of_device_1_start_no_other(fake, native):
    device = SecondChecked(None, index=1).place_on(fake, native)

    answers = on_thread(lambda: list(check_all(device)))

    assert all(answer.passed for answer in answers)
    assert [(made.device, made.thread) for made in fake.contexts.made] == [(1, "self-check")]
