"""What self-checks decode: other libraries decode it to the same, and it covers what it should."""

import gzip
import zlib
from collections import Counter

import imagecodecs
import numcodecs
import pytest
import zstandard
from helpers.data import known_frames as writer
from helpers.simulated import alignment
from helpers.simulated.simulator import SimulatedDevice

from xarray_gpuzarr.cuda.launch import usual_kernels
from xarray_gpuzarr.cuda.workspace import Workspace
from xarray_gpuzarr.decoders.cuda.checks.known_frames import known_frames
from xarray_gpuzarr.decoders.cuda.checks.placing import placing_check
from xarray_gpuzarr.decoders.cuda.checks.self_checks import usual_checks
from xarray_gpuzarr.process.device_options import ResourceOptions
from xarray_gpuzarr.stored.cf import Cast

FRAMES = [(name, frame) for name, frames in known_frames().items() for frame in frames]
DECODERS = {
    "zstd": lambda frame: zstandard.ZstdDecompressor().decompress(frame),
    "lz4": lambda frame: imagecodecs.lz4_decode(frame, header=True),
    "gzip": gzip.decompress,
    "zlib": zlib.decompress,
    "blosc snappy": imagecodecs.blosc_decode,
}


@pytest.mark.parametrize(("name", "frame"), FRAMES, ids=lambda value: value if isinstance(value, str) else value.writer)
def test_another_library_decodes_it_to_the_formula(name, frame):
    decode = DECODERS.get(name, numcodecs.blosc.decompress)
    assert bytes(decode(frame.frame)) == frame.decoded
    assert len(frame.decoded) == frame.nbytes


def test_the_file_is_what_its_writer_writes():
    def kinds(frames):
        return Counter((name, f.writer.partition(": ")[2], f.content, f.nbytes) for name, f in frames)

    assert kinds(FRAMES) == kinds(writer.written())


def test_frames_are_of_every_kind():
    assert set(known_frames()) == {"zstd", "lz4", "gzip", "zlib", *(f"blosc {name}" for name in writer.TYPESIZES)}
    largest = max(known_frames()["zstd"], key=lambda frame: frame.nbytes)
    assert largest.nbytes > 2 * 128 * 1024  # the longest block of RFC 8878 has 128 KiB
    for frames in known_frames().values():
        assert {"waves", "noise"} <= {frame.content for frame in frames}
        assert any(frame.nbytes % 2 for frame in frames)
        assert all(len(frame.frame) < frame.nbytes for frame in frames if frame.content == "waves" and frame.nbytes > 1)


def noting_device(seed):
    """Return a device, and the set of kernels that are launched on it."""
    launched = set()

    def run(kernel, *arguments):
        launched.add(kernel)
        alignment.launch(kernel, *arguments)

    return SimulatedDevice(seed, run_kernel=run), launched


def lane_of(device):
    return Workspace(device, ResourceOptions(slot_nbytes=2**20, n_slots=2, scratch_nbytes=2**26))


@pytest.mark.parametrize("seed", range(4))
def test_usual_checks_launch_every_usual_kernel(seed):
    device, launched = noting_device(seed)
    workspace = lane_of(device)
    for check in usual_checks():
        assert check.run(workspace) > 0
    left = [kernel for kernel in usual_kernels() if kernel not in launched]
    assert [dict(kernel.defines) for kernel in left] == [{"KIND": "crc32c"}]  # the host sums those up
    device.check()


PAIRS = [("b1", "f4"), ("i2", "f2"), ("u8", "i4"), ("f2", "f8"), ("f4", "f4"), ("f8", "i2"), ("c16", "c16")]


@pytest.mark.parametrize(("stored", "result"), PAIRS)
@pytest.mark.parametrize("points", [False, True])
def test_the_check_of_a_placing_launches_its_kernel(stored, result, points):
    device, launched = noting_device(2)
    name = ("points" if points else "scatter", stored, result)
    cast = Cast(dtype=result, mask=(7.0,) if result[0] == "f" else ())
    assert placing_check(stored, cast, points=points).run(lane_of(device)) > 0
    names = {(k.name, *(dict(k.defines).get(part) for part in ("STORED", "RESULT"))) for k in launched}
    assert (name in names) is (stored != "c16")  # which is copied, by units
    assert any(kernel.name == name[0] for kernel in launched)
    device.check()
