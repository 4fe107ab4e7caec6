"""Small programs for a simulated device, and kernels in Python to run them with."""

import ctypes

import numpy as np

from helpers.simulated.simulator import SimulatedDevice
from xarray_gpuzarr.cuda.api import Kernel

N = 1000
"""Bytes that the programs move at a time."""
BYTE = np.dtype("u1")


class Log:
    """Runs the kernels of these programs; `seen` keeps what "note" is given, the others map bytes to bytes."""

    def __init__(self):
        self.seen = []

    def __call__(self, kernel, n_blocks, n_threads, args):
        if kernel.name == "note":
            self.seen.append(args[0])
        elif kernel.name == "fail":
            raise ZeroDivisionError("in a kernel")
        else:
            source, target, n = args
            memory_at(target, n)[:] = memory_at(source, n) + (kernel.name == "add_one")


def memory_at(address, n=N):
    return np.frombuffer((ctypes.c_uint8 * n).from_address(address), "u1")


def simulated(seed=0, **keywords):
    """Return a device of 1 MiB with these kernels."""
    return SimulatedDevice(seed, 1 << 20, run_kernel=keywords.pop("run_kernel", Log()), **keywords)


def launch(device, name, args, stream, n_blocks=1):
    device.launch(Kernel(file="none.cu", name=name), n_blocks, 32, args, stream)


def note(device, number, stream):
    launch(device, "note", [number], stream)


def recorded(device, stream):
    event = device.event()
    device.record(event, stream)
    return event


def order(device, after, before):
    """Let `after` wait for all that `before` has been given."""
    device.wait(after, recorded(device, before))


def pipeline(device, n_chunks=7):
    """Add one to chunks that pass through two slots, as segments of a shard do; return (result, expected)."""
    copies, compute, null = device.stream(), device.stream(), device.consumer_stream()
    chunks = np.arange(n_chunks * N, dtype="u4").astype("u1").reshape(n_chunks, N)
    slots = [(device.allocate_pinned(N), device.allocate(N, copies), device.event(), device.event()) for _ in range(2)]
    out = device.empty((n_chunks, N), BYTE, null)
    order(device, compute, null)
    for i, chunk in enumerate(chunks):
        pinned, staging, copied, used = slots[i % 2]
        device.synchronize_event(copied)
        pinned.array[:] = chunk
        device.wait(copies, used)
        device.upload(staging.address, pinned.array, copies)
        device.record(copied, copies)
        device.wait(compute, copied)
        scratch = device.allocate(N, compute)
        launch(device, "add_one", [staging.address, scratch.address, N], compute)
        launch(device, "copy", [scratch.address, device.address(out) + i * N, N], compute)
        device.record(used, compute)
        scratch.free()
    order(device, copies, compute)
    order(device, null, compute)
    for _, staging, copied, _ in slots:
        device.synchronize_event(copied)
        staging.free()
    return out, chunks + np.uint8(1)


# Waits 2 and 4, and synchronizations 1 and 2, are for events that were never recorded; synchronization 9 is for an
# earlier copy than 8.
NEEDED = [
    *("wait", "record", "synchronize_event"),
    *(f"wait:{n}" for n in range(1, 18) if n not in {2, 4}),
    *(f"synchronize_event:{n}" for n in range(3, 9)),
]
"""What `pipeline` cannot do without."""
