"""The simulated device turns every kind of mistake into a failing test."""

from functools import partial

import numpy as np
import pytest
from helpers.simulated.programs import BYTE, Log, N, launch, memory_at, note, simulated
from helpers.simulated.streams import MODES

from xarray_gpuzarr.cuda.nvcomp import Batch

LAZY = MODES.index("lazy")


def test_a_kernel_that_starts_before_what_it_is_told_of_has_crossed_is_a_fault():
    """Though something else lay there before, which it would take for addresses."""
    device = simulated(LAZY)
    s, t = device.stream(), device.stream()
    pinned, memory = device.allocate_pinned(N).array, device.allocate(N, s)
    pinned[:] = 7
    device.upload(memory.address, pinned, s)
    device.synchronize(s)
    device.upload(memory.address, pinned[:10], s)
    note(device, memory.address, t)

    with pytest.raises(AssertionError, match="runs before 'upload"):
        device.synchronize(t)


def write_after_free(device, stream, memory):
    memory.free()
    device.synchronize(stream)
    memory_at(memory.address)[5] = 1


def poisoned_batch(device, handle, memory):
    batch = Batch(**dict.fromkeys(Batch.__slots__, memory.address))
    device.nvcomp.decompress("lz4", batch, n_chunks=1, temp=0, temp_nbytes=0, stream=handle)


def batch_after_fault(device, stream, memory):
    launch(device, "fail", [], stream)
    with pytest.raises(AssertionError):
        device.synchronize(stream)
    poisoned_batch(device, stream.handle, memory)


# device, stream, 1000 bytes of device memory, 1000 of pinned memory
MISTAKES = {
    "upload out of bounds": (
        lambda d, s, m, p: d.upload(m.address + 1, p, s),
        "upload of 1000 bytes .* are out of bounds of 1000 bytes",
    ),
    "download out of bounds": (
        lambda d, s, m, p: d.download(p, m.address - 1, s),
        "download of 1000 bytes .* are out of bounds of 1000 bytes",
    ),
    "kernel argument out of bounds": (
        lambda d, s, m, p: note(d, m.address + N + 1, s),
        "kernel note: .* are out of bounds of 1000 bytes",
    ),
    "upload after free": (
        lambda d, s, m, p: [m.free(), d.upload(m.address, p, s)],
        "upload of 1000 bytes .* are freed or never allocated",
    ),
    "kernel argument after free": (
        lambda d, s, m, p: [m.free(), note(d, m.address, s)],
        "kernel note: .* are freed or never allocated",
    ),
    "write past the end": (
        lambda d, s, m, p: launch(d, "add_one", [m.address, m.address, N + 1], s),
        "the red zones of 1000 bytes .* was written: 1 bytes",
    ),
    "write past the end, found when it is freed": (
        lambda d, s, m, p: [launch(d, "add_one", [m.address, m.address, N + 1], s), m.free(), d.synchronize(s)],
        "free of 1000 bytes .*: the red zones of 1000 bytes .* was written: 1 bytes",
    ),
    "write after free": (
        lambda d, s, m, p: write_after_free(d, s, m),
        "memory that was free was written: 1 bytes",
    ),
    "write after free, found when it is used again": (
        lambda d, s, m, p: [write_after_free(d, s, m), d.allocate(N, s).free(), d.synchronize(s)],
        "allocation of 1000 bytes .*: memory that was free was written: 1 bytes",
    ),
    "free twice": (lambda d, s, m, p: [m.free(), m.free()], "are freed twice"),
    "host memory that is not pinned": (
        lambda d, s, m, p: d.upload(m.address, np.zeros(N, BYTE), s),
        "1000 bytes of host memory at .* are not pinned",
    ),
    "host memory pinned for another device": (
        lambda d, s, m, p: d.download(simulated().allocate_pinned(N).array, m.address, s),
        "are not pinned",
    ),
    "host memory with gaps": (lambda d, s, m, p: d.upload(m.address, p[::2], s), "not contiguous bytes"),
    "pinned memory that is garbage": (
        lambda d, s, m, p: d.upload(m.address, d.allocate_pinned(N).array, s),
        "pinned memory was given back before its copy ran",
    ),
    "host writes into a download": (
        lambda d, s, m, p: [d.download(p, m.address, s), p.fill(1)],
        "pinned memory was written before its copy ran",
    ),
    "another device's stream": (
        lambda d, s, m, p: d.synchronize(simulated().stream()),
        "synchronize: .* is of another device",
    ),
    "another device's event": (lambda d, s, m, p: d.wait(s, simulated().event()), "wait: .* is of another device"),
    "kernel before an upload to what it reads": (
        lambda d, s, m, p: [
            *(d.synchronize(s), d.upload(m.address, p, s)),
            *(launch(d, "add_one", [m.address, m.address, N], t := d.stream()), d.synchronize(t)),
        ],
        "kernel add_one: runs before 'upload of 1000 bytes",
    ),
    "download before an upload": (
        lambda d, s, m, p: [
            *(d.synchronize(s), d.upload(m.address, p, s)),
            *(d.download(d.allocate_pinned(N).array, m.address, t := d.stream()), d.synchronize(t)),
        ],
        "download of 1000 bytes .* runs before 'upload of 1000 bytes",
    ),
    "free before a download is done": (
        lambda d, s, m, p: [
            *(d.synchronize(s), d.download(p, m.address, d.stream())),
            *(m.free(), d.synchronize(s)),
        ],
        "free of 1000 bytes .* runs before 'download of 1000 bytes",
    ),
    "upload before the allocation": (
        lambda d, s, m, p: [d.upload(m.address, p, t := d.stream()), d.synchronize(t)],
        "upload of 1000 bytes .* runs before 'allocation of 1000 bytes",
    ),
    "failing kernel": (lambda d, s, m, p: launch(d, "fail", [], s), "kernel fail: in a kernel"),
    "empty grid": (lambda d, s, m, p: launch(d, "note", [1], s, n_blocks=0), "kernel note: 0 blocks"),
    "batch of poison": (lambda d, s, m, p: poisoned_batch(d, s.handle, m), "nvCOMP: .*LZ4: a chunk of more than"),
    "batch on no stream": (lambda d, s, m, p: poisoned_batch(d, 5, m), "nvCOMP: there is no stream 0x5"),
    "batch after a failing kernel": (lambda d, s, m, p: batch_after_fault(d, s, m), "kernel fail: in a kernel"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_turns_red(name):
    program, message = MISTAKES[name]
    device = simulated(LAZY)
    stream = device.stream()
    memory, pinned = device.allocate(N, stream), device.allocate_pinned(N)
    with pytest.raises(AssertionError, match=message):
        [program(device, stream, memory, pinned.array), device.check()]


@pytest.mark.parametrize("seed", range(8))
def test_what_fails_in_a_stream_fails_the_next_wait_and_all_that_follows(seed):
    log = Log()
    device = simulated(seed, run_kernel=log)
    stream = device.stream()
    with pytest.raises(AssertionError, match="kernel fail: in a kernel") as caught:
        [launch(device, "fail", [], stream), note(device, 1, stream), device.synchronize(stream)]
    assert isinstance(caught.value.__cause__.__cause__, ZeroDivisionError)
    for call in (device.event, device.check, partial(note, device, 2, stream)):
        with pytest.raises(AssertionError, match="kernel fail: in a kernel"):
            call()
    assert log.seen == []
